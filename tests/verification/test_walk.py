"""The walk follows the decision, and the engine's sampled text follows the target's distribution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from forerun.core import Draft, Drawing, Plan, Request, Tree
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.randomness import Purpose, Randomness
from forerun.sampling import Prefix, warp
from forerun.testing import ToyModel, TreeDrafter
from forerun.theory.acceptance import end_probabilities
from forerun.verification import token, traversal
from forerun.verification.traversal import BlockRule
from tests.helpers.verification import walk

pytestmark = pytest.mark.usefixtures("form")


class Scripted(Randomness):
    """Uniforms chosen in advance."""

    def __init__(self, uniforms: dict[tuple[Purpose, int], float]) -> None:
        super().__init__()
        self.uniforms = uniforms

    def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
        return self.uniforms[purpose, node]


@pytest.mark.parametrize(
    "decide",
    [token.decide, BlockRule().decide, traversal.decide],
    ids=["token", "block", "traversal"],
)
def test_a_test_passes_just_below_its_probability_and_not_at_it(decide: object) -> None:
    """All ways through all tests of a chain: the walk ends where the decision says, and emits
    the token whose stretch of the row the uniform falls into."""
    request = Request(0, [1, 2], 2, SamplingParams(), seed=0)
    target, draft_model = ToyModel(4), ToyModel(4, noise=1.0)
    drafter = DraftModelDrafter(draft_model, 1, 99)
    request.row = 0
    draft = drafter.propose([request], [Plan(3, Drawing.SAMPLED)], Randomness())[0]
    logits = [target.next_logits([1, 2, *draft.tokens_to(node)]) for node in range(-1, 3)]
    rows = torch.stack(logits).softmax(-1)
    decision = decide(draft, rows)  # type: ignore[operator]
    accept = decision.accept.tolist()
    ends = set()
    for passes in itertools.product([False, True], repeat=3):
        if any(one and accept[test] == 0 for test, one in enumerate(passes)):
            continue  # no uniform passes this test
        at = decision.start
        while at >= 0:
            at = decision.on_accept[at] if passes[at] else decision.on_reject[at]
        end = ~at - 1
        uniforms: dict[tuple[Purpose, int], float] = {
            (Purpose.ACCEPT, test): np.nextafter(accept[test], 0) if one else accept[test]
            for test, one in enumerate(passes)
        }
        for emitted, edge in enumerate(decision.emit[end + 1].cumsum(0).tolist()):
            if decision.emit[end + 1, emitted] == 0:
                continue
            uniforms[Purpose.EMIT, 0] = edge - 1e-9
            verdict = walk(draft, decision, request, Scripted(uniforms))
            assert verdict.path == tuple(range(end + 1))
            assert verdict.token_ids == (*draft.tokens_to(end), emitted)
            ends.add(end)
    assert len(ends) >= 3


def engine_counts(drafter: object, rule: str, params: SamplingParams, runs: int) -> np.ndarray:
    config = SpeculativeConfig(
        num_speculative_tokens=3, rejection_sample_method=rule, policy="fixed"
    )
    engine = Engine(TARGET, drafter, config, max_batch_size=8)  # type: ignore[arg-type]
    counts = np.zeros((VOCAB,) * LENGTH)
    engine.use_seeds(itertools.count().__next__)
    for completion in engine.generate([[1, 2]] * runs, params):
        counts[completion.token_ids] += 1
    assert engine.stats.num_accepted_tokens > 0
    return counts


VOCAB, LENGTH, RUNS = 4, 3, 1500
TARGET, DRAFT = ToyModel(VOCAB, sharpness=1.0), ToyModel(VOCAB, sharpness=1.0, noise=0.7)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param("chain", "token", marks=pytest.mark.slow),
        ("chain", "block"),
        pytest.param("tree", "token", marks=pytest.mark.slow),
        pytest.param("tree", "traversal", marks=pytest.mark.slow),
    ],
)
def test_sampled_text_follows_the_targets_distribution(name: str, rule: str) -> None:
    """Chi-square of whole outputs against the known distribution, at a level of about 1e-6."""
    params = SamplingParams(temperature=0.9, presence_penalty=0.3, max_tokens=LENGTH)
    drafter = DraftModelDrafter(DRAFT, 8, 99) if name == "chain" else TreeDrafter(DRAFT)
    counts = engine_counts(drafter, rule, params, RUNS)
    expected = np.zeros_like(counts)
    for output in itertools.product(range(VOCAB), repeat=LENGTH):
        probability = 1.0
        for index, one in enumerate(output):
            request = Request(0, [1, 2, *output[:index]], 2, params, seed=0)
            logits = TARGET.next_logits(request.token_ids)
            probability *= warp(logits[None], [Prefix(request)])[0, one].item()
        expected[output] = probability * RUNS
    common = expected > 5
    statistic = ((counts - expected)[common] ** 2 / expected[common]).sum()
    rest = abs((counts - expected)[~common].sum())
    degrees = common.sum()
    assert degrees > 20
    assert statistic < degrees + 5.5 * (2 * degrees) ** 0.5
    assert rest < 6 * expected[~common].sum() ** 0.5 + 5


def test_enumeration_adds_up() -> None:
    """Every way through the tests ends somewhere."""
    draft = Draft(Tree((-1, -1, 0, 1)), (0, 1, 1, 2))
    decision = token.decide(draft, torch.full((5, 3), 1 / 3, dtype=torch.float64))
    ends = end_probabilities(
        decision.accept.numpy(), decision.on_accept, decision.on_reject, decision.start, 4
    )
    assert ends.sum() == pytest.approx(1.0)
