"""EAGLE heads: one decoder layer over the target's hidden states and the token after each.

EAGLE-3 (arXiv 2503.01840) fuses a low, a middle and a high hidden state and drafts from a reduced
vocabulary. EAGLE-1 and -2 (arXiv 2401.15077, 2406.16858) take the target's last state and predict
its next one, from which the target's own output head computes logits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError, ConfigError, UnsupportedModelError, shown
from forerun.heads import CONFIG
from forerun.heads.blocks import layer_shapes, read_layers, refuse_other_forwards
from forerun.heads.files import HeadFiles, refuse_other_target
from forerun.heads.output import draft_ids
from forerun.models.architecture import Architecture
from forerun.options import check

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
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
        if not isinstance(inner, dict):
            inner = config
        own = config.get("eagle_config")
        own = own if isinstance(own, dict) else {}
        layers = read_layers({"vocab_size": config.get("vocab_size"), **inner}, where)
        if own.get("use_aux_hidden_state") is False:
            raise UnsupportedModelError(
                f"{where} reads no hidden states but the last (use_aux_hidden_state is false); give a "
                "head that fuses several."
            )
        try:
            flags: dict[str, Any] = {
                name: check(name, own.get(name, config.get(name)) or False, bool) for name in _FLAGS
            }
            # The library's own default, which other readers of its heads follow.
            if wrapped and config.get("norm_before_residual") is None:
                flags["norm_before_residual"] = True
            sizes: dict[str, Any] = {
                "target_hidden_size": config.get("target_hidden_size") or layers.hidden_size,
                "draft_vocab_size": config.get("draft_vocab_size") or layers.vocab_size,
            }
            for name, value in sizes.items():
                check(name, value, int, ge=1, le=2**30)
            hidden_layers = _layer_ids(config, own)
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from None
        if sizes["draft_vocab_size"] > layers.vocab_size:
            raise CheckpointError(
                f"{where}: draft_vocab_size is {sizes['draft_vocab_size']}; it must be at most the "
                f"vocab_size, {layers.vocab_size}."
            )
        if flags["norm_before_fc"] and flags["fc_norm"]:
            raise CheckpointError(
                f"{where}: norm_before_fc and fc_norm are both true; a head has one of them."
            )
        return cls(layers, hidden_layers=hidden_layers, **sizes, **flags)

    @property
    def num_fused(self) -> int:
        """Number of the target's hidden states that are fused."""
        if self.regression:
            return 1
        return 3 if self.hidden_layers is None else len(self.hidden_layers)

    def layers_of(self, target: CausalLM) -> tuple[int, ...]:
        """The target's hidden layers that the head reads, in order."""
        if self.regression:
            return (target.num_layers,)
        return self.hidden_layers or default_layers(target.num_layers)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that every head of this config has, by published name."""
        hidden = self.layers.hidden_size
        width = hidden if self.regression else 2 * hidden
        fused = (hidden, self.num_fused * self.target_hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": fused}
        if self.regression:
            shapes["fc.weight"] = (hidden, hidden + self.target_hidden_size)
        else:
            shapes |= {"norm.weight": (hidden,), "layers.0.hidden_norm.weight": (hidden,)}
            shapes["layers.0.input_layernorm.weight"] = (hidden,)
        for index in range(self.layers.num_layers):
            shapes |= layer_shapes(self.layers, f"layers.{index}", hidden if index else width)
            if index:
                shapes[f"layers.{index}.input_layernorm.weight"] = (hidden,)
        if self.norm_before_fc:
            shapes["input_norm.weight"] = fused[1:]
        if self.fc_norm:
            each = (self.target_hidden_size,)
            shapes |= {f"fc_norm.{index}.weight": each for index in range(self.num_fused)}
        if self.draft_vocab_size != self.layers.vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that a head may lack; the target's replace those that it lacks."""
        hidden = self.layers.hidden_size
        later = range(1, self.layers.num_layers)
        return {
            "embed_tokens.weight": (self.layers.vocab_size, hidden),
            "lm_head.weight": (self.draft_vocab_size, hidden),
            "fc.bias": (hidden,),
            "d2t": (self.draft_vocab_size,),
            # Saved by some tools, but read only by the first layer.
            **{f"layers.{index}.hidden_norm.weight": (hidden,) for index in later},
        }


@dataclass(frozen=True)
class Eagle3Weights:
    """A stored EAGLE head.

    Args:
        name: name of the head in messages.
        config: its config.
        tensors: tensors by published name, `layers.0` for the first layer.
    """

    name: str
    config: Eagle3Config
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, files: HeadFiles) -> Eagle3Weights:
        """Read a head in any of the published layouts.

        Raises:
            CheckpointError: for missing, unknown, misshapen or wrong tensors.
            UnsupportedModelError: for variants that are not supported.
        """
        renamed = {key: _PREFIXES.sub(_name, key) for key in files.names}
        if "fc.weight" not in renamed.values():
            raise CheckpointError(
                f"{files.name} has no fc.weight: it is not an EAGLE head; give one, or use method "
                "'draft_model' for a model."
            )
        config = Eagle3Config.read(files.config, str(files.directory / CONFIG))
        config = _as_stored(config, files.tensors, renamed)
        optional = config.optional_shapes()
        if config.regression:
            optional["layers.0.input_layernorm.weight"] = (config.layers.hidden_size,)
        tensors = files.pick(config.shapes(), optional, _UNUSED, renamed)
        return cls(files.name, config, tensors)

    @property
    def token_ids(self) -> Tensor | None:
        """The target's token of each draft token, int64 [draft_vocab_size]; None if they are the same.

        Raises:
            CheckpointError: for offsets that do not map to distinct tokens.
        """
        offsets = self.tensors.get("d2t")
        if offsets is None:
            return None
        return draft_ids(offsets, self.config.layers.vocab_size, self.name)

    def refuse_other(self, target: CausalLM) -> None:
        """Refuse a target that the head was not made for.

        Raises:
            IncompatibleDraftError: if sizes differ.
            CheckpointError: if neither the head nor the target has a required part.
        """
        config, hidden = self.config, self.config.layers.hidden_size
        refuse_other_target(
            self.name,
            target,
            hidden_size=config.target_hidden_size,
            vocab_size=config.layers.vocab_size,
        )
        lent = {"embed_tokens.weight", "lm_head.weight"} - self.tensors.keys()
        if lent and hidden != target.hidden_size:
            raise CheckpointError(
                f"{self.name} has no {min(lent)} and is {hidden} wide, and {target.name} is "
                f"{target.hidden_size}; give a head with its own."
            )


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden layers of a target that a head reads unless its config says otherwise."""
    return (2, num_layers // 2, num_layers - 3)


def _layer_ids(config: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The hidden layers that a config names, numbered as in `ForwardOutput.hidden`.

    Raises:
        ConfigError: for anything but a list of layers.
    """
    ids, added = config.get(LAYER_IDS), 0
    if ids is None:
        # Other readers of this key take the output of each layer, not its input.
        ids, added = own.get(LAYER_IDS), 1
    if ids is None:
        return None
    ids = check(LAYER_IDS, ids, tuple[int, ...], min_length=1, max_length=64)
    if min(ids) < 0:
        raise ConfigError(f"{LAYER_IDS} is {shown(list(ids))}; its layers must be 0 or more.")
    return tuple(layer + added for layer in ids)


def _name(prefix: re.Match[str]) -> str:
    """The prefix of a tensor's name, in the form used here."""
    kind = prefix[2] or ""
    return "layers.0." if kind == "midlayer." else kind


def _as_stored(
    config: Eagle3Config, tensors: Mapping[str, Tensor], renamed: Mapping[str, str]
) -> Eagle3Config:
    """The config completed from the weights: the generation of the head, and the number of fused states."""
    stored = {renamed[key]: tensor for key, tensor in tensors.items()}
    fused = stored["fc.weight"]
    if "layers.0.hidden_norm.weight" not in stored and "norm.weight" not in stored:
        return replace(config, regression=True, draft_vocab_size=config.layers.vocab_size)
    width = fused.shape[-1] if fused.dim() == 2 else 0
    if config.hidden_layers is None and width != 3 * config.target_hidden_size:
        raise CheckpointError(
            f"fc.weight has shape {list(fused.shape)}, and no {LAYER_IDS} says what it reads; three "
            f"hidden states are {3 * config.target_hidden_size} wide: name the layers in {CONFIG}."
        )
    return config
