"""Verdicts say what the figures say, and claim nothing that these do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.bench.pairs import ALL, MeasuredPair, loops, picked_fairly, summarize
from forerun.bench.settings import COLD, DEFAULT
from forerun.bench.verdict import Recommendation, defects, verdicts
from tests.helpers.bench_rows import failed_row, made_row


def rows_of(setting: str, speedups: Sequence[float], category: str = "code") -> list[MeasuredPair]:
    return [made_row(setting, n, value, category=category) for n, value in enumerate(speedups)]


def only(rows: Sequence[MeasuredPair]) -> Recommendation:
    [verdict] = verdicts(summarize(rows))
    return verdict


def about(value: float, count: int = 20) -> list[float]:
    """Speed-ups whose median's interval is a few per cent wide."""
    return [value * factor for factor in np.linspace(0.95, 1.05, count)]


def test_a_clear_winner_is_named_with_what_it_gains() -> None:
    rows = rows_of("suffix, 6 tokens", about(1.3)) + rows_of("eagle3, 3 tokens", about(0.8))
    verdict = only(rows)
    assert verdict.use == "suffix, 6 tokens"
    assert verdict.advice.startswith("use suffix, 6 tokens: 1.30 x (1.2")
    assert "eagle3 loses, 0.80 x" in "; ".join(verdict.details)


def test_nothing_that_may_be_noise_is_recommended() -> None:
    for value, words in (
        (0.8, "every setting is slower"),
        (1.0, "nothing is faster"),
        (1.02, "may be"),
    ):
        verdict = only(
            rows_of("suffix, 6 tokens", np.linspace(value - 0.3, value + 0.3, 9).tolist())
        )
        assert verdict.use is None
        if value == 0.8:
            verdict = only(rows_of("suffix, 6 tokens", about(value)))
        assert verdict.advice.startswith("decode plainly")
        assert words in verdict.advice
    few = only(rows_of("suffix, 6 tokens", about(2.0, 3)))
    assert few.use is None
    assert few.advice.startswith("too few prompts")


def test_where_it_loses_is_said() -> None:
    rows = [
        *rows_of("suffix, 6 tokens", about(1.5, 30), "code"),
        *rows_of("suffix, 6 tokens", about(0.9, 9), "qa"),
        *rows_of("ngram, 3 tokens", about(1.2, 30), "code"),
        *rows_of("ngram, 3 tokens", about(1.1, 9), "qa"),
    ]
    verdict = only(rows)
    text = "; ".join(verdict.details)
    assert verdict.use == "suffix, 6 tokens"
    assert "it loses on qa (0.90 x)" in text
    assert "better there: ngram, 3 tokens on qa" in text


@pytest.mark.parametrize("cold", [0.8, 1.3, 2.0])
@pytest.mark.parametrize("warm", [0.9, 1.3])
def test_the_cold_default_is_told_and_never_recommended(cold: float, warm: float) -> None:
    """It is the first request on a new machine, and nothing that one can choose."""
    others = [
        row
        for category in ("code", "qa")
        for row in (
            *rows_of(DEFAULT, about(warm), category),
            *rows_of("a, 3 tokens", about(1.2), category),
        )
    ]
    rows = [*others, *rows_of(COLD, about(cold), "code"), *rows_of(COLD, about(cold), "qa")]
    without, verdict = only(others), only(rows)
    assert verdict.use == without.use == (DEFAULT if warm > 1.2 else "a, 3 tokens")
    assert (verdict.advice, verdict.details[:-1]) == (without.advice, without.details)
    told = verdict.details[-1]
    assert f"the first request on a new machine reaches {cold:.2f} x (" in told


def test_a_cold_default_that_gains_alone_does_not_make_a_verdict() -> None:
    verdict = only(rows_of(COLD, about(2.0)) + rows_of(DEFAULT, about(0.8)))
    assert verdict.use is None
    assert "decode plainly" in verdict.advice
    assert "reaches 2.00 x" in verdict.details[-1]
    assert verdicts(summarize(rows_of(COLD, about(2.0)))) == []


def test_equals_are_called_equals() -> None:
    speedups = about(1.3)
    rows = rows_of("a, 3 tokens", speedups)
    rows += rows_of("b, 3 tokens", [s * f for s, f in zip(speedups, (0.9, 1.09) * 10, strict=True)])
    assert "as good within the noise" in "; ".join(only(rows).details)


def test_loops_stand_beside_the_figure() -> None:
    rows = rows_of("a, 3 tokens", about(1.2)) + [
        made_row("a, 3 tokens", n, 4.0, loops=1) for n in range(20, 25)
    ]
    assert "20% of the outputs repeat themselves, without them 1.20 x" in only(rows).advice
    assert loops([1, 2, 3, 4] * 9)
    assert not loops([1, 2, 3, 4] * 8)


def test_the_best_of_many_is_not_believed() -> None:
    """Settings that differ by noise alone: the best looks better than picking it fairly gives."""
    random = np.random.default_rng(0)
    gaps = []
    for _ in range(20):
        rows = [
            row
            for name in "abcdefgh"
            for row in rows_of(f"{name}, 3 tokens", random.normal(1.0, 0.3, 12).clip(0.2).tolist())
        ]
        cells = summarize(rows)
        fair = picked_fairly(cells)
        assert fair is not None
        gaps.append(max(cell.speedup.value for cell in cells) - fair.value)
    assert np.mean(gaps) > 0.1


def test_cells_add_up() -> None:
    rows = rows_of("a", about(1.2, 4), "code") + rows_of("a", about(1.1, 6), "qa")
    rows.append(failed_row("a", 99, "it broke"))
    whole, *parts = summarize(rows)
    assert (whole.category, len(whole.rows), len(whole.failed)) == (ALL, 10, 1)
    assert [len(part.rows) for part in parts] == [4, 6]
    assert whole.identical == (10, 10)
    content = whole.as_dict()
    assert content["inter_token_ms"]["p50"] == pytest.approx(100)
    assert content["tokens_per_target_forward"]["value"] == pytest.approx(12 / 5)
    assert content["mean_acceptance_length"]["value"] == pytest.approx(10 / 3)


def test_defects_are_found_and_rounding_is_none() -> None:
    rounding = [made_row("a", n, 1.0, differences=("numerics",)) for n in range(3)]
    assert not defects(summarize(rounding))
    [sentence] = defects(summarize([*rounding, made_row("a", 9, 1.0, differences=("defect",))]))
    assert "1 output of a" in sentence
