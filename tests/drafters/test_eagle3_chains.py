"""Chains that a head drafts in one call of the kernels are those that the drafter steps through."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.contracts import CausalLM, ChainRequest
from forerun.core import Draft, ForwardOutput, Plan, Request, Verdict
from forerun.drafters.base import HeadDrafter
from forerun.drafters.eagle3 import Eagle3Drafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import CheckpointError
from forerun.heads.eagle3 import Eagle3Head
from forerun.heads.files import HeadFiles
from forerun.models.modules import modules_for
from forerun.params import SamplingParams
from forerun.policies.base import BasePolicy
from forerun.randomness import Randomness
from tests.helpers.eagle_heads import VARIANTS, Made, write
from tests.helpers.head_checks import GREEDY, PENALTIES, PROMPTS, SAMPLED, SEEDED, target
from tests.helpers.kernel_models import needs_kernels

pytestmark = needs_kernels


FILTERED = SamplingParams(max_tokens=12, temperature=0.7, top_k=9, min_p=0.02)
# Of which chains are drafted in one call.
CHAINS = [name for name, made in VARIANTS.items() if not made.regression]


def head_of(folder: Path, made: Made, on: CausalLM) -> Eagle3Head:
    return Eagle3Head.open(on, HeadFiles.open(write(folder, made, "vllm")))


class Stepping(Eagle3Drafter):
    """Drafts node by node."""

    draft = HeadDrafter.draft


class Twins(Eagle3Drafter):
    """Drafts in one call, compared with a drafter of the same head that steps, bit for bit."""

    def __init__(self, head: Eagle3Head, on: CausalLM, least: float = 0.0) -> None:
        rest = (on.vocab_size, 3, on.max_context)
        super().__init__(head, *rest)
        self.stepping = Stepping(head, *rest)
        self.least = self.stepping.least = least
        self.compared: list[int] = []
        self.calls: list[int] = []
        draft_chains = head.draft_chains

        def counted(requests: Sequence[ChainRequest], *rest: Any) -> list[Draft]:
            self.calls.append(len(requests))
            return draft_chains(requests, *rest)

        vars(head)["draft_chains"] = counted

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = super().propose(requests, plans, randomness)
        stepped = self.stepping.propose(requests, plans, randomness)
        for request, draft, other in zip(requests, drafts, stepped, strict=True):
            assert (draft.token_ids, draft.tree) == (other.token_ids, other.tree)
            assert (draft.probs is None) == (other.probs is None)
            if isinstance(draft.probs, torch.Tensor):
                assert isinstance(other.probs, torch.Tensor)
                assert torch.equal(draft.probs, other.probs)
            assert self.cache.length(request.row) == self.stepping.cache.length(request.row)
            self.compared.append(len(draft))
        return drafts

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        super().observe(requests, drafts, verdicts, output)
        self.stepping.observe(requests, drafts, verdicts, output)

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        super().observe_prefill(request, start, output)
        self.stepping.observe_prefill(request, start, output)

    def clear_row(self, row: int) -> None:
        super().clear_row(row)
        self.stepping.clear_row(row)


def run(on: CausalLM, drafter: Twins, *batches: tuple[list[list[int]], Any]) -> None:
    """Answer some batches of prompts with one engine."""
    settings = SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
    engine = Engine(on, drafter, settings, max_batch_size=3)
    engine.use_seeds(count(1).__next__)
    for prompts, params in batches:
        engine.generate(prompts, params)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SEEDED, FILTERED])
@pytest.mark.parametrize("variant", CHAINS)
def test_one_call_drafts_what_steps_do(
    tmp_path: Path, variant: str, params: SamplingParams
) -> None:
    """In ragged batches, of prompts of different lengths."""
    on = target("kernels", "fp32")
    drafter = Twins(head_of(tmp_path, VARIANTS[variant], on), on)
    run(on, drafter, (PROMPTS, params))
    assert sum(drafter.compared) >= 18
    assert 3 in drafter.calls


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_in_every_precision(tmp_path: Path, dtype: str) -> None:
    on = target("kernels", dtype)
    drafter = Twins(head_of(tmp_path, VARIANTS["layers"], on), on)
    mixed = [GREEDY, SAMPLED, SEEDED]
    run(on, drafter, (PROMPTS, mixed), ([[7 * at % 61 for at in range(40)]], SAMPLED))
    assert sum(drafter.compared) >= 24


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SEEDED, PENALTIES])
def test_chains_end_where_little_is_expected(tmp_path: Path, params: SamplingParams) -> None:
    """At the same tokens, before the first or later."""
    on = target("kernels", "fp32")
    drafter = Twins(head_of(tmp_path, Made(), on), on, least=0.02)
    run(on, drafter, (PROMPTS, params))
    assert {0, 1, 2, 3} & {*drafter.compared} >= {1, 2}


class Whole(BasePolicy):
    name = "whole"

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        return [Plan(3, whole=True)] * len(requests)


@pytest.mark.parametrize("params", [SAMPLED, PENALTIES])
def test_where_drafts_are_timed_all_of_them_is_drafted(
    tmp_path: Path, params: SamplingParams
) -> None:
    """However little is expected, in one call and in steps."""
    on = target("kernels", "fp32")
    drafter = Twins(head_of(tmp_path, Made(), on), on, least=1.0)
    engine = Engine(on, drafter, SpeculativeConfig(), policy=Whole())
    engine.use_seeds(
        count().__next__
    )  # Of some seeds so much is accepted that few rounds are left.
    engine.generate(PROMPTS[:1], params)
    # Fewer only where fewer are left to emit.
    assert drafter.compared.count(3) >= 5
    assert {*drafter.compared[:5]} == {3}


def test_rows_go_on_from_what_they_share(tmp_path: Path) -> None:
    """The same beginning, another end, a batch with penalties, which is stepped, and chains again."""
    on = target("kernels", "fp32")
    drafter = Twins(head_of(tmp_path, Made(), on), on)
    again = [[*PROMPTS[0], 8, 1], PROMPTS[1]]
    run(on, drafter, (PROMPTS, GREEDY), (again, SEEDED), (PROMPTS, PENALTIES), (again, SAMPLED))
    assert sum(drafter.compared) >= 60


def test_a_draft_that_was_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    """What ended between the call and its end is drafted again, to the same tokens."""
    on = target("kernels", "fp32")

    class Interrupted(Twins):
        interrupted = 0

        def draft(
            self, requests: list[Request], plans: list[Plan], missing: Any, randomness: Randomness
        ) -> list[Draft]:
            self.features.ran, ran = lambda *_: self.stop(), self.features.ran  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                super().draft(requests, plans, missing, randomness)
            self.features.ran = ran  # type: ignore[method-assign]
            found: Any = [self.features.missing(request) for request in requests]
            return super().draft(requests, plans, found, randomness)

        def stop(self) -> None:
            self.interrupted += 1
            raise KeyboardInterrupt

    drafter = Interrupted(head_of(tmp_path, VARIANTS["layers"], on), on)
    run(on, drafter, (PROMPTS, SAMPLED))
    assert drafter.interrupted > 3
    assert sum(drafter.compared) >= 18


@pytest.mark.parametrize("variant", ["regression", "no-product"])
def test_what_no_call_drafts_is_stepped(tmp_path: Path, variant: str) -> None:
    """The older heads, and those whose logits the target's whole output head makes."""
    on = target("kernels", "fp32")
    lent = Made(own_head=False, draft_vocab=61)
    head = head_of(tmp_path, VARIANTS.get(variant, lent), on)
    assert not head.drafts_chains
    assert not head_of(tmp_path / "torch", Made(), target("torch", "fp64")).drafts_chains


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    on = target("kernels", "fp32")
    head = head_of(tmp_path, Made(), on)
    parts = head._parts()
    assert parts is not None
    build = modules_for(on).head_chains
    for wrong in (
        {"token_ids": tuple(parts.token_ids)[::-1]},
        {"token_ids": ()},
        {"layers": ()},
        {"fuse": parts.output},
        {"vocab_size": 5},
    ):
        with pytest.raises(CheckpointError, match="cannot run"):
            build(type(parts)(**{**vars(parts), **wrong}))
