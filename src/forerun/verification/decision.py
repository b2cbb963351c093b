"""A rule's decision, without any randomness, and the one walk that follows it.

A decision is a list of tests. Each test passes with a probability and names the next step for both
outcomes: another test, or the end of the walk at a node, where a token is emitted from a row. Rules
that go down from the root (token) and rules that go up from the leaves (block) differ only in their
tests, so the same walk serves all of them, and the distribution of the outcome can be enumerated by
following the tests both ways.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.core import Draft, Exactness, Request, Verdict
from forerun.randomness import Purpose, Randomness
from forerun.sampling import draw, draw_tensor
from forerun.verification.target_rows import TargetRows, native_probs, takes


@dataclass(frozen=True, slots=True)
class Pending:
    """A verdict that waits for numbers from the device.

    Args:
        numbers: the numbers that the host needs, [k].
        verdict: makes the verdict from them.
    """

    numbers: Tensor
    verdict: Callable[[list[float]], Verdict]


class Rule(ABC):
    """A rule that verifies draft by draft; implements `forerun.contracts.Verifier`.

    A class whose rule the kernels know declares it: `class TokenRule(DecisionRule,
    native="token")`. A subclass may verify differently, so it must declare it again.
    """

    name: str
    exactness = Exactness.DISTRIBUTIONAL
    native: ClassVar[str | None] = None

    def __init_subclass__(cls, native: str | None = None) -> None:
        super().__init_subclass__()
        cls.native = native

    def check(self, draft: Draft) -> None:
        """Refuse a draft that the rule does not take.

        Raises:
            ConfigError: naming a rule that does.
        """

    @abstractmethod
    def prepare(self, rows: TargetRows, index: int, randomness: Randomness) -> Pending:
        """Verify the draft of one request in torch, as far as possible without the host.

        Args:
            rows: the target's, with the drafts and their requests.
            index: index of the request.
            randomness: the engine's.
        """

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        """Verify the drafts of a round, as `forerun.contracts.Verifier` says.

        The kernels do it in one call if they can; otherwise torch does it with one transfer from
        the device for all drafts.
        """
        for draft in drafts:
            self.check(draft)
        verdicts = rows.verify_natively(self.native, randomness) if self.native else {}
        waiting = {
            index: self.prepare(rows, index, randomness)
            for index in range(len(drafts))
            if index not in verdicts
        }
        if waiting:
            values = iter(torch.cat([pending.numbers for pending in waiting.values()]).tolist())
            for index, pending in waiting.items():
                verdicts[index] = pending.verdict(list(islice(values, len(pending.numbers))))
        return [verdicts[index] for index in range(len(drafts))]


def end_at(node: int) -> int:
    """Code of "the path ends at `node`" (-1: at the committed text); negative, unlike the index of a test."""
    return ~(node + 1)


@dataclass(frozen=True, slots=True)
class Decision:
    """The tests of a draft; test i is about node i.

    Args:
        accept: probability that each test passes, [n].
        on_accept, on_reject: the next test, or `end_at(node)`.
        start: the first test, or `end_at(-1)` if there is none.
        emit: row 0 is the distribution of the emitted token if the walk ends at the committed text,
            row i + 1 if it ends at node i; [n + 1, V].
    """

    accept: Tensor
    on_accept: tuple[int, ...]
    on_reject: tuple[int, ...]
    start: int
    emit: Tensor

    def end(self, accept: Sequence[float], uniform: Callable[[int], float]) -> int:
        """Follow the tests and return the node at which the path ends, -1 for the committed text.

        Args:
            accept: the decision's `accept`, on the host.
            uniform: returns the random number of a test.
        """
        at = self.start
        while at >= 0:
            at = self.on_accept[at] if uniform(at) < accept[at] else self.on_reject[at]
        return ~at - 1


def decide_natively(rule: str, draft: Draft, target_probs: Tensor) -> Decision | None:
    """The kernels' decision for the draft; None if they do not know the rule or cannot read the rows."""
    if not (native.takes(target_probs) and takes(draft)):
        return None
    probs = native_probs(draft, target_probs.dtype)
    accept, on_accept, on_reject, start, emit = native.decide(
        rule, draft.token_ids, draft.tree.parents, target_probs, probs
    )
    passes = torch.tensor(accept, dtype=target_probs.dtype)
    return Decision(passes, tuple(on_accept), tuple(on_reject), start, emit)


class DecisionRule(Rule):
    """A rule that consists of its decision, so that one walk serves all and outcomes can be enumerated."""

    @abstractmethod
    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        """The tests of a draft against the target's rows [n + 1, V], without any randomness.

        Raises:
            ConfigError: for a draft that the rule does not take.
        """

    def prepare(self, rows: TargetRows, index: int, randomness: Randomness) -> Pending:
        """Decide, and leave the walk until the numbers are on the host.

        On a device a token is drawn from every row, so that no second transfer is needed once the
        end of the path is known; on the CPU only the row that is needed is drawn from.
        """
        draft, request = rows.drafts[index], rows.requests[index]
        probs, failed_rows = rows.unchecked(index)
        decision = self.decide(draft, probs)
        emit, key = decision.emit, (request.seed, len(request))
        numbers = [decision.accept, failed_rows]
        if not emit.is_cpu:
            uniform = randomness.uniform(*key, Purpose.EMIT)
            numbers.append(draw_tensor(emit, [uniform] * len(emit)))

        def walk(values: Sequence[float]) -> Verdict:
            accept, rest = values[: len(draft)], values[len(draft) :]
            failed, tokens = rest[: len(emit)], rest[len(emit) :]
            end = decision.end(accept, lambda test: randomness.uniform(*key, Purpose.ACCEPT, test))
            for node in (-1, *draft.tree.path_to(end)):
                if failed[node + 1]:
                    return Verdict.up_to(draft, node, rows.error(index, node))
            if tokens:
                return Verdict.of(draft, end, int(tokens[end + 1]))
            uniform = randomness.uniform(*key, Purpose.EMIT)
            return Verdict.of(draft, end, draw(emit[end + 1 : end + 2], [uniform])[0])

        # One dtype for all: token ids are exact in float32.
        return Pending(torch.cat([part.to(decision.accept.dtype) for part in numbers]), walk)


def normalized(rows: Tensor, fallback: Tensor) -> Tensor:
    """Rows [N, V] scaled to sum to one; a row that sums to zero becomes its `fallback`."""
    total = rows.sum(-1, keepdim=True)
    smallest = torch.finfo(rows.dtype).tiny
    return (rows / total.clamp_min(smallest)).where(total > 0, fallback)


def nodes_by(numbers: Sequence[int]) -> list[list[int]]:
    """The nodes grouped by their numbers; entry i lists the nodes with number i."""
    groups: list[list[int]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for node, number in enumerate(numbers):
        groups[number].append(node)
    return groups


def token_ids_and_rows(draft: Draft, device: torch.device) -> tuple[Tensor, Tensor]:
    """The token of each node and the index of its parent's row, which verifies it; both int64 [n]."""
    tokens = torch.tensor(draft.token_ids, dtype=torch.long, device=device)
    return tokens, torch.tensor(draft.tree.parents, dtype=torch.long, device=device) + 1


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Acceptance probability min(1, p/q) of each token; 0 if the token has no probability in its own row."""
    return (p / q).clamp(max=1.0).where(q > 0, torch.zeros_like(p))
