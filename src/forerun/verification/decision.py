"""What a rule decides, without any randomness, and the one walk that follows a decision.

A decision is a list of tests. Each test passes with a probability and names what comes next either
way: another test, or the end of the walk at a node, where a token is emitted from a row. Rules
that go down from the root (token) and rules that come up from the leaves (block) differ only in
the tests that they list, so the same walk serves all of them, and whoever wants the law of the
outcome can enumerate the same tests instead of walking them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import ClassVar

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.core import Draft, Exactness, Request, Verdict
from forerun.randomness import Purpose, Randomness
from forerun.sampling import draw, draw_tensor
from forerun.verification.rows import TargetRows, native_probs, takes


def end_at(node: int) -> int:
    """The code of "the path ends at `node`" (-1: at the committed text), told apart by its sign."""
    return ~(node + 1)


@dataclass(frozen=True)
class Decision:
    """The tests of a draft.

    Args:
        accept: the probability that each test passes, [m].
        on_accept, on_reject: the test that comes next, or `end_at(node)`.
        start: the first test, or `end_at(-1)` where there is none.
        emit: row 0 is the distribution of the emitted token when the walk ends at the committed
            text, row i + 1 when it ends at node i; [n + 1, V].
    """

    accept: Tensor
    on_accept: tuple[int, ...]
    on_reject: tuple[int, ...]
    start: int
    emit: Tensor


Decide = Callable[[Draft, Tensor], Decision]


def natively(rule: str, check: Callable[[Draft], None] | None = None) -> Callable[[Decide], Decide]:
    """Have the kernels decide where they can; what is decorated is the form in torch.

    Args:
        rule: what the kernels call it.
        check: refuses drafts that the rule does not take.
    """

    def choose(in_torch: Decide) -> Decide:
        @wraps(in_torch)
        def decide(draft: Draft, target_probs: Tensor) -> Decision:
            if check is not None:
                check(draft)
            if not takes(draft, target_probs):
                return in_torch(draft, target_probs)
            probs = native_probs(draft, target_probs.dtype)
            accept, on_accept, on_reject, start, emit = native.decide(
                rule, draft.token_ids, draft.tree.parents, target_probs, probs
            )
            passes = torch.tensor(accept, dtype=target_probs.dtype)
            return Decision(passes, tuple(on_accept), tuple(on_reject), start, emit)

        return decide

    return choose


@dataclass(frozen=True)
class Pending:
    """A decision on its way to the host, and the walk that follows it there.

    On a device a token is drawn from every row, so that nothing has to be asked of it once it is known
    where the path ends; on the CPU only the row that is needed is drawn from.

    Args:
        request: whose random numbers it is walked with.
        decision: its tests.
        numbers: what the host needs, in one tensor: the acceptance of each test, whether each row is
            broken, and on a device the token drawn from each row.
        nodes: the node of the whole draft that each test is about, where some were left out.
    """

    request: Request
    decision: Decision
    numbers: Tensor
    nodes: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, request: Request, decision: Decision, broken: Tensor, randomness: Randomness
    ) -> Pending:
        dtype = decision.accept.dtype
        numbers = [decision.accept, broken.to(dtype)]
        if not decision.emit.is_cpu:
            uniform = randomness.uniform(request.seed, len(request), Purpose.EMIT)
            # Token ids are exact in float32.
            numbers.append(draw_tensor(decision.emit, [uniform] * len(decision.emit)).to(dtype))
        return cls(request, decision, torch.cat(numbers))

    def is_broken(self, numbers: Sequence[float]) -> bool:
        """Whether any row is not a distribution."""
        tests = len(self.decision.accept)
        return any(numbers[tests : tests + len(self.decision.emit)])

    def end(self, numbers: Sequence[float], randomness: Randomness) -> int:
        """Follow the tests with uniforms; the node where the path ends, -1 for the committed text."""
        key, decision = (self.request.seed, len(self.request)), self.decision
        at = decision.start
        while at >= 0:
            node = at if self.nodes is None else self.nodes[at]
            passed = randomness.uniform(*key, Purpose.ACCEPT, node) < numbers[at]
            at = decision.on_accept[at] if passed else decision.on_reject[at]
        return ~at - 1

    def token(self, numbers: Sequence[float], end: int, randomness: Randomness) -> int:
        """The token after the node where the path ends."""
        emit = self.decision.emit
        if not emit.is_cpu:
            return int(numbers[len(numbers) - len(emit) + end + 1])
        uniform = randomness.uniform(self.request.seed, len(self.request), Purpose.EMIT)
        return draw(emit[end + 1 : end + 2], [uniform])[0]


def to_host(pending: Sequence[Pending]) -> list[list[float]]:
    """The numbers of each, in one transfer."""
    if not pending:
        return []
    together = torch.cat([wait.numbers for wait in pending]).tolist()
    ends = list(itertools.accumulate(len(wait.numbers) for wait in pending))
    return [
        together[end - len(wait.numbers) : end] for wait, end in zip(pending, ends, strict=True)
    ]


class DecisionRule(ABC):
    """A rule that is nothing but its decision: it can be enumerated, and it is walked like any other.

    A class whose decisions the kernels know says so when it is made: `class TokenRule(DecisionRule,
    native="token")`. What inherits from it may decide otherwise, so it has to say so again.
    """

    name: str
    exactness = Exactness.DISTRIBUTIONAL
    native: ClassVar[str | None] = None

    def __init_subclass__(cls, native: str | None = None) -> None:
        super().__init_subclass__()
        cls.native = native

    @abstractmethod
    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        """The tests of a draft against the target's rows [n + 1, V], without any randomness.

        Raises:
            ConfigError: for a draft that the rule does not take.
        """

    def check(self, draft: Draft) -> None:
        """Refuse a draft that the rule does not take.

        Raises:
            ConfigError: naming a rule that does.
        """

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        """Verify the drafts of a round, as `forerun.contracts.Verifier` says: in one call of the
        kernels where they can, else in torch with one transfer from the device for all of them."""
        for draft in drafts:
            self.check(draft)
        verdicts: dict[int, Verdict] = {}
        if self.native is not None:
            verdicts |= rows.verify_natively(self.native, randomness)
        if len(verdicts) < len(drafts):
            verdicts |= self._verify_in_torch(verdicts, drafts, rows, requests, randomness)
        for index in range(len(drafts)):
            if index not in verdicts:
                verdicts[index] = self._row_by_row(index, drafts, rows, requests[index], randomness)
        return [verdicts[index] for index in range(len(drafts))]

    def _verify_in_torch(
        self,
        done: Container[int],
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> dict[int, Verdict]:
        """The verdicts that no hook and no broken row can change."""
        pending: dict[int, Pending] = {}
        for index, (draft, request) in enumerate(zip(drafts, requests, strict=True)):
            if index not in done and request.params.mask is None:
                probs, broken = rows.unchecked(index)
                decision = self.decide(draft, probs)
                pending[index] = Pending.of(request, decision, broken, randomness)
        verdicts = {}
        for (index, wait), numbers in zip(
            pending.items(), to_host(list(pending.values())), strict=True
        ):
            if not wait.is_broken(numbers):
                end = wait.end(numbers, randomness)
                token = wait.token(numbers, end, randomness)
                verdicts[index] = Verdict.of(drafts[index], end, token)
        return verdicts

    def _row_by_row(
        self,
        index: int,
        drafts: Sequence[Draft],
        rows: TargetRows,
        request: Request,
        randomness: Randomness,
    ) -> Verdict:
        """Verify a draft whose rows may fail: with a hook, or where one is not a distribution."""
        draft, reachable = drafts[index], rows.reachable(index)
        if -1 in reachable.errors:
            return Verdict.up_to(draft, -1, reachable.errors[-1])
        decision = self.decide(reachable.draft, reachable.probs)
        wait = Pending.of(request, decision, reachable.probs.new_zeros(0), randomness)
        wait = replace(wait, nodes=reachable.nodes)
        [numbers] = to_host([wait])
        end = wait.end(numbers, randomness)
        node = reachable.nodes[end] if end >= 0 else -1
        if end in reachable.errors:
            return Verdict.up_to(draft, node, reachable.errors[end])
        return Verdict.of(draft, node, wait.token(numbers, end, randomness))


def normalized(rows: Tensor, fallback: Tensor) -> Tensor:
    """Rows [N, V] scaled to sum to one; a row that sums to zero becomes its `fallback`."""
    total = rows.sum(-1, keepdim=True)
    smallest = torch.finfo(rows.dtype).tiny
    return (rows / total.clamp_min(smallest)).where(total > 0, fallback)
