"""The compiled form of the rules that decide: the same decisions, and the same walk over them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from forerun import _native
from forerun._native import rows as native
from forerun.core import Draft, Sequence, Verdict
from forerun.errors import DistributionError
from forerun.randomness import Purpose, Randomness
from forerun.verification.decision import Decision, DecisionRule

Rule = Literal["token", "block", "traversal"]


class CompiledRule(DecisionRule):
    """A rule of which the kernels know a compiled form, by the name in `compiled_as`."""

    compiled_as: Rule

    def check(self, draft: Draft) -> None:
        """Refuse a draft that the rule cannot judge.

        Raises:
            ConfigError: naming a rule that can.
        """

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        self.check(draft)
        if name_of(self) is not None and takes(draft, target_probs):
            return verify(self.compiled_as, draft, target_probs, sequence, randomness)
        return super().verify(draft, target_probs, sequence, randomness)


def name_of(rule: Any) -> str | None:
    """What the kernels call a rule, if its own class says so: one that inherits may decide otherwise."""
    name: str | None = vars(type(rule)).get("compiled_as")
    return name


def takes(draft: Draft, target_probs: Tensor) -> bool:
    """Whether the kernels can judge this draft."""
    drawn_from = draft.probs
    if not isinstance(drawn_from, Tensor):
        return drawn_from is None and native.takes(target_probs)
    return native.takes(target_probs) and drawn_from.is_cpu


def decide(rule: Rule, draft: Draft, target_probs: Tensor) -> Decision:
    accept, on_accept, on_reject, start, emit = native.decide(
        rule,
        draft.token_ids,
        draft.parents,
        target_probs,
        _draft_rows(draft, target_probs),
    )
    passes = torch.tensor(accept, dtype=target_probs.dtype)
    return Decision(passes, tuple(on_accept), tuple(on_reject), start, emit)


def verify(
    rule: Rule, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
) -> Verdict:
    """What walking the decision comes to; only the part of it that the walk comes by is made."""
    seed, committed = sequence.seed, len(sequence)

    def ask(purpose: int, node: int) -> float:
        return randomness.uniform(seed, committed, Purpose(purpose), node)

    end, token = native.verify(
        rule,
        draft.token_ids,
        draft.parents,
        target_probs,
        _draft_rows(draft, target_probs),
        seed,
        committed,
        None if randomness.by_key_alone else ask,
    )
    return Verdict.of(draft, end, token)


def judge(
    rule: str, draft: Draft, logits: Tensor, sequence: Sequence, randomness: Randomness
) -> Verdict | None:
    """Warp the target's logits [n + 1, V] and verify in one call; None where that takes more than
    the kernels know: penalties, masks, a record of keys, rows elsewhere than in memory.

    Raises:
        DistributionError: for a row that is NaN or infinite, or that leaves no token possible.
    """
    params = sequence.params
    if params.adjusts or not randomness.by_key_alone or not takes(draft, logits):
        return None
    if rule == "block" and not draft.is_chain:
        return None
    try:
        end, token = native.judge(
            rule,
            draft.token_ids,
            draft.parents,
            logits,
            _draft_rows(draft, logits),
            (params.temperature, params.top_k, params.top_p, params.min_p),
            sequence.seed,
            len(sequence),
        )
    except _native.kernels.RowError as error:
        raise DistributionError(f"{error}.") from None
    except ValueError:
        return None  # A draft that is none: step by step it is refused in its own words.
    return Verdict.of(draft, end, token)


def _draft_rows(draft: Draft, target_probs: Tensor) -> Tensor | None:
    if not isinstance(draft.probs, Tensor):
        return None
    return draft.probs.to(target_probs.dtype).contiguous()
