"""Candidates: drafters that may be used for a model, and the settings of bench that they are run as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forerun.bench.settings import Setting, tokens_text
from forerun.drafters import DRAFTERS
from forerun.engine.config import SpeculativeConfig
from forerun.engine.resolve import KNOWN_DRAFTS, default_method
from forerun.heads import HEADS
from forerun.models.zoo import packaged_head

# Lengths that are timed in turns, as far as a candidate drafts; 0 is a plain round.
LENGTHS = (4, 1, 0, 8, 2, 6, 3, 12, 5, 16, 24, 32, 64)
LOOKUPS = ("ngram", "suffix", "token_recycling")


@dataclass(frozen=True)
class Candidate:
    """A drafter that may be used.

    Args:
        method: its name.
        model: the draft model or head; None for the known one, or none.
        longest: tokens that are drafted along any path at most.
        tree_nodes: of an automatic tree; None drafts chains.
        options: of the method, by name.
    """

    method: str
    model: str | None = None
    longest: int = 8
    tree_nodes: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Name, unique among candidates."""
        own = [f"{name}={value}" for name, value in self.options]
        tree = [] if self.tree_nodes is None else [f"tree of {self.tree_nodes}"]
        model = [] if self.model is None else [str(self.model)]
        extra = ", ".join([*model, *own, *tree])
        return f"{self.method} ({extra})" if extra else self.method

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths that it can be replayed at: a tree is not the beginning of a deeper one."""
        if self.tree_nodes is not None:
            return (self.longest,)
        return tuple(sorted(n for n in {*LENGTHS, self.longest} if 0 < n <= self.longest))

    def setting(self, num_tokens: int) -> Setting:
        """Setting of bench that drafts `num_tokens` every round."""
        config = SpeculativeConfig(
            method=self.method,
            model=self.model,
            num_speculative_tokens=num_tokens,
            policy="fixed",
            options=dict(self.options),
        )
        if self.tree_nodes is not None:
            config = replace(config, tree="auto", num_tree_nodes=self.tree_nodes)
        return Setting(self.name, config)

    def setting_name(self, num_tokens: int) -> str:
        """Name of that setting."""
        return f"{self.name}, {tokens_text(num_tokens)}"


def default_candidates(
    model: str, longest: int, methods: Sequence[str] = (), draft_model: str | None = None
) -> list[Candidate]:
    """The drafters that fit a model: lookups, its known draft model, the heads that come with it.

    Args:
        model: as the user named it.
        longest: tokens of a draft at most.
        methods: those to try instead.
        draft_model: the draft model or head, for the methods that take one.
    """
    if methods:
        taking = {"draft_model", "cascade", *HEADS}
        return [Candidate(m, draft_model if m in taking else None, longest) for m in methods]
    found = [Candidate(method, None, longest) for method in LOOKUPS]
    if draft_model is not None:
        return [*found, Candidate(default_method(draft_model, model), draft_model, longest)]
    if model.rstrip("/") in KNOWN_DRAFTS:
        found.append(Candidate("draft_model", None, longest))
    heads = [kind for kind in HEADS if packaged_head(model, kind) is not None]
    return found + [Candidate(kind, None, longest) for kind in sorted(heads)]


def variants(
    candidates: Sequence[Candidate], draft_dtypes: Sequence[str], trees: Sequence[int]
) -> list[Candidate]:
    """The candidates, those with a draft model in several precisions, and those that can with trees."""
    found: list[Candidate] = []
    for one in candidates:
        by_dtype = [one]
        if draft_dtypes and DRAFTERS.find(one.method).needs_draft_model:
            by_dtype = [replace(one, options=(("draft_dtype", dtype),)) for dtype in draft_dtypes]
        found += by_dtype
        if DRAFTERS.find(one.method).takes_trees:
            found += [replace(v, tree_nodes=nodes) for v in by_dtype for nodes in trees]
    return found
