"""EAGLE heads: one decoder layer over the target's hidden states and the token after each.

EAGLE-3 (arXiv 2503.01840) fuses a low, a middle and a high hidden state and drafts from a reduced
vocabulary. EAGLE-1 and -2 (arXiv 2401.15077, 2406.16858) take the target's last state and predict
its next one, from which the target's own output head computes logits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import CausalLM, ChainRequest, HeadChains, HeadParts, Module
from forerun.core import Batch, Draft, Tree
from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.heads import CONFIG
from forerun.heads.config import flag, layer_ids, read_layers, refuse_other_forwards, whole
from forerun.heads.files import HeadFiles, refuse_other_target
from forerun.heads.layers import (
    BlockCache,
    OutputRows,
    Shapes,
    ascending,
    embedding,
    layer,
    layer_shapes,
)
from forerun.models.architecture import Architecture
from forerun.models.modules import modules_for

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Prefixes that some tools add to the names of tensors.
_PREFIXES = re.compile(r"^(model\.)?(midlayer\.|layers\.)?")
_UNUSED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")


@dataclass(frozen=True)
class Eagle3Config:
    """Architecture of an EAGLE head.

    Args:
        layers: architecture of its decoder layers; its `vocab_size` is the target's.
        target_hidden_size: size of the hidden states that it reads.
        draft_vocab_size: number of tokens that it drafts from.
        hidden_layers: the target's hidden layers that it reads, numbered as in
            `ForwardOutput.hidden` (layer i is the input of the target's i-th block); None for those
            of `default_layers`.
        norm_before_residual: the residual is the normed state.
        norm_before_fc: the joined states are normed before they are fused.
        fc_norm: each of the joined states is normed separately (EAGLE-3.1).
        norm_output: the next step reads the state after the final norm (EAGLE-3.1).
        regression: EAGLE-1 and -2: the state before the target's output head is read, and
            predicted.
    """

    layers: Architecture
    target_hidden_size: int
    draft_vocab_size: int
    hidden_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    regression: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str) -> Eagle3Config:
        """Read the content of a config.json, native or of the library speculators, whose defaults differ.

        Args:
            config: the content.
            where: its source, for messages.

        Raises:
            CheckpointError: for values that no head has.
            UnsupportedModelError: for variants that are not supported.
        """
        refuse_other_forwards(config, where)
        wrapped = "speculators_model_type" in config
        inner = config.get("transformer_layer_config") if wrapped else config
        inner = inner if isinstance(inner, dict) else config
        own = config.get("eagle_config")
        own = own if isinstance(own, dict) else {}
        if own.get("use_aux_hidden_state") is False:
            raise UnsupportedModelError(
                f"{where} reads no hidden states but the last (use_aux_hidden_state is false); give a "
                "head that fuses several."
            )
        layers = read_layers({"vocab_size": config.get("vocab_size"), **inner}, where)
        flags = {name: flag({**config, **own}, name, where) for name in FLAGS}
        # SGLang's name.
        flags["fc_norm"] |= flag({**config, **own}, "use_aux_norm", where)
        # The library's own default, which other readers of its heads follow.
        if wrapped and config.get("norm_before_residual") is None:
            flags["norm_before_residual"] = True
        if flags["norm_before_fc"] and flags["fc_norm"]:
            raise CheckpointError(
                f"{where}: norm_before_fc and fc_norm are both true; a head has one of them."
            )
        # Other readers of the inner key take the output of each layer, not its input.
        hidden_layers = layer_ids(config, LAYER_IDS, where, 0) or layer_ids(
            own, LAYER_IDS, where, 1
        )
        return cls(
            layers,
            whole(config, "target_hidden_size", where, default=layers.hidden_size),
            whole(config, "draft_vocab_size", where, 1, layers.vocab_size, layers.vocab_size),
            hidden_layers,
            **flags,
        )

    @property
    def num_fused(self) -> int:
        """Number of the target's hidden states that are fused."""
        if self.regression:
            return 1
        return 3 if self.hidden_layers is None else len(self.hidden_layers)

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The hidden layers that the head reads of a target of `num_layers` layers, in order."""
        if self.regression:
            return (num_layers,)
        return self.hidden_layers or default_layers(num_layers)

    def shapes(self) -> Shapes:
        """Shapes of the tensors that every head of this config has, by published name."""
        hidden = self.layers.hidden_size
        fused = (hidden, self.num_fused * self.target_hidden_size)
        shapes: Shapes = {}
        for index in range(self.layers.num_layers):
            wide = index == 0 and not self.regression
            shapes |= layer_shapes(self.layers, index, 2 * hidden if wide else None)
        if self.regression:
            shapes["fc.weight"] = (hidden, hidden + self.target_hidden_size)
            del shapes["layers.0.input_layernorm.weight"]
        else:
            shapes |= {"fc.weight": fused, "norm.weight": (hidden,)}
            shapes["layers.0.hidden_norm.weight"] = (hidden,)
        if self.norm_before_fc:
            shapes["input_norm.weight"] = fused[1:]
        if self.fc_norm:
            size = (self.target_hidden_size,)
            shapes |= {f"fc_norm.{index}.weight": size for index in range(self.num_fused)}
        if self.draft_vocab_size != self.layers.vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional(self) -> Shapes:
        """Shapes of the tensors that a head may lack; the target's replace those that it lacks."""
        hidden = self.layers.hidden_size
        first = {"layers.0.input_layernorm.weight": (hidden,)} if self.regression else {}
        return {
            **first,
            "embed_tokens.weight": (self.layers.vocab_size, hidden),
            "lm_head.weight": (self.draft_vocab_size, hidden),
            "fc.bias": (hidden,),
            "d2t": (self.draft_vocab_size,),
            # Saved by some tools, but read only by the first layer.
            **{
                f"layers.{index}.hidden_norm.weight": (hidden,)
                for index in range(1, self.layers.num_layers)
            },
        }


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden layers of a target that a head reads unless its config says otherwise."""
    return (2, num_layers // 2, num_layers - 3)


def tensor_name(name: str) -> str:
    """The published name of a tensor that some tools save under another, such as `midlayer.…`."""
    return _PREFIXES.sub(
        lambda match: "layers.0." if match[2] == "midlayer." else match[2] or "", name
    )


def read_tensors(files: HeadFiles) -> tuple[Eagle3Config, dict[str, Tensor]]:
    """A head in any of the published layouts: its config, and its tensors by published name.

    Raises:
        CheckpointError: for missing, unknown, misshapen or wrong tensors.
        UnsupportedModelError: for variants that are not supported.
    """
    renamed = {key: tensor_name(key) for key in files.names}
    if "fc.weight" not in renamed.values():
        raise CheckpointError(
            f"{files.name} has no fc.weight: it is not an EAGLE head; give one, or use method "
            "'draft_model' for a model."
        )
    config = Eagle3Config.read(files.config, str(files.directory / CONFIG))
    stored = {renamed[key]: tensor for key, tensor in files.tensors.items()}
    fused = stored["fc.weight"]
    if "layers.0.hidden_norm.weight" not in stored and "norm.weight" not in stored:
        config = replace(config, regression=True, draft_vocab_size=config.layers.vocab_size)
    elif config.hidden_layers is None and fused.shape[-1:] != (3 * config.target_hidden_size,):
        raise CheckpointError(
            f"fc.weight has shape {list(fused.shape)}, and no {LAYER_IDS} says what it reads; three "
            f"hidden states are {3 * config.target_hidden_size} wide: name the layers in {CONFIG}."
        )
    return config, files.pick(config.shapes(), config.optional(), _UNUSED, renamed)


class Eagle3Head:
    """An EAGLE head on its target's backend.

    A slot of its cache belongs to a token of the text. The head reads that token's state together
    with the token after it, and its output predicts the one after that.

    Args:
        target: the target that it drafts for; it lends the parts that the head lacks.
        config: config of the head.
        tensors: tensors by published name, `layers.0` for the first layer.
        name: name of the head in messages.

    Raises:
        CheckpointError: for weights that cannot run, or a wrong `d2t`.
    """

    def __init__(
        self, target: CausalLM, config: Eagle3Config, tensors: Mapping[str, Tensor], name: str
    ) -> None:
        modules, shape = modules_for(target), config.layers
        ids, tensors = ascending(tensors, shape.vocab_size, name)
        self.config, self._target = config, target
        self.hidden_layers = config.layers_of(target.num_layers)

        def norm(part: str) -> Module | None:
            weight = tensors.get(f"{part}.weight")
            return None if weight is None else modules.norm(weight, eps=shape.norm_eps)

        first = ("input_layernorm",) if config.regression else ("input_layernorm", "hidden_norm")
        own = config.norm_before_residual
        self._layers = [layer(modules, shape, tensors, 0, first, normed_residual=own)]
        self._layers += [layer(modules, shape, tensors, i) for i in range(1, shape.num_layers)]
        self._fc = modules.linear(tensors["fc.weight"], tensors.get("fc.bias"))
        self._joined_norm = norm("input_norm")
        fused = range(config.num_fused if config.fc_norm else 0)
        self._each_norm = [norm(f"fc_norm.{i}") for i in fused]
        # Either the state for the next step is normed, or the output head norms it.
        self._norm = norm("norm") if config.norm_output else None
        last = None if config.norm_output else tensors.get("norm.weight")
        rows = tensors.get("lm_head.weight")
        self._output = OutputRows(target, modules, ids, rows, last, shape.norm_eps)
        self.vocabulary = self._output.vocabulary
        self._embed = embedding(target, tensors)
        self._own_embedding = tensors.get("embed_tokens.weight")

    @classmethod
    def open(cls, target: CausalLM, files: HeadFiles) -> Eagle3Head:
        """Read a head for a target.

        Raises:
            CheckpointError: for a broken file, and if neither head nor target has a required part.
            IncompatibleDraftError: for the head of another target.
            UnsupportedModelError: for variants with another forward.
        """
        config, tensors = read_tensors(files)
        hidden = config.layers.hidden_size
        refuse_other_target(
            files.name,
            target,
            hidden_size=config.target_hidden_size,
            vocab_size=config.layers.vocab_size,
        )
        lent = {"embed_tokens.weight", "lm_head.weight"} - tensors.keys()
        if lent and hidden != target.hidden_size:
            raise CheckpointError(
                f"{files.name} has no {min(lent)} and is {hidden} wide, and {target.name} is "
                f"{target.hidden_size}; give a head with its own."
            )
        return cls(target, config, tensors, files.name)

    @cached_property
    def _chains(self) -> HeadChains | None:
        parts = self._parts()
        return None if parts is None else modules_for(self._target).head_chains(parts)

    def _parts(self) -> HeadParts | None:
        """The parts for drafting chains in one call; None for a head of another composition."""
        if self.config.regression or self._output.linear is None:
            return None
        norms = self._each_norm if self._joined_norm is None else [self._joined_norm]
        return HeadParts(
            [norm for norm in norms if norm is not None],
            self._fc,
            self._layers,
            self._norm,
            self._output.linear,
            () if self.vocabulary is None else self.vocabulary.token_ids,
            self._own_embedding,
            self._target.vocab_size,
        )

    @cached_property
    def drafts_chains(self) -> bool:
        """True if `draft_chains` is available."""
        return self._chains is not None

    def draft_chains(
        self, requests: Sequence[ChainRequest], states: Sequence[Tensor], cache: BlockCache
    ) -> list[Draft]:
        """Draft chains side by side in one call, see `forerun.contracts.HeadChains`.

        The result equals that of `fuse`, `run` and `logits` step by step, bit for bit.
        """
        assert self._chains is not None
        return self._chains.draft(cache.layers, requests, states)

    def new_cache(self, rows: int, capacity: int) -> BlockCache:
        """An empty cache of `rows` rows of `capacity` tokens each."""
        return BlockCache(self._layers, rows, capacity)

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states [B, n, W] into the head's input [B, n, hidden_size]."""
        if self.config.regression:
            return self._target.final_norm(states)
        if self._joined_norm is not None:
            states = self._joined_norm(states)
        if self._each_norm:
            parts = torch.split(states, self.config.target_hidden_size, dim=-1)
            normed = zip(self._each_norm, parts, strict=True)
            states = torch.cat([norm(part) for norm, part in normed if norm is not None], dim=-1)
        return self._fc(states)

    def run(
        self,
        rows: Sequence[int],
        hidden: Sequence[Tensor],
        token_ids: Sequence[Sequence[int]],
        cache: BlockCache,
        trees: Sequence[Tree | None] | None = None,
    ) -> Tensor:
        """Run tokens after those that rows of the cache hold; the output is [B, n, hidden_size].

        The next step reads this output in place of a state of the target; the output head reads it
        too.

        Args:
            rows: rows of the cache.
            hidden: for each row the states beside its tokens, [n, hidden_size]: fused ones, or the
                output of the step before.
            token_ids: for each row the token after each of those.
            cache: a cache of this head.
            trees: trees of the rows' newest nodes, see `Batch.trees`.
        """
        batch = Batch.after(cache, rows, token_ids, trees=trees)
        if len(rows) == 1:
            states, ids = hidden[0].unsqueeze(0), torch.tensor(token_ids, device=hidden[0].device)
        else:
            states = pad_sequence(list(hidden), batch_first=True)
            ids = torch.from_numpy(batch.padded(token_ids, 0)).to(states.device)
        inputs = [self._embed(ids), states]
        if self.config.regression:
            inputs = [self._fc(torch.cat(inputs, dim=-1))]
        for run, own in zip(self._layers, cache.layers, strict=True):
            inputs = [run(inputs, batch, own)]
        return inputs[0] if self._norm is None else self._norm(inputs[0])

    def logits(self, normed: Tensor) -> Tensor:
        """Logits [..., draft_vocab_size] of the output of `run`."""
        return self._output(normed)
