"""Warping and drawing: each option against its definition, and what must never come out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.core import Drawing, Request
from forerun.errors import ConfigError, DistributionError
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, check_token_ids, couple, draw, draw_siblings, warp

pytestmark = pytest.mark.usefixtures("form")


def prefix(params: SamplingParams, drafted: tuple[int, ...] = ()) -> Prefix:
    return Prefix(Request(0, [1, 2, 2, 5, 5, 5], 2, params, seed=9), drafted)


def warped(logits: list[float], drafted: tuple[int, ...] = (), **options: object) -> np.ndarray:
    row = torch.tensor([logits], dtype=torch.float64)
    return warp(row, [prefix(SamplingParams(**options), drafted)])[0].numpy()  # type: ignore[arg-type]


def softmax(logits: list[float]) -> np.ndarray:
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


LOGITS = [0.5, 2.0, -1.0, 1.5, 0.0, 1.0]


def test_temperature() -> None:
    np.testing.assert_allclose(warped(LOGITS), softmax(LOGITS))
    np.testing.assert_allclose(
        warped(LOGITS, temperature=0.5), softmax([2 * one for one in LOGITS])
    )


def test_greedy_is_one_hot_and_takes_the_lowest_id_on_ties() -> None:
    np.testing.assert_array_equal(warped([1.0, 3.0, 3.0], temperature=0.0), [0, 1, 0])


def test_the_lowest_temperature_is_greedy_and_finite() -> None:
    np.testing.assert_array_equal(warped(LOGITS, temperature=1e-5), [0, 1, 0, 0, 0, 0])


def test_top_k_keeps_ties_of_the_last() -> None:
    probs = warped([3.0, 1.0, 2.0, 2.0, 0.0], top_k=2)
    assert (probs > 0).tolist() == [True, False, True, True, False]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    row = [np.log(0.5), np.log(0.3), np.log(0.15), np.log(0.05)]
    np.testing.assert_allclose(warped(row, top_p=0.7), [0.625, 0.375, 0, 0])
    np.testing.assert_allclose(warped(row, top_p=0.81), np.array([0.5, 0.3, 0.15, 0]) / 0.95)
    np.testing.assert_allclose(warped(row, top_p=0.01), [1, 0, 0, 0])


@pytest.mark.parametrize("vocab_size", [4, 4096])
def test_top_p_keeps_the_lowest_ids_of_equal_tokens(vocab_size: int) -> None:
    """As many as begin before the limit: half of them, and one more beyond a half."""
    half = vocab_size // 2
    for top_p, count in ((0.5, half), (0.5 + 1e-9, half + 1)):
        kept = warped([0.0] * vocab_size, top_p=top_p)
        np.testing.assert_allclose(kept, (np.arange(vocab_size) < count) / count)


def test_min_p_is_relative_to_the_largest() -> None:
    row = [np.log(0.5), np.log(0.3), np.log(0.15), np.log(0.05)]
    np.testing.assert_allclose(warped(row, min_p=0.5), [0.625, 0.375, 0, 0])


def test_the_order_is_top_k_then_top_p_then_min_p() -> None:
    """Top-p sees the rows that top-k has renormalized: 0.5/0.8 is already more than 0.6."""
    row = [np.log(0.5), np.log(0.3), np.log(0.15), np.log(0.05)]
    np.testing.assert_allclose(warped(row, top_k=2, top_p=0.6), [1, 0, 0, 0])
    np.testing.assert_allclose(warped(row, top_p=0.6), [0.625, 0.375, 0, 0])


def test_penalties_count_prompt_output_and_drafted_tokens() -> None:
    """Prompt [1, 2], output [2, 5, 5, 5], drafted [3]."""
    probs = warped(LOGITS, (3,), repetition_penalty=2.0)
    np.testing.assert_allclose(probs, softmax([0.5, 1.0, -2.0, 0.75, 0.0, 0.5]))
    probs = warped(LOGITS, (3,), presence_penalty=1.0, frequency_penalty=0.5)
    np.testing.assert_allclose(probs, softmax([0.5, 2.0, -2.5, 0.0, 0.0, -1.5]))


def test_bias_bans_and_masks() -> None:
    np.testing.assert_allclose(
        warped(LOGITS, logit_bias={2: 3.0}), softmax([0.5, 2.0, 2.0, 1.5, 0.0, 1.0])
    )
    assert warped(LOGITS, banned_token_ids=(1,))[1] == 0
    assert (warped(LOGITS, allowed_token_ids=(0, 4)) > 0).tolist() == [1, 0, 0, 0, 1, 0]
    seen = []

    def mask(committed: object, drafted: object) -> list[bool]:
        seen.append((list(committed), list(drafted)))  # type: ignore[call-overload]
        return [True, False, False, False, False, False]

    np.testing.assert_array_equal(warped(LOGITS, (3, 4), mask=mask), [1, 0, 0, 0, 0, 0])
    assert seen == [([1, 2, 2, 5, 5, 5], [3, 4])]


@pytest.mark.parametrize(
    "mask",
    [
        [True, False, False, True, False, False],
        [1, 0, 0, 1, 0, 0],
        np.array([1, 0, 0, 1, 0, 0], dtype=np.uint8),
        torch.tensor([1, 0, 0, 1, 0, 0]),
        [0, 3],
        {3, 0},
        np.array([3, 0]),
        torch.tensor([0, 3], dtype=torch.int32),
    ],
    ids=repr,
)
def test_a_mask_allows_by_entries_or_by_ids(mask: object) -> None:
    assert (warped(LOGITS, mask=lambda *_: mask) > 0).tolist() == [1, 0, 0, 1, 0, 0]


def test_a_mask_that_lists_all_tokens_allows_all() -> None:
    for mask in (range(6), [1] * 6, None):
        assert (warped(LOGITS, mask=lambda *_, mask=mask: mask) > 0).all()


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([0.0, -torch.inf, -torch.inf, 0.0, -torch.inf, -torch.inf]),
        [0.0, -np.inf, np.nan, 0.0, 0.0, 0.0],
        [1.0] * 6,
        [1, 0, 0, 2, 0, 0],
        [1, 1, 0, 0],
        [True],
        [6],
        [-1],
        [[0, 3]],
        [[0], [1, 2]],
        3,
        True,
        "x",
        {1: 2},
        pytest.param(object(), id="object"),
    ],
    ids=repr,
)
def test_what_is_no_mask_is_refused(mask: object) -> None:
    """A mask that is added to logits above all: read as bool it would allow what it bans."""
    with pytest.raises(ConfigError, match="the mask hook returned"):
        warped(LOGITS, mask=lambda *_: mask)


def test_rows_with_different_parameters_do_not_touch_each_other() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.5, presence_penalty=1.0),
        SamplingParams(temperature=0.0),
    ]
    together = warp(logits, [prefix(one) for one in params])
    for row, one in enumerate(params):
        torch.testing.assert_close(
            together[row : row + 1], warp(logits[row : row + 1], [prefix(one)])
        )


def test_the_logits_are_left_alone() -> None:
    logits = torch.tensor([LOGITS])
    before = logits.clone()
    warp(logits, [prefix(SamplingParams(presence_penalty=1.0, banned_token_ids=(1,)))])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_are_refused(temperature: float) -> None:
    with pytest.raises(DistributionError, match="no token possible"):
        warped([-np.inf] * 3, temperature=temperature)
    for row in ([np.nan, 0.0, 0.0], [np.inf, 0.0, 0.0]):
        with pytest.raises(DistributionError, match="the model is broken"):
            warped(row, temperature=temperature)


def test_a_ban_on_everything_is_refused() -> None:
    with pytest.raises(DistributionError):
        warped([1.0, 2.0], banned_token_ids=(0, 1))
    with pytest.raises(ConfigError, match=r"mask hook returned torch\.bool"):
        warped(LOGITS, mask=lambda committed, drafted: [True])


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    logits=st.lists(st.one_of(st.floats(-50, 50), st.just(-np.inf)), min_size=1, max_size=9).filter(
        lambda row: max(row) > -np.inf
    ),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 50.0]),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_every_row_is_a_distribution_and_every_draw_is_possible(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for dtype in (torch.float32, torch.float64):
        probs = warp(torch.tensor([logits], dtype=dtype), [prefix(params)])
        assert torch.isfinite(probs).all()
        assert abs(probs.sum().item() - 1) < 1e-5
        assert probs[0, draw(probs, [uniform])[0]] > 0


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]], dtype=torch.float64)
    points = [0.0, 0.2499, 0.25, 0.9999, 1.0 - 2**-53]
    assert [draw(probs, [point])[0] for point in points] == [1, 1, 3, 3, 3]


def test_coupled_draws_follow_the_row() -> None:
    """Chi-square over 6000 positions; a critical value far out, the seed fixed."""
    probs = torch.tensor([[0.1, 0.2, 0.0, 0.3, 0.4]], dtype=torch.float64)
    source, counts = Randomness(), np.zeros(5)
    for position in range(6000):
        counts[couple(probs, source.gumbel(1, position, 5)[None])[0]] += 1
    expected = probs[0].numpy() * 6000
    assert counts[2] == 0
    kept = expected > 0
    assert ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum() < 30


def test_drafted_tokens_come_with_the_rows_that_they_were_drawn_from() -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(top_k=2)
    prefixes = [prefix(params)] * 3
    rows = warp(logits, prefixes)
    for drawing in Drawing:
        children = draw_siblings(logits, prefixes, drawing, [[0], [1], [2]], Randomness())
        for own, row, scores in zip(children, rows, logits, strict=True):
            [token] = own.token_ids
            assert row[token] > 0
            assert (own.rows is not None) == (drawing is Drawing.SAMPLED)
            if own.rows is not None:
                torch.testing.assert_close(own.rows[0], row)
            if drawing is Drawing.GREEDY:
                assert token == scores.argmax()


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ConfigError, match="banned_token_ids holds token id 7"):
        check_token_ids(SamplingParams(banned_token_ids=(7,)), 7)
