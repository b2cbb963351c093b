"""Drafting with an EAGLE head: a trained layer that runs ahead on the target's own hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Self

from pydantic import Field

from forerun.contracts import ChainRequest, DrafterSetup
from forerun.core import Draft, Plan, Request, Tree
from forerun.drafters.base import HeadDrafter, fits_one_call
from forerun.options import options

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.eagle3 import Eagle3Head
    from forerun.heads.features import Missing
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


@dataclass
class _Run:
    """An unfinished tree, with the head's output at each of its nodes.

    Args:
        growth: the tree.
        carried: the head's output after the text, then after each level that has been run, each [n,
            hidden_size].
        parents: parents of the nodes that have been run, as indices among them; -1 is the text.
    """

    growth: Growth
    carried: list[Tensor]
    parents: list[int] = field(default_factory=list)

    def carried_to(self, nodes: list[int]) -> Tensor:
        """The outputs that the children of some nodes read, [n, hidden_size]."""
        import torch

        if len(nodes) == 1 == len(self.carried[-1]) and nodes[0] == len(self.parents) - 1:
            return self.carried[-1]
        return torch.cat(self.carried)[[node + 1 for node in nodes]]


@options
class Eagle3Options:
    """Options for the end of a head's chains."""

    least_confidence: float = Field(
        default=0.1,  # Approximate cost of drafting and checking a further token, in plain rounds.
        ge=0.0,
        le=1.0,
        description="End a chain where the head expects its tokens to be all accepted with less than this "
        "probability; 0 drafts all tokens that are planned.",
    )


class Eagle3Drafter(HeadDrafter):
    """Drafts chains and trees with an EAGLE head (arXiv 2503.01840; EAGLE-1 and -2 too).

    The head reads tokens that the target has run with the target's states, and drafted tokens with
    its own output for the token before. Greedy trees have the most probable nodes (EAGLE-2),
    sampled ones a fixed shape. It drafts nothing for a request until it has seen the state of the
    newest token that the target has run.
    """

    name = "eagle3"
    head: str | None = "eagle3"
    head_class = "Eagle3Head"
    options = Eagle3Options
    module: Eagle3Head
    least = 0.0
    """Probability of a whole chain below which it ends; see `Eagle3Options`."""

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        made = super().build(setup)
        made.least = setup.read(Eagle3Options).least_confidence
        return made

    def longest(self, request: Request) -> int:
        return self.capacity - len(request)

    def draft(
        self,
        requests: list[Request],
        plans: list[Plan],
        missing: list[Missing],
        randomness: Randomness,
    ) -> list[Draft]:
        """Draft chains in one call if possible, otherwise node by node."""
        if not self.module.drafts_chains or not fits_one_call(requests, plans, randomness):
            return super().draft(requests, plans, missing, randomness)
        states = [self._run_most(*pair) for pair in zip(requests, missing, strict=True)]
        chains = [
            ChainRequest(
                request.row,
                request.token_ids[-len(some) :],
                plan.num_tokens,
                plan.drawing,
                request,
                least=0.0 if plan.whole else self.least,
            )
            for request, plan, some in zip(requests, plans, states, strict=True)
        ]
        drafts = self.module.draft_chains(chains, states, self.cache)
        for request, some in zip(requests, states, strict=True):
            self.features.ran(request, len(some))
        return drafts

    def grow(
        self,
        growths: list[Growth],
        missing: list[Missing],
        num_tokens: int,
        randomness: Randomness,
    ) -> None:
        """Grow trees of any kind, level by level."""
        from forerun.sampling import top_shares
        from forerun.trees.growth import grow, likely

        runs, logits = self._catch_up(growths, missing)
        while True:
            if self.least:
                shares = top_shares(logits)
                grows, nodes = likely((run.growth for run in runs), shares, self.least)
                runs, logits = list(compress(runs, grows)), logits if all(nodes) else logits[nodes]
                if not runs:
                    return
            grow([run.growth for run in runs], logits, randomness, self.module.vocabulary)
            runs = [run for run in runs if run.growth.frontier]
            if not runs:
                return
            logits = self._extend(runs)

    def _catch_up(self, growths: list[Growth], missing: list[Missing]) -> tuple[list[_Run], Tensor]:
        """Run the states that the head's cache lacks; logits [B, Vd] after the last one of each row."""
        import torch

        requests = [growth.request for growth in growths]
        states = [self._run_most(*pair) for pair in zip(requests, missing, strict=True)]
        read = self.module.run(
            [request.row for request in requests],
            [self.module.fuse(some.unsqueeze(0))[0] for some in states],
            [
                request.token_ids[-len(some) :]
                for request, some in zip(requests, states, strict=True)
            ],
            self.cache,
        )
        for request, some in zip(requests, states, strict=True):
            self.features.ran(request, len(some))
        last = [read[row, len(some) - 1 : len(some)] for row, some in enumerate(states)]
        runs = [_Run(growth, [state]) for growth, state in zip(growths, last, strict=True)]
        return runs, self.module.logits(last[0] if len(last) == 1 else torch.cat(last))

    def _run_most(self, request: Request, missing: Missing) -> Tensor:
        """Run most of the states that a row lacks if there are many; return the rest, one at least."""

        def run(states: Tensor, start: int) -> None:
            tokens = request.token_ids[start + 1 : start + 1 + len(states)]
            fused = self.module.fuse(states.unsqueeze(0))[0]
            self.module.run([request.row], [fused], [tokens], self.cache)

        return self.features.run_most(request, missing, run)

    def _extend(self, runs: list[_Run]) -> Tensor:
        """Run the frontiers of trees; logits [N, Vd] after each node, tree after tree."""
        import torch

        hidden, token_ids = [], []
        trees: list[Tree | None] = []
        for run in runs:
            tokens, above = run.growth.run_frontier()
            hidden.append(run.carried_to(above))
            run.parents += above
            token_ids.append(tokens)
            is_chain = run.parents == list(range(-1, len(run.parents) - 1))
            trees.append(None if is_chain else Tree(tuple(run.parents)))
        rows = [run.growth.request.row for run in runs]
        read = self.module.run(rows, hidden, token_ids, self.cache, trees)
        carried = _unpadded(read, token_ids)
        for run, states in zip(runs, carried, strict=True):
            run.carried.append(states)
        return self.module.logits(carried[0] if len(carried) == 1 else torch.cat(carried))


def _unpadded(states: Tensor, token_ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """The states of each row's tokens, out of [B, n, size]."""
    rows = list(states.unbind())
    if len(rows) == 1:
        return rows
    return [row[: len(tokens)] for row, tokens in zip(rows, token_ids, strict=True)]
