"""Several drafters in order: the first that is confident enough proposes, the last one otherwise.

Which one it is follows from the committed tokens alone, before anything is drawn, so whatever it
draws then is judged like any other draft. Free drafters with little to say come first (suffixes of
the text itself), a model that always has an answer comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Several
from dataclasses import replace
from functools import reduce
from typing import Self

from forerun.contracts import Cache, Drafter, DrafterSetup
from forerun.core import (
    NO_DRAFT,
    Draft,
    Drawing,
    Exactness,
    ForwardOutput,
    Plan,
    Sequence,
    TreePlan,
    Verdict,
)
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError
from forerun.randomness import Randomness
from forerun.trees.plans import cut

# Tokens along a path at most.
LONGEST = 64
DEFAULT_MEMBERS = ("suffix", "draft_model:4")


def parse_member(entry: str) -> tuple[str, int | None]:
    """A method's name, and the tokens that it may draft along a path where the entry says so.

    Args:
        entry: `suffix`, or `draft_model:4`: what is looked up costs nothing, what a model drafts does.

    Raises:
        ConfigError: for a length that is none.
    """
    name, colon, length = entry.partition(":")
    if not colon:
        return name, None
    if not length.isdecimal() or not 1 <= int(length) <= LONGEST:
        raise ConfigError(f"{entry!r} names no length; write draft_model:4, from 1 to {LONGEST}.")
    return name, int(length)


class CascadeDrafter(BaseDrafter):
    """Asks its members in turn how confident they are.

    A member that runs layers of the target itself drafts for all sequences of a round or for none:
    where others of a batch are drafted for by such a member, a sequence that is not decodes plainly.

    Args:
        members: from the first to be asked to the last, which is not asked.
        confidence: the share of its draft that a member must expect to be accepted.
        lengths: tokens that each may draft along a path; None is as many as are planned.

    Raises:
        ConfigError: for fewer than two members, or one that is there twice.
    """

    name = "cascade"
    takes_trees = True
    options = frozenset({"cascade", "cascade_confidence"})

    def __init__(
        self,
        members: Several[Drafter],
        confidence: float = 0.4,
        lengths: Several[int | None] | None = None,
    ) -> None:
        names = [member.name for member in members]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(
                f"a cascade of {', '.join(names) or 'nothing'} has nothing to choose from; "
                "name two methods or more, each once."
            )
        runs_layers = [member for member in members if member.shared_layers]
        if len(runs_layers) > 1:
            raise ConfigError(
                "a cascade takes one member that runs layers of the target; name one."
            )
        self.members, self.least = tuple(members), confidence
        if any(one.exactness is Exactness.APPROXIMATE for one in members):
            self.exactness = Exactness.APPROXIMATE
        self.lengths = tuple(lengths or [None] * len(members))
        every: frozenset[Drawing] = frozenset()
        self.drawings = reduce(frozenset.union, (one.drawings for one in members), every)
        self.draws_trees = any(one.draws_trees for one in members)
        self.reads_predictions = any(one.reads_predictions for one in members)
        self.hidden_layers = tuple(sorted({n for one in members for n in one.hidden_layers}))
        self.shared_layers = sum(one.shared_layers for one in members)
        sizes = [one.vocab_size for one in members if one.vocab_size is not None]
        self.vocab_size = sizes[0] if sizes else None
        self.rows = min((one.rows for one in members if one.rows is not None), default=None)

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        from forerun.drafters import find_drafter

        entries = [parse_member(one) for one in setup.options["cascade"] or DEFAULT_MEMBERS]
        members = [find_drafter(name).build(setup) for name, _ in entries]
        lengths = [length for _, length in entries]
        return cls(members, setup.options["cascade_confidence"], lengths)

    def attach(self, cache: Cache) -> None:
        for member in self.members:
            member.attach(cache)

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        asked: dict[int, list[int]] = defaultdict(list)
        for index, (sequence, plan) in enumerate(zip(sequences, plans, strict=True)):
            if plan.num_tokens:
                asked[self._choice(sequence)].append(index)
        drafts = [NO_DRAFT] * len(sequences)
        for number, indices in asked.items():
            member = self.members[number]
            if member.shared_layers:
                fitted = [
                    self._fitted(plan, number) if index in indices else Plan(0)
                    for index, plan in enumerate(plans)
                ]
                return member.propose(sequences, fitted, randomness)
        for number, indices in asked.items():
            member = self.members[number]
            some = [sequences[index] for index in indices]
            fitted = [self._fitted(plans[index], number) for index in indices]
            for index, draft in zip(indices, member.propose(some, fitted, randomness), strict=True):
                drafts[index] = draft
        return drafts

    def observe(
        self,
        sequences: Several[Sequence],
        drafts: Several[Draft],
        verdicts: Several[Verdict],
        output: ForwardOutput,
    ) -> None:
        for member in self.members:
            member.observe(sequences, drafts, verdicts, output)

    def confidence(self, sequence: Sequence) -> float:
        return max(member.confidence(sequence) for member in self.members)

    def release(self, sequence: Sequence) -> None:
        for member in self.members:
            member.release(sequence)

    def _choice(self, sequence: Sequence) -> int:
        last = len(self.members) - 1
        for number, member in enumerate(self.members[:-1]):
            if member.confidence(sequence) >= self.least:
                return number
        return last

    def _fitted(self, plan: Plan, number: int) -> Plan:
        """The plan as a member can follow it."""
        member, length = self.members[number], self.lengths[number]
        tree = plan.tree if member.takes_trees else None
        if plan.drawing in member.drawings:
            fitted = replace(plan, tree=tree)
        else:
            # What is not drawn needs no fixed shape.
            tree = None if tree is None else TreePlan(tree.num_nodes)
            fitted = Plan(plan.num_tokens, Drawing.TOP, tree)
        return fitted if length is None else cut(fitted, length)
