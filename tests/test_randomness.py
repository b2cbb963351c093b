"""Random numbers are functions of their keys, uniform, and never drawn twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.randomness import Key, Purpose, Randomness
from tests.matrix import DRAFTERS, PROMPTS, ROWS, TARGET, DrafterCase


def test_splitmix64_known_answers() -> None:
    """The first outputs of the published generator for seed 1234567 (Vigna's splitmix64.c)."""
    from forerun.randomness import _GOLDEN, _MASK, _mix

    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + _GOLDEN) & _MASK
        outputs.append(_mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_numbers_are_functions_of_their_keys() -> None:
    key = (5, 17, Purpose.ACCEPT, 2)
    assert Randomness().uniform(*key) == Randomness().uniform(*key)
    others = [(6, 17, Purpose.ACCEPT, 2), (5, 18, Purpose.ACCEPT, 2), (5, 17, Purpose.EMIT, 2)]
    assert len({Randomness().uniform(*one) for one in [key, *others]}) == 4
    assert torch.equal(Randomness().gumbel(5, 17, 100), Randomness().gumbel(5, 17, 100))


def test_noise_of_a_longer_vocabulary_starts_with_that_of_a_shorter() -> None:
    """Padding a vocabulary must not change what is drawn."""
    noise = Randomness().gumbel(1, 2, 64)
    assert torch.equal(noise[:32], Randomness().gumbel(1, 2, 32))


@pytest.mark.parametrize("varied", ["seed", "position", "node"])
def test_uniforms_are_uniform_along_every_part_of_the_key(varied: str) -> None:
    """Kolmogorov-Smirnov at level 1e-6 and no correlation between neighbours."""
    source, count = Randomness(), 4000
    keys = [
        {"seed": 1, "position": 2, "purpose": Purpose.DRAFT, "node": 3} | {varied: index}
        for index in range(count)
    ]
    numbers = np.array([source.uniform(**key) for key in keys])  # type: ignore[arg-type]
    steps = np.arange(1, count + 1) / count
    distance = np.abs(np.sort(numbers) - steps).max()
    assert distance < 2.7 / count**0.5
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / count**0.5
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_gumbel_noise_has_its_distribution() -> None:
    noise = Randomness().gumbel(3, 4, 50_000).numpy()
    assert np.isfinite(noise).all()
    ordered = np.exp(-np.exp(-np.sort(noise)))
    steps = np.arange(1, len(noise) + 1) / len(noise)
    assert np.abs(ordered - steps).max() < 2.7 / len(noise) ** 0.5


def with_rules() -> list[Any]:
    """Every drafter with each of its rules: one of them quickly, in turns."""
    cases = []
    for number, case in enumerate(DRAFTERS):
        # Without a seed auto is one of the others.
        rules = [rule for rule in case.rules if rule != "auto"]
        for place, rule in enumerate(rules):
            slow = [pytest.mark.slow] * (place != number % len(rules))
            cases.append(pytest.param(case, rule, id=f"{case.name}-{rule}", marks=slow))
    return cases


@pytest.mark.parametrize(("case", "rule"), with_rules())
def test_no_key_is_drawn_twice(case: DrafterCase, rule: str) -> None:
    """Whole runs, ragged and with plain rounds between: only the shared noise comes up again."""
    keys: list[Key] = []
    config = SpeculativeConfig(
        num_speculative_tokens=3,
        rejection_sample_method=rule,
        draft_sample_method=case.draft_sample_method,
        policy="adaptive",
    )
    engine = Engine(
        TARGET,
        case.make(),
        config,
        max_batch_size=ROWS,
        randomness=Randomness(keys.append),
    )
    engine.generate(PROMPTS["ragged"] * 3, SamplingParams(max_tokens=60))
    assert len(keys) > 300
    private = [key for key in keys if key.purpose is not Purpose.NOISE]
    assert len(private) == len(set(private))
