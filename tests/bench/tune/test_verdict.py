"""The verdict of tune is that of bench on the same figures, and its config says what the verdict does."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from forerun.bench.settings import DEFAULT
from forerun.bench.summary import summarize
from forerun.bench.tune.candidates import Candidate
from forerun.bench.tune.prediction import Prediction, predict
from forerun.bench.tune.records import RecordedOutput, Records
from forerun.bench.tune.report import advice_on, config_values, verdict
from forerun.bench.tune.run import Tuning
from forerun.bench.verdict import verdicts
from forerun.costs.table import CostTable
from tests.helpers.bench_rows import made_row
from tests.helpers.recorded import costs, output

MEASURED_AT = {"model": "m", "temperature": 0.5}


def tuned(speedups: dict[tuple[str, int], float], prompts: int = 12) -> Tuning:
    """Settings that were run at these speed-ups, which differ by a few per cent between prompts."""
    predictions = []
    for (name, num_tokens), gain in speedups.items():
        candidate = Candidate(name)
        rows = tuple(
            made_row(
                candidate.setting_name(num_tokens),
                number,
                gain / (0.97 + 0.06 * number / prompts),
                temperature=0.5,
            )
            for number in range(prompts)
        )
        predictions.append(Prediction(candidate, num_tokens, 1, rows, run=rows))
    return Tuning(predictions)


def test_figures_that_bench_has_too_get_its_verdict() -> None:
    made = {("suffix", 6): 1.3, ("ngram", 1): 1.1, ("token_recycling", 3): 0.7}
    tuning = tuned(made)
    rows = [
        made_row(name, number, gain / (0.97 + 0.06 * number / 12), temperature=0.5)
        for name, gain in zip(
            ("suffix, 6 tokens", "ngram, 1 token", "token_recycling, 3 tokens"),
            made.values(),
            strict=True,
        )
        for number in range(12)
    ]
    [expected] = verdicts(summarize(rows))
    found = tuning.verdict(1)
    assert (
        (found.use, found.where)
        == (expected.use, expected.where)
        == (
            "suffix, 6 tokens",
            "temperature 0.5",
        )
    )
    assert found.advice == expected.advice
    assert verdict(tuning, (1,))[0].startswith("use suffix, 6 tokens: 1.3")
    assert "token_recycling loses" in verdict(tuning, (1,))[0]


@pytest.mark.parametrize(
    ("gain", "prompts", "expected"),
    [
        (1.4, 12, {"method": "suffix", "num-speculative-tokens": 6}),
        (0.8, 12, {"speculative": False}),
        (1.0, 12, {"speculative": False}),
        # Too few prompts to tell: what forerun does by itself.
        (1.4, 4, {}),
    ],
)
def test_the_config_says_what_the_verdict_does(
    gain: float, prompts: int, expected: dict[str, object]
) -> None:
    tuning = tuned({("suffix", 6): gain}, prompts)
    assert config_values(tuning, 1, MEASURED_AT) == MEASURED_AT | expected


@pytest.mark.parametrize(
    ("default", "expected", "said"),
    [
        (1.6, {}, "use forerun's default: 1.6"),
        (
            1.2,
            {"method": "suffix", "num-speculative-tokens": 6},
            "forerun's default reaches 1.2",
        ),
    ],
)
def test_forerun_by_itself_takes_part(
    default: float, expected: dict[str, object], said: str
) -> None:
    """Where it is the best, the config names no method."""
    tuning = tuned({("suffix", 6): 1.4})
    rows = [
        made_row(DEFAULT, number, default / (0.97 + 0.06 * number / 12), temperature=0.5)
        for number in range(12)
    ]
    with_default = replace(tuning, default={1: tuple(rows)})
    assert said in verdict(with_default, (1,))[0]
    assert config_values(with_default, 1, MEASURED_AT) == MEASURED_AT | expected


def test_a_setting_with_options_of_its_own_is_one_method() -> None:
    candidate = "draft_model (small, draft_dtype=int8)"
    tuning = tuned({(candidate, 4): 0.7, ("ngram", 2): 1.5})
    assert f"{candidate} loses, 0.7" in verdict(tuning, (1,))[0]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("tree_nodes", [None, 8])
@pytest.mark.parametrize(("draft", "host"), [(0.02, 0.05), (0.02, 0.6), (0.3, 0.05), (1.5, 0.6)])
def test_the_advice_has_the_gain_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
    draft: float,
    host: float,
    tree_nodes: int | None,
    batch_size: int,
) -> None:
    """Also where a speculative round costs more than a plain one before it drafts anything."""
    candidate = Candidate("good", longest=8, tree_nodes=tree_nodes)
    records = Records(
        outputs={(candidate.name, str(n)): drafting(candidate.name, n) for n in range(5)}
    )
    rounds = replace(
        costs(draft, first_draft=0.01),
        host=CostTable.from_rows((1, batch, 0, host) for batch in (1, 8)),
    )
    monkeypatch.setattr("forerun.bench.tune.prediction.costs_of", lambda *_: rounds)
    predictions = predict(records, [candidate], [batch_size])
    best = max(predictions, key=lambda one: one.speedup)
    said = advice_on(records, predictions[0])
    found = re.search(
        r"([\d.]+) x at best, drafting (\d+) tokens?: ([\d.]+) tokens a round", said[1]
    )
    assert found is not None
    assert (found[1], found[2]) == (f"{best.speedup:.2f}", str(best.num_tokens))
    assert float(found[3]) == pytest.approx(best.tokens_per_forward, rel=0.03)


def drafting(name: str, seed: int) -> RecordedOutput:
    """An output with 8 tokens drafted at every position, many of them accepted in easy stretches."""
    source, count = random.Random(seed), 200
    shares = [(0.95, 0.4)[at // 20 % 2] for at in range(count)]
    accepted = [next((n for n in range(8) if source.random() > share), 8) for share in shares]
    return replace(
        output(name, count, text=seed),
        nodes=(8,) * count,
        depths=(8,) * count,
        accepted=tuple(accepted),
    )
