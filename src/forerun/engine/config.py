"""How to speculate: one flat dataclass, with the field's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forerun.checks import (
    Check,
    normalize,
    number,
    one_of,
    optional,
    refuse_unknown,
    several,
    switch,
    text,
    whole,
)
from forerun.errors import ConfigError
from forerun.theory.adaptive import AdaptiveLength

if TYPE_CHECKING:
    from forerun.trees.shapes import TreeShape

DRAFT_SAMPLE_METHODS = ("auto", "greedy", "probabilistic")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How to speculate.

    Args:
        method: the drafter. None lets `forerun.load` pick one; an `Engine` without a drafter
            decodes plainly.
        model: the draft model, a directory or a hub id, for methods that need one.
        revision: its revision on the hub.
        num_speculative_tokens: tokens to draft a round along any path, 1 to 64; under the adaptive
            policy those of the first rounds, 2 to 10.
        tree: None drafts chains, `auto` the best tree of `num_tree_nodes`; or a fixed shape: a file,
            a list of parents or of paths, a `TreeShape`.
        num_tree_nodes: nodes of an automatic tree at most, 1 to 128.
        prompt_lookup_min, prompt_lookup_max: n-gram sizes of the `ngram` method.
        rejection_sample_method: the verification rule; `auto` takes coupled for requests with a
            seed, token for point masses, block for drawn chains, traversal for drawn trees.
        draft_sample_method: how a draft model picks tokens: `probabilistic` draws as the request
            would, `greedy` takes its most likely token, `auto` leaves it to the rule.
        policy: how the length changes from round to round.
        monitor: stop speculating where it does not pay, and probe again later.
        draft_dtype: precision of the draft model; `auto` is as stored, on the CPU kernels int8 or int4.
        suffix_corpus: a text file that the `suffix` method drafts from as well.
        suffix_store_tokens: tokens of earlier outputs that it keeps to draft from, in each namespace;
            0 keeps none. Any other number bounds the corpus as well.
        exit_layer: layers of the target that draft in the `layer_skip` method; the rest is skipped.
        skip_layers: or which layers drafting leaves out.
        exit_adapter: a file that helps the target's head to read what comes out early.
        cascade: the methods of the `cascade` method, the first that is confident enough proposes;
            `draft_model:4` drafts four tokens at most. None is suffix, then draft_model:4.
        cascade_confidence: how confident that is: the share of its draft that it expects to be
            accepted.

    Raises:
        ConfigError: for a value of a wrong type or out of range, or a combination that cannot be exact.
    """

    method: str | None = None
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens: int = 4
    tree: str | TreeShape | None = None
    num_tree_nodes: int = 16
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    rejection_sample_method: str = "auto"
    draft_sample_method: str = "auto"
    policy: str = "fixed"
    monitor: bool = True
    draft_dtype: str = "auto"
    suffix_corpus: str | None = None
    suffix_store_tokens: int = 0
    exit_layer: int | None = None
    skip_layers: tuple[int, ...] | None = None
    exit_adapter: str | None = None
    cascade: tuple[str, ...] | None = None
    cascade_confidence: float = 0.4

    def __post_init__(self) -> None:
        normalize(self, _checks())
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max "
                f"{self.prompt_lookup_max}; give 1 <= min <= max."
            )
        if self.num_tree_nodes != type(self).num_tree_nodes and self.tree != "auto":
            raise ConfigError(
                f"num_tree_nodes is {self.num_tree_nodes}, which tree 'auto' alone reads; "
                "leave it out, or give that tree."
            )
        members = {one.partition(":")[0] for one in self.cascade or ()}
        if self.cascade is not None and len(members) < max(2, len(self.cascade)):
            raise ConfigError(
                f"a cascade of {', '.join(self.cascade) or 'nothing'} has nothing to choose from; "
                "name two methods or more, each once."
            )
        shortest, longest = AdaptiveLength.shortest, AdaptiveLength.longest
        adaptive = self.policy == "adaptive"
        if adaptive and not shortest <= self.num_speculative_tokens <= longest:
            raise ConfigError(
                f"num_speculative_tokens is {self.num_speculative_tokens}; under policy 'adaptive' "
                f"it must lie in [{shortest}, {longest}], or use policy 'fixed'."
            )
        rule = self.rejection_sample_method
        if self.draft_sample_method == "greedy" and rule in ("block", "traversal"):
            raise ConfigError(
                f"{rule} verification needs drawn drafts, greedy drafts are point masses; "
                "use rejection_sample_method 'token' or draft_sample_method 'auto'."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Make one from a mapping; an unknown key is an error that lists the known ones."""
        refuse_unknown("speculative option", values, cls)
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _checks() -> dict[str, Check]:
    # Imported here because they import torch, and the options alone should be quick to have.
    from forerun.drafters import drafter_names
    from forerun.models.placement import PRECISIONS
    from forerun.policies import policy_names
    from forerun.trees.shapes import MOST_NODES
    from forerun.verification import rule_names

    return {
        "method": optional(one_of(drafter_names())),
        "model": optional(text),
        "revision": optional(text),
        "num_speculative_tokens": whole(1, 64),
        "tree": optional(_tree),
        "num_tree_nodes": whole(1, MOST_NODES),
        "prompt_lookup_min": whole(1, 2**31),
        "prompt_lookup_max": whole(1, 2**31),
        "rejection_sample_method": one_of(rule_names()),
        "draft_sample_method": one_of(DRAFT_SAMPLE_METHODS),
        "policy": one_of(policy_names()),
        "monitor": switch,
        "draft_dtype": one_of(("auto", *PRECISIONS)),
        "suffix_corpus": optional(text),
        "suffix_store_tokens": whole(0, 2**31),
        "exit_layer": optional(whole(1, 2**31)),
        "skip_layers": optional(several(whole(0, 2**31))),
        "exit_adapter": optional(text),
        "cascade": optional(several(_member(set(drafter_names()) - {"cascade"}))),
        "cascade_confidence": number(0.0, 1.0),
    }


def _member(known: Iterable[str]) -> Check:
    """A method's name, with or without a length of its own."""
    from forerun.drafters.cascade import parse_member

    def check(name: str, value: Any) -> str:
        entry: str = text(name, value)
        one_of(known)(name, parse_member(entry)[0])
        return entry

    return check


def _tree(name: str, value: Any) -> Any:
    """A file or `auto` as text; a list becomes a shape."""
    from forerun.trees.shapes import TreeShape

    if isinstance(value, TreeShape):
        return value
    if isinstance(value, (list, tuple, Mapping)):
        return TreeShape.of(value)
    return text(name, value)
