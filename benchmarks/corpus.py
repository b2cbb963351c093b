"""What texts to quote from gain: a drafter with a corpus and without, in turns with plain decoding.

python -m benchmarks.corpus [--prompts PATH …] [--corpus PATH …] [--method NAME]
    [--limit 10] [--temperatures 0,1]

Without --corpus each question was answered before: twice by drawing at temperature 0.7, and those answers,
to all questions, are the corpus. It runs in an empty home folder, so that nothing was learned before, and
every run begins with empty caches; what both learn from prompt to prompt is kept. Outputs are compared with
plain decoding's, token for token, also at a temperature, where requests have seeds.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import forerun
from benchmarks.cold_homes import empty_home
from forerun.bench.pairs import loops
from forerun.bench.request import built_in
from forerun.bench.runs import EncodedPrompt, prepare
from forerun.engine.engine import Engine
from forerun.measure.intervals import median
from forerun.measure.paired import Pair, run_pair, warming_up
from forerun.measure.questions import in_turns, read_questions
from forerun.models.checkpoint import loading_once
from forerun.params import SamplingParams
from forerun.report.markdown import as_markdown
from forerun.report.table import Table

# Temperature of the answers that were given before.
BEFORE = 0.7


@dataclass(frozen=True)
class Measured:
    """A prompt without the corpus and with it, each beside plain decoding."""

    category: str
    without: Pair
    quoting: Pair

    @property
    def identical(self) -> bool:
        return self.without.identical and self.quoting.identical

    @property
    def loops(self) -> bool:
        return loops(self.quoting.plain.completion.token_ids)


def answered_before(
    engine: Engine, prompts: Sequence[EncodedPrompt], tokens: int, path: Path
) -> Path:
    """A file of JSON lines with two answers to each prompt, drawn."""
    with path.open("w", encoding="utf-8") as file:
        for seed in (1, 2):
            params = SamplingParams(temperature=BEFORE, seed=seed, max_tokens=tokens)
            for prompt in prompts:
                done = engine.generate([list(prompt.token_ids)], params, speculative=False)[0]
                file.write(json.dumps({"answer": done.text}) + "\n")
    return path


@contextmanager
def engines(
    model: str, corpus: Sequence[str], method: str | None = None
) -> Iterator[tuple[Engine, Engine]]:
    """The default, or a method, without a corpus and with it, of one model in memory."""
    with ExitStack() as stack, loading_once():
        yield (
            stack.enter_context(forerun.load(model, {"method": method})),
            stack.enter_context(forerun.load(model, {"method": method, "corpus": corpus})),
        )


def measure(
    both: tuple[Engine, Engine], prompts: Sequence[EncodedPrompt], temperature: float, tokens: int
) -> Iterator[Measured]:
    """All prompts, the two sides in turns."""
    for number, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=temperature, seed=number, max_tokens=tokens, ignore_eos=True
        )
        order = (0, 1) if number % 2 else (1, 0)
        pairs = {side: run_pair(both[side], list(prompt.token_ids), params) for side in order}
        yield Measured(prompt.category, pairs[0], pairs[1])


def table(rows: Sequence[Measured]) -> str:
    """By category and over all: tokens a forward and speed-up, without and with the corpus."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for row in rows:
        groups[row.category].append(row)
    groups["all"] = list(rows)
    groups["all that do not loop"] = [row for row in rows if not row.loops]
    lines = list[list[str]]()
    for name, group in groups.items():
        if group:
            cells = [
                _cell([getattr(row, side) for row in group]) for side in ("without", "quoting")
            ]
            gain = median([row.quoting.speedup / row.without.speedup for row in group])
            lines.append([f"{name} ({len(group)})", *cells, str(gain)])
    header = ("", "without", "with", "with over without")
    return as_markdown(Table.of("", header, lines, "llll"))


def _cell(pairs: Sequence[Pair]) -> str:
    stats = [pair.speculative.completion.stats for pair in pairs]
    tokens = sum(one.num_emitted_tokens for one in stats)
    forwards = sum(one.num_target_forwards for one in stats)
    return f"{tokens / forwards:.2f}, {median([pair.speedup for pair in pairs])} x"


def _warm_up(both: tuple[Engine, Engine], prompt: EncodedPrompt) -> None:
    for engine in both:
        with warming_up(engine):
            run_pair(engine, list(prompt.token_ids), SamplingParams(temperature=0.0, max_tokens=16))


def _report(options: argparse.Namespace, home: Path) -> None:
    questions = read_questions(options.prompts) if options.prompts else built_in()
    with forerun.load(options.model, False) as plain:
        params = SamplingParams(max_tokens=options.max_tokens)
        prompts = prepare(plain, in_turns(questions, options.limit), params).prompts
        corpus = options.corpus or [
            str(answered_before(plain, prompts, options.max_tokens, home / "answers.jsonl"))
        ]
    started = perf_counter()
    with engines(options.model, corpus, options.method) as both:
        print(f"loaded and indexed in {perf_counter() - started:.1f} s: {', '.join(corpus)}\n")
        _warm_up(both, prompts[0])
        for temperature in map(float, options.temperatures.split(",")):
            rows = list(measure(both, prompts, temperature, options.max_tokens))
            print(
                f"temperature {temperature:g}\n\n{table(rows)}\n\n"
                f"{sum(row.identical for row in rows)} of {len(rows)} outputs equal plain decoding's, "
                f"{sum(row.loops for row in rows)} loop\n",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--prompts", nargs="+", help="questions, as of `forerun bench`; those built in"
    )
    parser.add_argument("--corpus", nargs="+", help="files and folders; answers given before")
    parser.add_argument("--method", help="suffix, ngram or cascade; the default")
    parser.add_argument("--limit", type=int, default=10, help="questions of each category")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperatures", default="0,1")
    options = parser.parse_args(arguments)
    with empty_home() as home:
        _report(options, home)


if __name__ == "__main__":
    main()
