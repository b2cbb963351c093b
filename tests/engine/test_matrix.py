"""Every drafter, rule, sampler and batch of the matrix, through the engine's own rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, cycle

import pytest
import torch
from torch import Tensor

from forerun.core import Draft, Request, Verdict
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, warp
from forerun.verification import RULES, TargetRows
from tests.matrix import CASES, DRAFTERS, PROMPTS, ROWS, SAMPLERS, TARGET, DrafterCase

TOKENS = 24


def make_engine(case: DrafterCase, rule: str) -> Engine:
    config = SpeculativeConfig(
        num_speculative_tokens=3,
        rejection_sample_method=rule,
        draft_sample_method=case.draft_sample_method,
        policy="fixed",
        **case.config,
    )
    engine = Engine(TARGET, case.make(), config, max_batch_size=ROWS)
    # Of some seeds a looked-up text finds nothing in so few tokens.
    engine.use_seeds(count().__next__)
    return engine


def plain(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    stream = engine.stream_plain(prompt, params)
    for _ in stream:
        pass
    return stream.completion.token_ids


class SpyingRule:
    """Checks that every row handed to a rule is the one that plain decoding would draw from."""

    def __init__(self, name: str) -> None:
        self.rule = RULES[name]()
        self.name, self.exactness = name, self.rule.exactness
        self.drafted = 0

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        for index, (draft, request) in enumerate(zip(drafts, requests, strict=True)):
            self.check(draft, rows.probs(index), request)
        return self.rule.verify(drafts, rows, requests, randomness)

    def check(self, draft: Draft, target_probs: Tensor, request: Request) -> None:
        # Behind a token that the target excludes there is nothing to be followed.
        allowed, parents = (target_probs > 0).tolist(), draft.tree.parents
        nodes = [
            node
            for node in range(-1, len(draft))
            if all(
                allowed[parents[one] + 1][draft.token_ids[one]] for one in draft.tree.path_to(node)
            )
        ]
        drafted = [draft.tokens_to(node) for node in nodes]
        logits = [TARGET.next_logits([*request.token_ids, *tokens]) for tokens in drafted]
        rows = warp(torch.stack(logits), [Prefix(request, tuple(tokens)) for tokens in drafted])
        found = target_probs[[node + 1 for node in nodes]]
        torch.testing.assert_close(found, rows, rtol=0, atol=1e-14)
        if isinstance(draft.probs, Tensor):
            drawn = draft.probs[torch.arange(len(draft)), list(draft.token_ids)]
            assert (drawn > 0).all()
            torch.testing.assert_close(
                draft.probs.sum(-1), torch.ones(len(draft), dtype=torch.float64)
            )
        self.drafted += len(draft)


@pytest.mark.parametrize(("case", "rule", "sampler", "batch"), CASES)
def test_speculation_changes_nothing(
    case: DrafterCase, rule: str, sampler: str, batch: str
) -> None:
    """Greedy and coupled outputs equal the plain loop's, token for token. For all others the rows
    that the rule judges are exactly those of plain decoding; what the rule makes of exact rows is
    enumerated in tests/verification."""
    params = replace(SAMPLERS[sampler], max_tokens=TOKENS)
    reproducible = params.greedy or rule in ("auto", "coupled")
    if reproducible:
        params = replace(params, seed=7)
    engine = make_engine(case, rule)
    spies = {name: SpyingRule(name) for name in RULES}
    engine._parts.rules.update(spies)

    completions = engine.generate(PROMPTS[batch], params, hints=case.hints)

    assert sum(spy.drafted for spy in spies.values()) > 0, "nothing was speculated"
    for prompt, completion in zip(PROMPTS[batch], completions, strict=True):
        assert len(completion.token_ids) == TOKENS
        if reproducible:
            assert completion.token_ids == plain(engine, prompt, params)


def test_a_seed_gives_the_same_text_whatever_surrounds_it() -> None:
    """Drafter, length, policy and batch differ; the seeded output does not."""
    params = SamplingParams(seed=3, max_tokens=TOKENS, top_p=0.9)
    outputs = set()
    for case, (length, policy) in zip(DRAFTERS, cycle([(3, "fixed"), (5, "adaptive")])):
        config = SpeculativeConfig(num_speculative_tokens=length, policy=policy, **case.config)
        engine = Engine(TARGET, case.make(), config, max_batch_size=ROWS)
        found = engine.generate(PROMPTS["ragged"], params, hints=case.hints)
        outputs.add(found[0].token_ids)
    assert len(outputs) == 1


def test_different_seeds_differ() -> None:
    engine = Engine(TARGET)
    outputs = {
        engine.generate([[1, 2, 3]], SamplingParams(seed=seed, max_tokens=TOKENS))[0].token_ids
        for seed in range(20)
    }
    assert len(outputs) == 20
