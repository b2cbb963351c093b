"""The speed-up of the zoo's pair on held-out prompts, in alternation with plain decoding.

python -m benchmarks.heldout --prompts 20 --max-tokens 128 --dtype fp32
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forerun.bench.pairs import loops
from forerun.core import Stats
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.measure import intervals
from forerun.measure.paired import Comparison, compare
from forerun.models.cpu.threads import threads_in_use
from forerun.params import SamplingParams
from forerun.proof.prompts import held_out_prompts
from forerun.report.markdown import as_markdown
from forerun.report.table import Table


@dataclass(frozen=True)
class Row:
    """One setting over all prompts.

    Args:
        method, temperature: the setting; temperatures above 0 draw without a seed.
        speedup: median over prompts of the paired ratio of tokens per second.
        speedup_without_loops: the same over prompts whose output does not repeat itself.
        tokens_per_second, plain_tokens_per_second: medians, prefill included.
        mean_acceptance_length, acceptance_rate: over all rounds that drafted.
        draft_share, target_share: of the time of all rounds.
        share_that_loops: of the outputs.
        identical: outputs equal to plain decoding's; None where sampling makes that meaningless.
        numerics: of the others, those that float rounding of a near-tie explains.
    """

    method: str
    temperature: float
    speedup: intervals.Interval
    speedup_without_loops: float | None
    tokens_per_second: float
    plain_tokens_per_second: float
    mean_acceptance_length: float | None
    acceptance_rate: float | None
    draft_share: float
    target_share: float
    share_that_loops: float
    identical: int | None
    numerics: int


def summarize(method: str, temperature: float, comparisons: Sequence[Comparison]) -> Row:
    """One row of the table from the comparisons of all prompts."""
    completions = [entry.shown.speculative.completion for entry in comparisons]
    stats = Stats.total(completion.stats for completion in completions)
    looping = [loops(completion.token_ids) for completion in completions]
    straight = [entry.speedup for entry, loop in zip(comparisons, looping, strict=True) if not loop]
    comparable = [entry.identical for entry in comparisons if entry.identical is not None]
    differences = [entry.difference for entry in comparisons if entry.difference is not None]
    return Row(
        method=method,
        temperature=temperature,
        speedup=intervals.median([entry.speedup for entry in comparisons]),
        speedup_without_loops=statistics.median(straight) if straight else None,
        tokens_per_second=_median_rate(comparisons, "speculative"),
        plain_tokens_per_second=_median_rate(comparisons, "plain"),
        mean_acceptance_length=stats.mean_acceptance_length,
        acceptance_rate=stats.acceptance_rate,
        draft_share=stats.draft_seconds / stats.seconds,
        target_share=stats.target_seconds / stats.seconds,
        share_that_loops=sum(looping) / len(looping),
        identical=sum(comparable) if comparable else None,
        numerics=sum(entry.explanation == "numerics" for entry in differences),
    )


def measure(
    engine: Engine, method: str, temperature: float, prompts: Sequence[str], max_tokens: int
) -> Row:
    """Compare a method with plain decoding on every prompt."""
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True)
    assert engine.tokenizer is not None, "loaded by name"
    comparisons = []
    for prompt in prompts:
        comparisons.append(compare(engine, list(engine.tokenizer.encode(prompt)), params, 1))
        print(f"\r{method} T={temperature:g} {len(comparisons)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return summarize(method, temperature, comparisons)


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    header = (
        *("method", "T", "speed-up (95 %)", "without loops", "tokens/s", "plain"),
        *("acceptance length", "accepted", "draft", "target", "loops", "identical"),
    )
    return as_markdown(Table.of("", header, map(_cells, rows)))


def _cells(row: Row) -> list[str]:
    straight = row.speedup_without_loops
    return [
        f"`{row.method}`",
        f"{row.temperature:g}",
        str(row.speedup),
        "–" if straight is None else f"{straight:.2f}",
        f"{row.tokens_per_second:.0f}",
        f"{row.plain_tokens_per_second:.0f}",
        f"{row.mean_acceptance_length or 1:.2f}",
        f"{row.acceptance_rate or 0:.0%}",
        f"{row.draft_share:.0%}",
        f"{row.target_share:.0%}",
        f"{row.share_that_loops:.0%}",
        "–" if row.identical is None else str(row.identical),
    ]


def _median_rate(comparisons: Sequence[Comparison], side: str) -> float:
    runs = [getattr(entry.shown, side) for entry in comparisons]
    return statistics.median(run.tokens_per_second or 0.0 for run in runs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heldout", description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=["draft_model", "ngram"])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    prompts = held_out_prompts()[: options.prompts]
    rows = []
    for method in options.methods:
        config = SpeculativeConfig(
            method=method,
            model="zoo-draft" if method == "draft_model" else None,
            num_speculative_tokens=options.num_speculative_tokens,
        )
        engine = load("zoo", config, dtype=options.dtype, backend=options.backend)
        for temperature in options.temperatures:
            rows.append(measure(engine, method, temperature, prompts, options.max_tokens))
    if options.json:
        content: dict[str, Any] = {"threads": threads_in_use()}
        print(json.dumps({**content, "rows": [asdict(row) for row in rows]}))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
