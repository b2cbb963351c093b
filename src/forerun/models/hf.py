"""Adapter for other causal language models of transformers, if their cache can be cropped."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import Ability
from forerun.core import Batch, Exactness, ForwardOutput, Tree
from forerun.errors import CacheError, CheckpointError, ConfigError, UnsupportedModelError
from forerun.kv_cache import held_before
from forerun.models.architecture import LAYER_KINDS, is_causal
from forerun.models.config import one_line
from forerun.models.hf_cache import HFCache, Operation, find_head, probe
from forerun.models.layers import check_view
from forerun.models.run_config import DeviceMemory, dtype_name


class HFModel:
    """A model of transformers; implements `forerun.contracts.CausalLM` row by row.

    Trees run under an explicit attention mask. Partial layers are not available from transformers
    and are refused.

    Args:
        model: model of transformers, ready on its device.
        name: name of the model in messages and reports.

    Raises:
        UnsupportedModelError: if its cache cannot be rolled back or it ignores tree masks.
    """

    exactness = Exactness.DISTRIBUTIONAL
    abilities: frozenset[Ability] = frozenset()

    def __init__(self, model: Any, name: str) -> None:
        config = model.config.get_text_config()
        refuse_unsupported(model.config, name)
        self.model, self.name = model, name
        self.vocab_size = int(config.vocab_size)
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self.max_context = max_context(config, name)
        self.device, self.dtype = model.device, model.dtype
        self.precision = dtype_name(self.dtype)
        self.windows = _windows(config)
        self._tables = _square_tables(model)
        self._crops_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._memory = DeviceMemory(self.device, f"a forward of {name}", "run fewer tokens at once")
        probe(self, config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, precision={self.precision!r})"

    def new_cache(self, rows: int, capacity: int) -> HFCache:
        """An empty cache of `rows` rows of `capacity` tokens each; memory is allocated as it fills."""
        return HFCache(rows, capacity)

    @torch.no_grad()
    def forward(self, batch: Batch, cache: HFCache) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: for a batch that contradicts the cache, a full row, or a position beyond the
                context.
            UnsupportedModelError: for `layers`, `hidden_in`, or hidden states that do not exist.
            ConfigError: for hidden states of the last layer if the final norm cannot be run
                separately.
            MemoryLimitError: if the device has no memory left.
        """
        with self._memory:
            return self._forward(batch, cache)

    def _forward(self, batch: Batch, cache: HFCache) -> ForwardOutput:
        check_view(self, batch)
        self._refuse_partial(batch)
        if batch.furthest >= self.max_context:
            raise CacheError.beyond_context(batch.furthest, self.max_context)
        held_before(batch, cache, range(self.num_layers))
        hidden: dict[int, list[Tensor]] = {layer: [] for layer in batch.hidden_layers}
        logits: list[Tensor] = []
        for index in range(len(batch)):
            with self._last_states(self.num_layers in hidden) as last:
                out = self._run(batch, index, cache)
            for layer, rows in hidden.items():
                states = last[0] if layer == self.num_layers else out.hidden_states[layer]
                rows.append(states[0])
            if batch.logits_for != "none":
                logits.append(out.logits[0, -1:] if batch.logits_for == "last" else out.logits[0])
        padded = {layer: self._padded(rows) for layer, rows in hidden.items()}
        return ForwardOutput(self._padded(logits) if logits else None, padded)

    @contextmanager
    def _last_states(self, wanted: bool) -> Iterator[list[Tensor]]:
        """Collect the inputs of the final norm inside the block; transformers only returns its outputs."""
        seen: list[Tensor] = []
        if not wanted:
            yield seen
            return
        norm: Any = self._head[0]
        hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            yield seen
        finally:
            hook.remove()

    def _padded(self, rows: list[Tensor]) -> Tensor:
        return pad_sequence(rows, batch_first=True).to(self.dtype)

    @torch.no_grad()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [B, n, hidden_size] of token ids [B, n], without those of positions.

        Raises:
            ConfigError: if the width of the embedding differs from that of the layers.
        """
        table = self.model.get_input_embeddings()
        if getattr(table, "embedding_dim", self.hidden_size) != self.hidden_size:
            raise ConfigError(
                f"{self.name} embeds tokens in {table.embedding_dim} dimensions and its layers have "
                f"{self.hidden_size}; use a method that does not enter its layers."
            )
        embedded: Tensor = table(token_ids)
        return embedded

    @torch.no_grad()
    def final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm before the output head to [B, n, hidden_size].

        Raises:
            ConfigError: if the model's final norm and head cannot be run separately.
        """
        return self._head[0](hidden)

    @torch.no_grad()
    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of hidden states [B, n, hidden_size] after the final norm.

        Raises:
            ConfigError: if the model's final norm and head cannot be run separately.
        """
        return self._head[1](hidden)

    @cached_property
    def _head(self) -> tuple[Operation, Operation]:
        return find_head(self.model, self.name)

    def _run(self, batch: Batch, index: int, cache: HFCache) -> Any:
        """Run one row, without padding, through the model of transformers."""
        row, positions = batch.rows[index], batch.positions[index]
        tree = None if batch.trees is None else batch.trees[index]
        cache.positions[row].extend(positions)
        last = self._crops_logits and batch.logits_for != "all"
        inputs = {
            "input_ids": torch.tensor([batch.token_ids[index]], device=self.device),
            "position_ids": torch.tensor([positions], device=self.device),
            "past_key_values": cache.caches[row],
            "use_cache": True,
            "output_hidden_states": bool(batch.hidden_layers),
            **({"logits_to_keep": 1} if last else {}),
        }
        if tree is None:
            return self.model(**inputs)
        row_positions = torch.tensor(cache.positions[row], device=self.device)
        inputs["attention_mask"] = self._masks(row_positions, len(positions), tree)
        if not self._tables:
            return self.model(**inputs)
        tables = _by_position(self._tables, row_positions, len(positions))
        return torch.func.functional_call(self.model, tables, kwargs=inputs)

    def _masks(self, positions: Tensor, count: int, tree: Tree) -> Any:
        """Additive masks [1, 1, count, total] of a tree, one for each kind of layer."""
        total = len(positions)
        visible = torch.ones(count, total, dtype=torch.bool, device=self.device)
        visible[:, total - len(tree) :] = torch.from_numpy(tree.mask[-count:]).to(self.device)
        masks = {}
        for kind, window in self.windows.items():
            seen = visible
            if window is not None:
                seen = visible & (positions > positions[-count:, None] - window)
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(~seen, torch.finfo(self.dtype).min)[None, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _refuse_partial(self, batch: Batch) -> None:
        some = batch.layers is not None and batch.layers != range(self.num_layers)
        if batch.hidden_in is not None or some:
            raise UnsupportedModelError(
                f"{self.name} runs on transformers, which cannot run some of the layers; use a "
                "method that drafts with a model of its own."
            )
        absent = [layer for layer in batch.hidden_layers if not 0 <= layer <= self.num_layers]
        if absent:
            raise UnsupportedModelError(
                f"{self.name} runs on transformers, which shows the hidden states 0 to "
                f"{self.num_layers}, not {absent}; use a method that needs none."
            )


def load_adapter(
    directory: Path,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
) -> HFModel:
    """Load a model through transformers.

    Raises:
        UnsupportedModelError: for an architecture that cannot be run speculatively.
        CheckpointError: for files that transformers cannot read or that lack tensors.
    """
    from transformers import AutoModelForCausalLM

    refuse_unsupported(config, name)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:
        # transformers and safetensors raise a dozen types for broken files.
        if getattr(config, "quantization_config", None) is not None:
            raise UnsupportedModelError(
                f"{name} is quantized in a way that transformers cannot load here ({one_line(error)}); load "
                "the original checkpoint, or a GGUF file of it."
            ) from error
        raise CheckpointError(
            f"transformers cannot load {directory} ({one_line(error)}); "
            "check its config.json and safetensors files."
        ) from error
    model, info = loaded
    lost = sorted(str(key) for key in (*info["missing_keys"], *info["mismatched_keys"]))
    if lost:
        raise CheckpointError(
            f"{directory} lacks {lost[0]} in the shape that config.json asks for "
            f"({len(lost)} such tensors); the checkpoint is incomplete."
        )
    return HFModel(model.to(device).eval(), name)


def refuse_unsupported(config: Any, name: str) -> None:
    """Refuse an architecture that cannot be rolled back, before anything is loaded.

    Raises:
        UnsupportedModelError: naming the model and the reason.
    """
    obstacle = _obstacle(config)
    if obstacle is not None:
        raise UnsupportedModelError(f"{name} ({config.model_type}) {obstacle}.")


def _obstacle(config: Any) -> str | None:
    from transformers import DynamicCache
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as KNOWN

    if getattr(config, "is_encoder_decoder", False):
        return "is an encoder-decoder; only decoders can be run speculatively"
    if type(config) not in KNOWN:
        text = config.get_text_config()
        if text is not config and type(text) in KNOWN:
            return (
                f"wraps a language model ({text.model_type}) in a larger one, which transformers does not "
                "take apart; give a checkpoint of its text part alone, or a GGUF file of it"
            )
        if text is not config:
            return (
                "is a model of more than text, whose text part transformers does not run by itself"
            )
        return "is not a causal language model of transformers"
    if not is_causal(config):
        return "lets tokens see later ones, which are not known when a text is written"
    model_class: Any = KNOWN[type(config)]
    if getattr(model_class, "_is_stateful", False):
        return "is recurrent, wholly or in some layers; its state cannot be rolled back"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "takes no positions, which a tree of drafts needs"
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    try:
        layers = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    except Exception as error:
        # transformers may raise any exception for a config that none of its plain caches fits.
        return f"has a cache of its own kind ({one_line(error)}), which cannot be rolled back"
    odd = sorted((layers - {"DynamicLayer", "DynamicSlidingWindowLayer"}) | (kinds - LAYER_KINDS))
    return f"has layers whose cache cannot be rolled back: {odd}" if odd else None


def max_context(config: Any, name: str) -> int:
    """Tokens of context, limited to the length beyond which the rotation of earlier tokens would change.

    Raises:
        UnsupportedModelError: if the config does not say.
    """
    length = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise UnsupportedModelError(f"the config of {name} has no max_position_embeddings; add it.")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        length = rope.get("original_max_position_embeddings", length)
    return int(length)


def _windows(config: Any) -> dict[str, int | None]:
    """Sliding windows by kind of layer, as transformers names them."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        kinds = {"full_attention" if window is None else "sliding_attention"}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def _square_tables(model: Any) -> dict[str, Tensor]:
    """The masks [1, 1, max_context, max_context] that a model keeps as buffers, as GPT-Neo does.

    Such a model indexes them by the slots of queries and keys.
    """
    return {
        name: table
        for name, table in model.named_buffers()
        if table.dtype == torch.bool and table.dim() == 4 and table.shape[-2] == table.shape[-1]
    }


def _by_position(tables: dict[str, Tensor], positions: Tensor, count: int) -> dict[str, Tensor]:
    """The tables indexed by position instead of slot: all columns, and the last `count` rows."""
    total, placed = len(positions), {}
    for name, table in tables.items():
        # The rows of earlier slots are not read.
        placed[name] = table.new_empty(1, 1, total, total)
        placed[name][..., -count:, :] = table[..., positions[-count:, None], positions]
    return placed
