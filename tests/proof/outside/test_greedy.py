"""Verdicts on the first difference of two answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forerun.proof.outside.greedy import (
    AT_ONCE,
    DEFECT,
    ROUNDING,
    UNCLEAR,
    GreedyComparison,
    GreedyResult,
    Noise,
    SituationResult,
    _divergence,
)
from forerun.proof.outside.reply import Reply, Spoken
from forerun.proof.outside.report import greedy_scope


@pytest.mark.parametrize(("told", "verdict"), [(True, DEFECT), (False, UNCLEAR)])
def test_a_limit_ends_tokens_and_not_characters(told: bool, verdict: str) -> None:
    """One answer goes on where the other ended; without tokens both may have as many."""
    short, long = ("New",), ("New", " York")
    on, off = (
        Spoken(
            "".join(texts),
            texts if told else tuple("".join(texts)),
            texts if told else (),
            (),
            (),
            "length",
        )
        for texts in (short, long)
    )
    subject: Any = SimpleNamespace(is_reference=False)
    found = _divergence(0, subject, ("Where?", {"max_tokens": 1}), on, off, Noise([0.1 / 3]))
    assert found is not None
    assert found.verdict == verdict


class Repeats:
    """A subject that gives every prompt the same four tokens."""

    is_reference = one_at_a_time = False

    def ask(self, prompts: list[str], body: Any, at_once: int = 1) -> list[Reply]:
        spoken = Spoken("abcd", (1, 2, 3, 4), tuple("abcd"), (None,) * 4, (), "length")
        return [Reply((spoken,)) for _ in prompts]


def test_prompts_given_again_are_no_further_tokens() -> None:
    subject: Any = Repeats()
    result = GreedyComparison(subject, subject, ["one", "two"], 4).run(600.0)
    counts = {one.name: (one.tokens, one.distinct_tokens) for one in result.situations}
    assert counts["plain"] == (8, 8)
    assert [counts[f"{count} at once"] for count in AT_ONCE] == [(16, 8), (64, 8)]


def scope(noise: Noise, *tokens: tuple[int, int]) -> str:
    """Sentences on a result, whose situations have so many tokens, and distinct ones."""
    situations = [SituationResult("some", 1, *counts) for counts in tokens]
    control = {"tokens": 0, "defects": 0}
    return " ".join(greedy_scope(GreedyResult(noise, situations, control)))


def test_the_smallest_situation_bounds_what_is_missed() -> None:
    assert "one token in 100 would be missed" in scope(Noise(), (900, 900), (4800, 300))
    assert "299 distinct tokens are too few" in scope(Noise(), (900, 900), (4800, 299))


@pytest.mark.parametrize("noise", [Noise([1e-4], [3.0]), Noise([1.0])])
def test_far_differences_are_never_rounding_whatever_plain_decoding_does(noise: Noise) -> None:
    """They prove no defect either where plain decoding differs as far."""
    assert [noise.judge(margin) for margin in (1.0, 1.1, 3.0, 3.1)] == [
        ROUNDING,
        UNCLEAR,
        UNCLEAR,
        DEFECT,
    ]
    assert noise.allowed == 1.0
    assert "reaches 3, so differences of up to that remain unclear" in scope(noise)


def test_measured_flips_are_named_and_no_assumption() -> None:
    """Of the two assumptions one remains, on prefill."""
    apart = "differed, in tokens up to 0.7 apart"
    assert f"{apart}, which is allowed for too." in scope(Noise([0.01], [0.2, 0.7]))
    told, untold = scope(Noise([], [0.7])), scope(Noise())
    assert f"{apart}. Differences of more than 0.7 remain unclear." in told
    assert "Differences of more than 0.001, an assumption, remain unclear." in untold
    assert [text.count("an assumption") for text in (told, untold)] == [1, 2]
