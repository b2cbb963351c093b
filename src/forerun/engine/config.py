"""Configuration of speculation: the fields that all methods share, and the method's own options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainValidator, WithJsonSchema

from forerun.contracts import Policy
from forerun.core import MOST_NODES, Drawing, Tree
from forerun.drafters import DRAFTERS, drafters_of
from forerun.errors import ConfigError, UnknownNameError
from forerun.options import Text, changes, check, known, named, option, options, pick
from forerun.policies import POLICIES, make_policy
from forerun.registry import Registry

T = TypeVar("T")
DraftSampling = Literal["auto", "greedy", "probabilistic"]


def _rules() -> list[str]:
    from forerun.verification import rule_names  # Here, because the rules load torch.

    return rule_names()


def _tree(value: Any) -> str | Tree | None:
    """A tree option: a file or `auto` stays text, a list becomes a tree."""
    from forerun.trees.shapes import parse_tree

    if isinstance(value, str):
        return check("tree", value, Text)  # type: ignore[no-any-return]
    return None if value is None else parse_tree(value)


@options
class SpeculativeConfig:
    """Configuration of speculation.

    `method=None` lets `forerun.load` pick a drafter; an `Engine` without a drafter decodes plainly.

    Raises:
        ConfigError: for a value of a wrong type or out of range, an option that the method does not
            have, or a combination that cannot be exact.
    """

    method: Annotated[str | None, known("method", DRAFTERS.names)] = option(
        default=None,
        names=DRAFTERS.names,
        description="The drafter, such as draft_model, suffix or cascade. Left out, one is picked.",
    )
    model: Text | None = Field(
        default=None, description="The draft model or trained head, a directory or a hub id."
    )
    revision: Text | None = Field(default=None, description="Its revision on the hub.")
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None,
        description="Tokens to draft a round, along any path: at most, under policy auto, which decides "
        "by itself; 4 under the others if left out.",
    )
    tree: Annotated[
        str | Tree | None,
        PlainValidator(_tree),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = Field(default=None, description="Draft trees: auto, or a JSON file with a fixed shape.")
    num_tree_nodes: int = option(
        default=16,
        ge=1,
        le=MOST_NODES,
        description="Nodes of an automatic tree at most.",
        requires=("tree",),
    )
    rejection_sample_method: Annotated[str, known("rejection_sample_method", _rules)] = Field(
        default="auto",
        description="The verification rule: auto, token, block, traversal, coupled, or typical "
        "(approximate).",
    )
    draft_sample_method: DraftSampling = Field(
        default="auto",
        description="How a draft model picks tokens: probabilistic draws as the request would, greedy takes "
        "the most likely one, auto leaves it to the rule.",
    )
    policy: Annotated[str, known("policy", POLICIES.names)] = option(
        default="auto",
        names=POLICIES.names,
        description="How far to draft, if at all: auto decides each round by measured costs and acceptance; "
        "fixed or adaptive.",
    )
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Options of the method, of the methods that it drafts with, and of the policy, by name.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", self._settled())
        # A policy refuses lengths that it cannot start with.
        self.make_policy()
        if self.num_tree_nodes != type(self).num_tree_nodes and self.tree != "auto":
            raise ConfigError(
                f"num_tree_nodes is {self.num_tree_nodes}, which only tree 'auto' reads; "
                "leave it out, or give that tree."
            )
        rule = self.rejection_sample_method
        if self.draft_sample_method == "greedy" and rule in ("block", "traversal"):
            raise ConfigError(
                f"{rule} verification needs drawn drafts, greedy drafts are point masses; "
                "use rejection_sample_method 'token' or draft_sample_method 'auto'."
            )
        if self.draft_sample_method != "auto" and self.method is not None and not self.draws:
            raise ConfigError(
                f"draft_sample_method is {self.draft_sample_method!r}, and method {self.method!r} does "
                "not draw its drafts; leave it out, or use method 'draft_model'."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Make a config from a flat mapping that holds a method's options among the common fields.

        Raises:
            ConfigError: for anything but a mapping, and as the class does.
            UnknownNameError: for an unknown key, listing the known ones.
        """
        common = {field.name for field in fields(cls)}
        values = named(values)
        if "options" in values:
            return cls(**values)
        own = {name: value for name, value in values.items() if name not in common}
        try:
            shared = {name: value for name, value in values.items() if name in common}
            return cls(**shared, options=own)
        except UnknownNameError as error:
            if error.name not in own:
                raise
            known_names = {*error.known, *common} - {"options"}
            raise UnknownNameError(error.kind, error.name, known_names) from None

    def as_dict(self) -> dict[str, Any]:
        """The config as a flat mapping, with all options, in the form that `from_dict` takes."""
        common = {name: value for name, value in asdict(self).items() if name != "options"}
        own = [asdict(self.read(kind)) for kind in self._option_classes]
        return {**common, **self.options, **{name: part[name] for part in own for name in part}}

    def make_policy(self) -> Policy:
        """Make the policy that is named."""
        return make_policy(self.policy, self.num_speculative_tokens, self.options)

    def read(self, kind: type[T]) -> T:
        """The options of a class that a method or a policy declares."""
        return pick(kind, self.options)

    @cached_property
    def drafters(self) -> tuple[Any, ...]:
        """The drafter classes that take part in the method; empty if no method is named."""
        return () if self.method is None else tuple(drafters_of(self.method, self.options))

    @property
    def waiting(self) -> list[str]:
        """The options that belong to a method that is not named yet."""
        return sorted(self.options.keys() - option_names(self._option_classes))

    @property
    def head(self) -> str | None:
        """The kind of trained head that the method drafts with; see `forerun.heads.HEADS`."""
        return next((drafter.head for drafter in self.drafters if drafter.head), None)

    @property
    def draws(self) -> bool:
        """True if the method can draw its drafts."""
        return any(Drawing.SAMPLED in drafter.drawings for drafter in self.drafters)

    @property
    def _option_classes(self) -> list[type[Any]]:
        return option_classes(self.method, self.policy, self.options)

    def _settled(self) -> dict[str, Any]:
        """The options that are not at their defaults, checked by their classes.

        Options of a method that is not named yet are left unchecked.

        Raises:
            ConfigError: for an option of another method or policy.
            UnknownNameError: for an option that does not exist.
        """
        kinds = self._option_classes
        declared = option_names(kinds)
        others = {name: value for name, value in self.options.items() if name not in declared}
        if others:
            self._refuse_unread(others, declared)
        settled = [changes(self.read(kind)) for kind in kinds]
        return others | {name: part[name] for part in settled for name in part}

    def _refuse_unread(self, names: Iterable[str], declared: set[str]) -> None:
        by_method = _declared_by(DRAFTERS)
        by_policy = _declared_by(POLICIES)
        for name in names:
            owners = [*by_method.get(name, ()), *by_policy.get(name, ())]
            if not owners:
                allowed = declared if self.method is not None else {*declared, *by_method}
                raise UnknownNameError("speculative option", name, allowed)
            if self.method is not None or name not in by_method:
                raise ConfigError(
                    f"{name} is not read by method {self.method!r} with policy {self.policy!r}, whose "
                    f"options are {', '.join(sorted(declared)) or 'none'}; leave it out, or use "
                    f"{' or '.join(owners)}."
                )


def option_classes(method: str | None, policy: str, options: Mapping[str, Any]) -> list[type[Any]]:
    """The classes of options that a method, the methods that it drafts with and a policy read.

    Args:
        options: by name; some may name methods to draft with.
    """
    drafters = () if method is None else drafters_of(method, options)
    return [*(drafter.options for drafter in drafters), POLICIES.find(policy).options]


def option_names(classes: Iterable[type[Any]]) -> set[str]:
    """The names of the options of some classes."""
    return {field.name for kind in classes for field in fields(kind)}


def all_option_names() -> set[str]:
    """The names of the options of all methods and policies."""
    return {*_declared_by(DRAFTERS), *_declared_by(POLICIES)}


def _declared_by(table: Registry) -> dict[str, list[str]]:
    """The methods or policies that declare each option; a package that cannot be loaded declares none."""
    owners: dict[str, list[str]] = {}
    for name in table.names():
        with suppress(ConfigError):
            for field in fields(table.find(name).options):
                owners.setdefault(field.name, []).append(f"{table.kind} {name!r}")
    return owners
