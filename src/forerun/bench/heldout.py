"""How much sooner the zoo's pair completes held-out prompts, beside plain decoding in turns.

python -m forerun.bench.heldout --prompts 20 --max-tokens 128 --dtype fp32
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forerun.bench import intervals
from forerun.bench.paired import Comparison, compare
from forerun.engine.config import SpeculativeConfig
from forerun.engine.load import load
from forerun.models.cpu.threads import threads_in_use
from forerun.models.zoo import zoo_path
from forerun.params import SamplingParams
from forerun.stats import Stats
from forerun.training.heldout import load_prompts, loops


@dataclass(frozen=True)
class Row:
    """One setting over all prompts.

    Args:
        method, temperature: the setting; temperatures above 0 draw without a seed.
        speedup: median over prompts of the paired ratio of tokens a second.
        speedup_without_loops: the same over prompts whose output does not repeat itself.
        tokens_per_second, plain_tokens_per_second: medians, prefill included.
        mean_acceptance_length, acceptance_rate: over all rounds that drafted.
        draft_share, target_share: of the time of all rounds.
        share_that_loops: of the outputs.
        identical: outputs equal to plain decoding's, of the prompts; None where it means nothing.
        numerics: those of the others that float rounding of a near-tie explains.
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


def summarize(method: str, temperature: float, found: Sequence[Comparison]) -> Row:
    """One row of the table from the comparisons of all prompts."""
    stats = Stats.total(one.shown.speculative.completion.stats for one in found)
    looping = [loops(one.shown.speculative.completion.token_ids) for one in found]
    straight = [one.speedup for one, loop in zip(found, looping, strict=True) if not loop]
    judged = [one.identical for one in found if one.identical is not None]
    differences = [one.difference for one in found if one.difference is not None]
    return Row(
        method=method,
        temperature=temperature,
        speedup=intervals.median([one.speedup for one in found]),
        speedup_without_loops=statistics.median(straight) if straight else None,
        tokens_per_second=_median_rate(found, "speculative"),
        plain_tokens_per_second=_median_rate(found, "plain"),
        mean_acceptance_length=stats.mean_acceptance_length,
        acceptance_rate=stats.acceptance_rate,
        draft_share=stats.draft_seconds / stats.seconds,
        target_share=stats.target_seconds / stats.seconds,
        share_that_loops=sum(looping) / len(looping),
        identical=sum(judged) if judged else None,
        numerics=sum(one.explanation == "numerics" for one in differences),
    )


def run(
    methods: Sequence[str],
    temperatures: Sequence[float],
    prompts: Sequence[str],
    max_tokens: int,
    dtype: str,
    num_speculative_tokens: int,
    backend: str = "auto",
) -> list[Row]:
    """Compare every method at every temperature on every prompt."""
    rows = []
    for method in methods:
        config = SpeculativeConfig(
            method=method,
            model="zoo-draft" if method == "draft_model" else None,
            num_speculative_tokens=num_speculative_tokens,
        )
        engine = load("zoo", config, dtype=dtype, backend=backend)
        for temperature in temperatures:
            params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True)
            found = []
            for prompt in prompts:
                prompt_ids = list(engine.tokenizer.encode(prompt)) if engine.tokenizer else []
                found.append(compare(engine, prompt_ids, params, 1))
                print(f"\r{method} T={temperature:g} {len(found)}", end="", file=sys.stderr)
            rows.append(summarize(method, temperature, found))
    print(file=sys.stderr)
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| method | T | speed-up (95 %) | without loops | tokens/s | plain | acceptance length "
        "| accepted | draft | target | loops | identical |",
        "| --- " * 12 + "|",
    ]
    for row in rows:
        straight = row.speedup_without_loops
        lines.append(
            f"| `{row.method}` | {row.temperature:g} "
            f"| {row.speedup} "
            f"| {'–' if straight is None else f'{straight:.2f}'} "
            f"| {row.tokens_per_second:.0f} | {row.plain_tokens_per_second:.0f} "
            f"| {row.mean_acceptance_length or 1:.2f} | {row.acceptance_rate or 0:.0%} "
            f"| {row.draft_share:.0%} | {row.target_share:.0%} | {row.share_that_loops:.0%} "
            f"| {'–' if row.identical is None else row.identical} |"
        )
    return "\n".join(lines)


def _median_rate(found: Sequence[Comparison], side: str) -> float:
    return statistics.median(getattr(one.shown, side).tokens_per_second or 0.0 for one in found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.heldout", description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=["draft_model", "ngram"])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    prompts = load_prompts(zoo_path().parent / "heldout.jsonl")[: options.prompts]
    rows = run(
        options.methods,
        options.temperatures,
        [prompt.prompt for prompt in prompts],
        options.max_tokens,
        options.dtype,
        options.num_speculative_tokens,
        options.backend,
    )
    if options.json:
        content: dict[str, Any] = {"threads": threads_in_use()}
        print(json.dumps({**content, "rows": [asdict(row) for row in rows]}))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
