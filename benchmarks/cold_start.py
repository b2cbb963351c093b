"""Policy auto where nothing was learned, beside plain decoding and the best fixed length.

python -m benchmarks.cold_start [--models zoo smollm2] [--only SUBSTRING] [--json FILE]

Requests in a row, the first on a machine where nothing was learned: by the command line in an empty home
folder, a process for each request, and in one engine whose policy begins anew. The same requests are decoded
plainly and with fixed lengths right before or after, from empty caches. A number is the median of plain
seconds over speculative ones, prompts included, with its range. The best fixed length is the one that is
best over all requests, plain decoding if none is faster; a share is auto over that, or over 1.

The zoo goes on from code with its draft and with worse ones (`benchmarks.distorted`), in two precisions;
another model answers questions with the drafter that `forerun.load` picks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cold_homes import compare_by_command, empty_home
from benchmarks.distorted import CODE, DRAFTS, distorted
from benchmarks.stages import STAGES, Measured, Stage, as_dict, best_length, stages
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.engine.intake import Prompt
from forerun.engine.load import load
from forerun.engine.resolve import Speculative
from forerun.files import write_text
from forerun.measure.paired import WARM_UP_TOKENS, Run, alone, empty_caches
from forerun.params import SamplingParams
from forerun.report.markdown import heading, line

QUESTIONS = (
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper.",
    "How do I make a good cup of coffee?",
    "Explain what a prime number is, with three examples.",
    "What should I see in Rome in two days?",
    "Write a Python function that reverses a list.",
)
SEED = 7
AUTO, PLAIN = 0, -1
"""What stands for policy auto and for plain decoding among fixed lengths."""


@dataclass(frozen=True)
class Work:
    """One kind of requests.

    Args:
        model, dtype: of the target.
        draft: its name in `DRAFTS`, or `default` for what is picked.
        temperature, max_tokens: of the requests, which have a seed.
    """

    model: str
    dtype: str
    draft: str
    temperature: float
    max_tokens: int

    @property
    def name(self) -> str:
        kind = f"{self.model} {self.dtype}, {self.draft} draft"
        return f"{kind}, T = {self.temperature:g}, {self.max_tokens} tokens"

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature, max_tokens=self.max_tokens, ignore_eos=True, seed=SEED
        )


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        prompts: different ones; each is the first of a row once.
        requests: in each row but the last.
        later: in the last row.
        lengths: fixed ones.
    """

    prompts: int = 6
    requests: int = 6
    later: int = 12
    lengths: tuple[int, ...] = (2, 4, 6, 8)

    def rows(self) -> Iterator[list[int]]:
        """Indices of the prompts of each row of requests."""
        for start in range(self.prompts):
            count = self.later if start == self.prompts - 1 else self.requests
            yield [(start + place) % self.prompts for place in range(count)]


def works(models: Sequence[str], token_counts: Sequence[int]) -> Iterator[Work]:
    """All kinds of requests."""
    for model in models:
        graded = model == "zoo"
        for dtype in ("bf16", "int8") if graded else ("auto",):
            for draft in DRAFTS if graded else ("default",):
                for max_tokens in token_counts:
                    for temperature in (0.0, 1.0):
                        yield Work(model, dtype, draft, temperature, max_tokens)


def in_one_engine(work: Work, speculative: dict[str, object], size: Size) -> list[Measured]:
    """Rows of requests to one engine, whose policy forgets before each row."""
    with ExitStack() as stack:

        def engine(config: Speculative) -> Engine:
            return stack.enter_context(load(work.model, config, dtype=work.dtype))

        auto = engine(speculative)
        engines = {AUTO: auto, PLAIN: engine(False)}
        for length in size.lengths:
            fixed = {"policy": "fixed", "num_speculative_tokens": length}
            engines[length] = engine(speculative | fixed)
        prompts = _prompts(auto, work.model)
        with auto.untaught():
            _in_turn(engines, prompts[0], replace(work.params, max_tokens=WARM_UP_TOKENS), 0)
        measured = []
        for start, row in enumerate(size.rows()):
            assert auto.policy is not None
            auto.policy.forget()
            for place, index in enumerate(row, 1):
                ratios = _in_turn(engines, prompts[index], work.params, start + place)
                measured.append(Measured(place, ratios.pop(AUTO), ratios))
        return measured


def _in_turn(
    engines: Mapping[int, Engine], prompt: Prompt, params: SamplingParams, turn: int
) -> dict[int, float]:
    """Plain seconds over those of each other engine, from empty caches; the first is another one each turn.

    Each has a target of its own: otherwise one would find in the processor's cache what the one before
    has read.
    """
    order = list(engines)
    first, seconds = turn % len(order), {}
    for name in order[first:] + order[:first]:
        engine = engines[name]
        empty_caches(engine)
        if name == PLAIN:
            stream = engine.stream_plain(prompt, params)
        else:
            stream = engine.stream(prompt, params, hints=alone())
        seconds[name] = Run(stream).follow().seconds
    plain = seconds.pop(PLAIN)
    return {name: plain / own for name, own in seconds.items()}


def _prompts(engine: Engine, model: str) -> list[Prompt]:
    """Prompts as `forerun generate` sends them."""
    if ChatTemplate.of(engine.tokenizer) is None:
        return list(_texts(model))
    return [[{"role": "user", "content": text}] for text in _texts(model)]


def _texts(model: str) -> tuple[str, ...]:
    return CODE if model == "zoo" else QUESTIONS


def by_command(work: Work, speculative: dict[str, object], size: Size) -> list[Measured]:
    """Rows of commands, each row in an empty home; a row is its first request, but for the last one."""
    options: dict[str, object] = {"model": work.model, "dtype": work.dtype, "seed": SEED}
    options |= {"temperature": work.temperature, "max-tokens": work.max_tokens}
    if "model" in speculative:
        options["draft-model"] = speculative["model"]
    texts = _texts(work.model)[: size.prompts]
    fixed = []
    for text in texts:
        with empty_home():
            lengths = {n: {"policy": "fixed", "num-speculative-tokens": n} for n in size.lengths}
            fixed.append({n: compare_by_command(text, options | lengths[n]) for n in lengths})
    measured = []
    for row in replace(size, requests=1).rows():
        with empty_home():
            for place, index in enumerate(row, 1):
                auto = compare_by_command(texts[index], options)
                measured.append(Measured(place, auto, fixed[index]))
    return measured


WAYS = {"engine": in_one_engine, "command": by_command}


def run(way: str, work: Work, size: Size) -> dict[str, Any]:
    """A row of the table, with all that was measured for it."""
    with TemporaryDirectory() as folder, empty_home():
        # The zoo's own draft is what is picked.
        share = DRAFTS.get(work.draft)
        draft: dict[str, object] = {}
        if share:
            draft["model"] = str(distorted(share, Path(folder)))
        measured = WAYS[way](work, draft, size)
    length = best_length(measured)
    return {
        "way": way,
        "work": work.name,
        **asdict(work),
        "best_length": length,
        "stages": stages(measured, length),
        "measured": measured,
    }


def table_row(row: Mapping[str, Any]) -> str:
    """A row of the table in Markdown."""
    length = row["best_length"]
    best = f"{length} tokens" if length else "plain"
    by_name: Mapping[str, Stage] = row["stages"]
    stages = [by_name[name].cells if name in by_name else ["–"] * 3 for name in STAGES]
    return line([row["way"], row["work"], best, *chain.from_iterable(stages)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["zoo", "smollm2"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--max-tokens", nargs="+", type=int, default=[128, 8])
    parser.add_argument("--lengths", nargs="+", type=int, default=Size.lengths)
    parser.add_argument("--prompts", type=int, default=6, choices=range(1, 7))
    parser.add_argument("--requests", type=int, default=6, help="in each row of requests")
    parser.add_argument("--later", type=int, default=12, help="in the last row of requests")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    size = Size(options.prompts, options.requests, options.later, tuple(options.lengths))
    heads = [head for name in STAGES for head in (f"{name} (range; pairs)", "fixed", "share")]
    print(heading(["way", "work", "best fixed", *heads], "lll" + "lrr" * len(STAGES)))
    rows = []
    for work in works(options.models, options.max_tokens):
        for way in options.ways:
            if options.only in f"{way}, {work.name}":
                rows.append(run(way, work, size))
                print(table_row(rows[-1]), flush=True)
    if options.json is not None:
        write_text(options.json, json.dumps(rows, default=as_dict) + "\n")


if __name__ == "__main__":
    main()
