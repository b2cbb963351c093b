"""Ways to speculate that are measured beside each other: methods, lengths, trees and policies, crossed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from forerun.core import Drawing
from forerun.drafters import DRAFTERS, drafters_of
from forerun.drafters.corpus import CorpusOptions
from forerun.engine.config import SpeculativeConfig, option_classes, option_names
from forerun.engine.resolve import choose, default_method, known_drafter
from forerun.errors import ConfigError, UnknownNameError, counted
from forerun.heads import kind_at
from forerun.options import UNIQUE, Text, changes, option, options, pick

FIXED = "fixed"
DEFAULT = "default"
"""The name of what forerun does where nothing is said."""
COLD = f"{DEFAULT}, cold"
"""The name of the same without what earlier requests have taught it. Nobody can choose it: it is the first
request on a new machine."""
_DEFAULTS = (
    f"{COLD}: the first request on a new machine; {DEFAULT}: after the requests before it, and with what "
    "earlier runs on this machine have left on disk"
)
CHAIN = "chain"


@dataclass(frozen=True)
class Setting:
    """A way to speculate, by the name that reports give it.

    Args:
        method: the drafter, or DEFAULT.
        config: for an engine.
        tree: CHAIN, the size of automatic trees, or a file's name.
        model: how the draft model or head is called, where one was named.
        cold: whether its policy forgets what it has learned before every measurement.
    """

    method: str
    config: SpeculativeConfig
    tree: str = CHAIN
    model: str = ""
    cold: bool = False

    @property
    def name(self) -> str:
        """`suffix, 6 tokens`; unique among the settings of a run."""
        if self.method == DEFAULT:
            return COLD if self.cold else DEFAULT
        config = self.config
        method = f"{self.method} {self.model}" if self.model else self.method
        length = config.num_speculative_tokens
        parts = [method if length is None else f"{method}, {counted(length, 'token')}"]
        if self.tree != CHAIN:
            parts.append(f"tree {self.tree}")
        if config.policy != FIXED:
            parts.append(config.policy)
        return ", ".join(parts)


def method_of(name: str) -> str:
    """The method, and its model where one was named, in the name of a setting."""
    # A comma between parentheses belongs to the method's own options.
    return re.split(r", (?![^(]*\))", name, maxsplit=1)[0]


@options
class Axes:
    """Values that are crossed into settings."""

    method: tuple[str, ...] = Field(
        default=(),
        description="Drafters, and default: what forerun picks by itself, cold and warm. Left out, the "
        "likely ones.",
    )
    draft_model: tuple[Text, ...] = option(
        default=(),
        description="A draft model or trained head, for the methods that it is for.",
        repeat=True,
    )
    num_speculative_tokens: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], UNIQUE] = (
        Field(default=(3, 6), description="Tokens to draft a round.")
    )
    tree: tuple[str, ...] = Field(
        default=(CHAIN,), description="chain, auto, or JSON files with shapes."
    )
    num_tree_nodes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], UNIQUE] = Field(
        default=(SpeculativeConfig.num_tree_nodes,), description="Nodes of automatic trees at most."
    )
    policy: tuple[str, ...] = Field(
        default=(FIXED,),
        description="How far to draft: fixed, so that losses show, auto, adaptive.",
    )
    common: Mapping[str, Any] = Field(
        default_factory=dict, description="Other fields of `SpeculativeConfig`, for all methods."
    )
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Options of methods and policies by name; each takes those that it reads.",
    )


@dataclass(frozen=True)
class Crossed:
    """Settings that can be run, with notes on combinations that cannot and on names that need explaining."""

    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def likely_methods(target: str, models: Sequence[str]) -> tuple[str, ...]:
    """Methods to measure where none is named: those without a model, and those of the given models.

    Args:
        target: as the user named it.
        models: draft models and heads that are named.
    """
    from forerun.models.zoo import packaged_head  # Here, because models load torch.

    methods = [DEFAULT, "suffix", "ngram"]
    methods += [default_method(model, target) for model in models]
    if not models:
        methods += [kind for kind in ("eagle3",) if packaged_head(target, kind) is not None]
        methods += ["draft_model"] if known_drafter(target) == "draft_model" else []
    return tuple(dict.fromkeys(methods))


def cross(axes: Axes, target: str, cold: bool = True) -> Crossed:
    """Settings for a target, with notes on what was left out; `cold` adds the default without what it has
    learned.

    Raises:
        UnknownNameError: for an unknown method or policy, or an option that none of them has.
        ConfigError: for a value out of range, and for a method without the model that it needs.
    """
    _check_names(axes)
    settings: dict[str, Setting] = {}
    notes: dict[str, None] = {}
    for method in axes.method:
        if method == DEFAULT:
            texts = changes(pick(CorpusOptions, axes.options))
            config = choose(SpeculativeConfig(options=texts), target).config
            made: Iterable[Setting] = [Setting(DEFAULT, config)]
            if cold:
                made = [*made, Setting(DEFAULT, config, cold=True)]
                notes[_DEFAULTS] = None
        else:
            made = _of_method(axes, method, target, notes)
        settings |= {setting.name: setting for setting in made}
    return Crossed(tuple(settings.values()), tuple(notes))


def _of_method(axes: Axes, method: str, target: str, notes: dict[str, None]) -> Iterable[Setting]:
    takes_trees = DRAFTERS.find(method).takes_trees
    common = dict(axes.common)
    drafters = drafters_of(method, axes.options)
    if not any(Drawing.SAMPLED in drafter.drawings for drafter in drafters):
        common.pop("draft_sample_method", None)
    for model in _models_for(axes, method):
        for tree, nodes in _trees(axes):
            if tree != CHAIN and not takes_trees:
                notes[f"{method} drafts chains only: its trees are left out"] = None
                continue
            for policy in axes.policy:
                # What decides by itself is measured as it is.
                for length in (
                    (None,) if policy == SpeculativeConfig.policy else axes.num_speculative_tokens
                ):
                    values = {
                        **common,
                        "method": method,
                        "model": model,
                        "num_speculative_tokens": length,
                        "policy": policy,
                        "options": _options_for(axes, method, policy),
                    }
                    if tree != CHAIN:
                        values["tree"] = tree
                    if tree == "auto":
                        values["num_tree_nodes"] = nodes
                    shown = f"of {nodes}" if tree == "auto" else PurePath(tree).name
                    config = choose(SpeculativeConfig(**values), target).config
                    yield Setting(method, config, shown, _shown(axes, model))


def _shown(axes: Axes, model: str | None) -> str:
    """Last part of a model's name, or the whole name where two share their last part."""
    if model is None:
        return ""
    name = PurePath(model).name
    return name if [PurePath(other).name for other in axes.draft_model].count(name) == 1 else model


def _trees(axes: Axes) -> Iterable[tuple[str, int]]:
    for tree in axes.tree:
        for nodes in axes.num_tree_nodes if tree == "auto" else axes.num_tree_nodes[:1]:
            yield tree, nodes


def _models_for(axes: Axes, method: str) -> Sequence[str | None]:
    """The models of the axes that a method drafts with; None for none, or the known one."""
    own = drafters_of(method, axes.options)
    heads = {drafter.head for drafter in own if drafter.head}
    if any(drafter.needs_draft_model for drafter in own):
        models = [model for model in axes.draft_model if kind_at(model) is None]
    else:
        models = [model for model in axes.draft_model if kind_at(model) in heads]
    return models or [None]


def _options_for(axes: Axes, method: str, policy: str) -> dict[str, Any]:
    read = option_names(option_classes(method, policy, axes.options))
    return {name: value for name, value in axes.options.items() if name in read}


def _check_names(axes: Axes) -> None:
    methods = [method for method in axes.method if method != DEFAULT]
    for method in methods:
        if method not in DRAFTERS.names():
            raise UnknownNameError("method", method, (*DRAFTERS.names(), DEFAULT))
    read = set[str]()
    for method, policy in product(methods, axes.policy):
        read |= option_names(option_classes(method, policy, axes.options))
    for name in axes.options:
        if name not in read:
            raise UnknownNameError("option of these methods and policies", name, read)
    for model in axes.draft_model:
        if not any(model in _models_for(axes, method) for method in methods):
            raise ConfigError(
                f"no method of this run drafts with {model}; add --method "
                f"{kind_at(model) or 'draft_model'}, or leave it out."
            )
