"""A published EAGLE-3 head as read from its files, its target, and findings about it by engine."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import UnsupportedModelError, shown
from forerun.heads import HEADS, kind_of
from forerun.heads.eagle3 import Eagle3Config, default_layers, tensor_name
from forerun.heads.files import HeadFiles
from forerun.models import Checkpoint

VLLM, SGLANG, LLAMA_CPP = "vllm", "sglang", "llama.cpp"
EVERY = "all"
"""Engine of a finding that holds wherever the head is loaded, in forerun too."""

VERSIONS = {VLLM: "0.33", SGLANG: "0.5.23", LLAMA_CPP: "b11434"}
"""Version of each engine whose sources the checks were written from."""
TITLES = {VLLM: "vLLM", SGLANG: "SGLang", LLAMA_CPP: "llama.cpp"}


class Severity(enum.StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The engine does not load the head."""
    WRONG = "wrong"
    """The engine loads the head silently, and drafts badly."""
    NOTE = "note"
    """The finding is worth knowing, but the head drafts as it was trained."""


@dataclass(frozen=True)
class Finding:
    """One problem of a head.

    Args:
        severity: severity of the problem.
        engine: engine that has the problem, or `EVERY`.
        trap: short name of the problem, the same for every engine.
        problem: sentence that says what is wrong, without a full stop.
        remedy: sentence that says what to do, without a full stop.
    """

    severity: Severity
    engine: str
    trap: str
    problem: str
    remedy: str


Engines = str | Sequence[str]
"""One engine, or several; `{engine}` in a problem stands for the title of each."""


def _findings(
    severity: Severity, engines: Engines, trap: str, problem: str, remedy: str
) -> Iterator[Finding]:
    """Findings of one severity, one for each engine."""
    for engine in (engines,) if isinstance(engines, str) else engines:
        named = problem.replace("{engine}", TITLES.get(engine, engine))
        yield Finding(severity, engine, trap, named, remedy)


error = partial(_findings, Severity.ERROR)
wrong = partial(_findings, Severity.WRONG)
note = partial(_findings, Severity.NOTE)


def for_engines(findings: Iterable[Finding], engines: Sequence[str]) -> list[Finding]:
    """The findings that matter to some of the engines, the worst first.

    Of several findings about one trap in one engine, only the worst count: a head that is not loaded
    is not misread.
    """
    order = list(Severity)
    relevant = dict.fromkeys(finding for finding in findings if finding.engine in (EVERY, *engines))
    worst: dict[tuple[str, str], int] = {}
    for finding in relevant:
        key, rank = (finding.engine, finding.trap), order.index(finding.severity)
        worst[key] = min(rank, worst.get(key, rank))
    worst_only = [
        finding
        for finding in relevant
        if order.index(finding.severity) == worst[finding.engine, finding.trap]
    ]
    return sorted(worst_only, key=lambda finding: order.index(finding.severity))


def defects(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that are more than notes."""
    return [finding for finding in findings if finding.severity is not Severity.NOTE]


EAGLE3 = "eagle3"
CONFIG = "config.json"
AUX = "eagle_aux_hidden_state_layer_ids"
EMBEDDING = "embed_tokens.weight"

# Keys without which the shapes of a head are the same; what they say is a matter of the rules.
_SHAPELESS = {"hidden_act", "rope_parameters", "rope_scaling", "rope_theta"}
# Most that a copy of the target's embedding may differ from it, relative to its norm.
_COPY = 1e-2


@dataclass(frozen=True)
class Target:
    """Sizes and conventions of a target, read from its config alone.

    Attributes:
        rope: rotary embedding in transformers' format; empty for a model without one.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context: int
    rope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def default_layers(self) -> tuple[int, ...]:
        """Hidden layers that EAGLE-3 uses if a config names none."""
        return default_layers(self.num_layers)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Target:
        """The facts about the target in a checkpoint."""
        summary, rope = checkpoint.summary, getattr(checkpoint.config, "rope_parameters", None)
        return cls(
            name=checkpoint.name,
            vocab_size=summary.vocab_size,
            hidden_size=summary.hidden_size,
            num_layers=summary.num_layers,
            max_context=summary.max_context,
            rope=dict(rope) if isinstance(rope, Mapping) else {},
        )


@dataclass(frozen=True, eq=False)
class PublishedHead:
    """An EAGLE-3 head as read from its files, without judgement.

    Attributes:
        name: name given by the user.
        config: content of config.json.
        tensors: tensors by published name, as stored.
        record: content of forerun.json; empty for a head that forerun did not train.
        in_few_bits: True if matrices are stored as codes with scales.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] = field(default_factory=dict)
    in_few_bits: bool = False

    @classmethod
    def open(cls, name: str | os.PathLike[str]) -> PublishedHead:
        """Read a head from a directory or a hub id.

        Raises:
            CheckpointError: for missing or broken files, and for weights that are not numbers.
        """
        files = HeadFiles.open(name)
        return cls(files.name, files.config, files.tensors, files.own, files.in_few_bits)

    def check_kind(self) -> None:
        """Refuse a head of another kind; an architecture that no engine knows is a finding.

        Raises:
            UnsupportedModelError: naming its architectures.
        """
        kind, stored = kind_of(self.config), {name.split(".")[0] for name in self.weights}
        if kind is None:
            named = " ".join(self.architectures).lower()
            kind = next((known for known in HEADS if known in named), None)
        if kind is None and {"fc", "layers"} <= stored and "draft_vocab_size" in self.config:
            kind = EAGLE3
        if kind != EAGLE3 or "LlamaForCausalLMEagle" in self.architectures:
            raise UnsupportedModelError(
                f"{self.name} is not a head that forerun checks (architectures "
                f"{shown(list(self.architectures))}); it checks EAGLE-3."
            )

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """Names by which engines choose their class."""
        names = self.config.get("architectures") or ()
        return tuple(map(str, names)) if isinstance(names, (list, tuple)) else (str(names),)

    @property
    def wrapped(self) -> bool:
        """True for the format of speculators, in which the layers' config lies inside another."""
        return "speculators_model_type" in self.config

    @cached_property
    def layers(self) -> Mapping[str, Any]:
        """Config of the decoder layers."""
        inner = self.config.get("transformer_layer_config")
        return inner if self.wrapped and isinstance(inner, Mapping) else self.config

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Tensors by their names in speculators: `layers.0` for `midlayer`, and no prefix `model.`."""
        return {tensor_name(name): tensor for name, tensor in self.tensors.items()}

    @cached_property
    def eagle3(self) -> Eagle3Config:
        """The config as forerun reads it, but for its rotary embedding and activation.

        Raises:
            CheckpointError: for values that no head has.
            UnsupportedModelError: for a head that forerun does not run.
        """
        shaping = {key: value for key, value in self.config.items() if key not in _SHAPELESS}
        if self.layers is not self.config:
            inner = {key: own for key, own in self.layers.items() if key not in _SHAPELESS}
            shaping["transformer_layer_config"] = inner
        return Eagle3Config.read(shaping, CONFIG)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Sizes of the draft vocabulary and of the target's; raises as `eagle3`."""
        return self.eagle3.draft_vocab_size, self.eagle3.layers.vocab_size

    def nested(self, key: str) -> Mapping[str, Any]:
        """A nested mapping of the config; empty if it is missing."""
        part = self.config.get(key)
        return part if isinstance(part, Mapping) else {}

    def without_copy(self, model: CausalLM) -> PublishedHead:
        """The head without a copy of the target's embedding, which other tools save with it.

        Engines use the target's either way.
        """
        stored = self.weights.get(EMBEDDING)
        if stored is None:
            return self
        ids = torch.arange(model.vocab_size, device=model.device)
        theirs = model.embed(ids[None])[0].float().cpu()
        if theirs.shape != stored.shape:
            return self
        if (stored.float() - theirs).norm() > _COPY * theirs.norm():
            return self
        others = {name: tensor for name, tensor in self.weights.items() if name != EMBEDDING}
        return replace(self, tensors=others)
