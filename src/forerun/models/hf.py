"""The adapter for any other causal language model of transformers whose cache can be cropped."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import LogitsFor
from forerun.core import Exactness, ForwardOutput
from forerun.errors import CacheError, CheckpointError, UnsupportedModelError
from forerun.models.hf_cache import HFCache, HFCacheView
from forerun.models.hf_head import Head, find_head
from forerun.models.placement import dtype_name

_OPEN_MASKS = frozenset({"full_attention", "sliding_attention"})


class HFModel:
    """A model of transformers; implements `forerun.contracts.CausalLM` row by row.

    Trees run under an explicit attention mask. Partial layers and the hidden states above the
    last layer are not to be had from transformers and are refused.

    Args:
        model: of transformers, ready on its device.
        name: how messages and reports call the model.

    Raises:
        UnsupportedModelError: when its cache cannot be rolled back or it ignores tree masks.
    """

    exactness = Exactness.DISTRIBUTIONAL

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
        self._windows = _windows(config)
        self._head: Head | None = None
        self._crops_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._probe()

    def new_cache(self, rows: int, capacity: int) -> HFCache:
        """An empty cache of `rows` rows with `capacity` slots each; memory is taken as it fills."""
        return HFCache(rows, capacity)

    @torch.no_grad()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: HFCacheView,
        tree_mask: Tensor | None = None,
        hidden_layers: Sequence[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: when a row is full or a position lies beyond the context.
            UnsupportedModelError: for `layers`, `hidden_in`, or hidden states above the last layer.
        """
        self._refuse_partial(hidden_layers, layers, hidden_in)
        batch, width = token_ids.shape
        if batch != len(cache.rows):
            raise CacheError(
                f"{batch} rows of tokens were run on a view of {len(cache.rows)} rows."
            )
        hidden = {
            layer: torch.zeros(batch, width, self.hidden_size, dtype=self.dtype, device=self.device)
            for layer in hidden_layers
        }
        logits: Tensor | None = None
        if logits_for != "none":
            rows = width if logits_for == "all" else 1
            logits = torch.zeros(batch, rows, self.vocab_size, dtype=self.dtype, device=self.device)
        for b, row in enumerate(cache.rows):
            places = [place for place in positions[b].tolist() if place >= 0]
            if not places:
                continue
            mask = None if tree_mask is None else tree_mask[b]
            row_tokens = token_ids[b : b + 1, : len(places)]
            out = self._run(row_tokens, places, cache.cache, row, mask, bool(hidden), logits_for)
            for layer, states in hidden.items():
                states[b, : len(places)] = out.hidden_states[layer][0]
            if logits is not None:
                made = out.logits[0, -1:] if logits_for == "last" else out.logits[0]
                logits[b, : len(made)] = made
        return ForwardOutput(logits, hidden)

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of hidden states [B, n, hidden_size], as `forerun.contracts.CausalLM` says.

        Raises:
            ConfigError: when the model's final norm and head cannot be told apart from the rest.
        """
        self._head = self._head or find_head(self.model, self.name)
        return self._head(hidden)

    def _run(
        self,
        token_ids: Tensor,
        places: list[int],
        cache: HFCache,
        row: int,
        tree_mask: Tensor | None,
        with_hidden: bool,
        logits_for: LogitsFor,
    ) -> Any:
        """One row, without padding, through the model of transformers."""
        if max(places) >= self.max_context:
            raise CacheError(
                f"position {max(places)} lies beyond the context of {self.name}, "
                f"{self.max_context} tokens; end the text or draft less far."
            )
        cache.reserve(row, places)
        mask = (
            None if tree_mask is None else self._masks(cache.positions[row], len(places), tree_mask)
        )
        extra = {"logits_to_keep": 1} if self._crops_logits and logits_for != "all" else {}
        return self.model(
            input_ids=token_ids,
            position_ids=torch.tensor([places], device=self.device),
            attention_mask=mask,
            past_key_values=cache.caches[row],
            use_cache=True,
            output_hidden_states=with_hidden,
            **extra,
        )

    def _masks(self, positions: list[int], count: int, tree_mask: Tensor) -> Any:
        """Additive masks [1, 1, count, total] of a tree, one for each kind of layer."""
        total, width, columns = len(positions), *tree_mask.shape
        visible = torch.ones(count, total, dtype=torch.bool, device=self.device)
        # The mask's columns begin width new tokens and columns - width slots before the new end.
        first = total - count - (columns - width)
        inside = tree_mask[:count, max(-first, 0) : columns - (width - count)]
        visible[:, max(first, 0) :] = inside.to(self.device)
        places = torch.tensor(positions, device=self.device)
        masks = {}
        for kind, window in self._windows.items():
            seen = visible
            if window is not None:
                seen = visible & (places[None, :] > places[-count:, None] - window)
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(~seen, torch.finfo(self.dtype).min)[None, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _refuse_partial(
        self, hidden_layers: Sequence[int], layers: range | None, hidden_in: Tensor | None
    ) -> None:
        if hidden_in is not None or (layers is not None and layers != range(self.num_layers)):
            raise UnsupportedModelError(
                f"{self.name} runs on transformers, which cannot run some of the layers; use a "
                "method that drafts with a model of its own."
            )
        absent = [layer for layer in hidden_layers if not 0 <= layer < self.num_layers]
        if absent:
            raise UnsupportedModelError(
                f"{self.name} runs on transformers, which shows the hidden states 0 to "
                f"{self.num_layers - 1}, not {absent}; use a method that needs none."
            )

    def _probe(self) -> None:
        """Run two siblings and see that neither the cache nor the second one notices the first."""
        cache = self.new_cache(2, 4)
        first, left, right = (token % self.vocab_size for token in (1, 2, 3))
        tree = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool)
        ids, line = torch.tensor([[first, left, right]]), torch.tensor([[first, right]])
        places = torch.tensor([[0, 1, 1]], device=self.device)
        branched = self.forward(ids.to(self.device), places, cache.view([0]), tree)
        plain = self.forward(line.to(self.device), places[:, :2], cache.view([1]))
        assert branched.logits is not None, "logits were asked for"
        assert plain.logits is not None, "logits were asked for"
        held = [len(c.layers) and c.get_seq_length() for c in cache.caches]
        if held != [3, 2]:
            raise UnsupportedModelError(
                f"{self.name} keeps no cache that can be cropped; it cannot be run speculatively."
            )
        expected = plain.logits[0, 1].float()
        error = (branched.logits[0, 2].float() - expected).abs().max()
        low = self.dtype in (torch.float16, torch.bfloat16)
        if error > (0.1 if low else 1e-3) * expected.std():
            raise UnsupportedModelError(
                f"{self.name} does not follow tree attention masks; it cannot be run speculatively."
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
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"transformers cannot load {directory} ({first}); "
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
    """Raise for an architecture that cannot be rolled back, before anything is loaded.

    Raises:
        UnsupportedModelError: naming the model and the reason.
    """
    from transformers import DynamicCache
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as KNOWN

    kind = f"{name} ({config.model_type})"
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{kind} is an encoder-decoder; only decoders can be run speculatively."
        )
    if type(config) not in KNOWN:
        raise UnsupportedModelError(f"{kind} is no causal language model of transformers.")
    model_class: Any = KNOWN[type(config)]
    if getattr(model_class, "_is_stateful", False):
        raise UnsupportedModelError(
            f"{kind} is recurrent, wholly or in some layers; its state cannot be rolled back."
        )
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        raise UnsupportedModelError(f"{kind} takes no positions, which a tree of drafts needs.")
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    try:
        layers = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    except (KeyError, AttributeError, TypeError) as error:
        raise UnsupportedModelError(f"{kind} has a cache of its own kind: {error!r}.") from error
    odd = sorted((layers - {"DynamicLayer", "DynamicSlidingWindowLayer"}) | (kinds - _OPEN_MASKS))
    if odd:
        raise UnsupportedModelError(f"{kind} has layers whose cache cannot be rolled back: {odd}.")


def max_context(config: Any, name: str) -> int:
    """Tokens of context, cut where longer texts would change the rotation of earlier tokens.

    Raises:
        UnsupportedModelError: when the config does not say.
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
