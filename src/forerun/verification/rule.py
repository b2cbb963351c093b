"""Base of all rules: a batch is verified in one call of the kernels, or with one transfer from the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from forerun.core import Draft, Exactness, Request, Verdict
from forerun.randomness import Randomness
from forerun.verification.target_rows import TargetRows


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
