"""A drafter with a head, every draft of which is compared with what straight-line code says of that head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import NO_DRAFT, Draft, Plan, Request
from forerun.drafters.base import HeadDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.models.checkpoint import model_from_tensors
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from tests.helpers.tiny_models import tiny_config, tiny_model

PROMPTS = [[3, 14, 15, 9, 2, 6], [5], [*range(40, 60), 7]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SAMPLED = SamplingParams(max_tokens=12, top_p=0.95)
SEEDED = SamplingParams(max_tokens=12, seed=3)
PENALTIES = SamplingParams(max_tokens=12, repetition_penalty=1.3, banned_token_ids=(4,))
SHAPE = [-1, -1, -1, 0, 0, 1, 3]


@cache
def target(backend: str, dtype: str) -> CausalLM:
    model = tiny_model("llama")
    return model_from_tensors(
        tiny_config("llama"), model.state_dict(), dtype=dtype, backend=backend, name="tiny"
    )


class Compared(HeadDrafter):
    """Compares every draft with that of a reference, grown by the same rules from its logits.

    Attributes:
        atol: between the rows that tokens were drawn from.
        lengths: of the drafts, and those planned.
    """

    atol: float
    lengths: list[tuple[int, int]]

    @abstractmethod
    def expected(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        """The draft by the reference."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = super().propose(requests, plans, randomness)
        for request, plan, draft in zip(requests, plans, drafts, strict=True):
            expected = NO_DRAFT
            # Of a prompt of one token the target has run nothing yet.
            if plan.num_tokens and len(request) > 1:
                expected = self.expected(request, plan, randomness)
                self.lengths.append((len(draft), plan.num_tokens))
            assert (draft.token_ids, draft.tree) == (expected.token_ids, expected.tree)
            assert (draft.probs is None) == (expected.probs is None)
            if isinstance(expected.probs, Tensor):
                torch.testing.assert_close(draft.probs, expected.probs, rtol=0, atol=self.atol)
        return drafts


def generate(
    on: CausalLM,
    drafter: Compared,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    **config: Any,
) -> None:
    """Generate in a batch; some tokens are drafted."""
    drafter.lengths = []
    settings = SpeculativeConfig(num_speculative_tokens=3, policy="fixed", **config)
    engine = Engine(on, drafter, settings, max_batch_size=3)
    # The same texts in every run: rounding grows from step to step, in rare texts beyond any tolerance.
    engine.use_seeds(count(1).__next__)
    completions = engine.generate(list(prompts), params)
    assert all(len(completion.token_ids) == params.max_tokens for completion in completions)
    assert sum(length for length, _ in drafter.lengths) >= 6
