"""What forerun does at its defaults where speculation should lose, beside plain decoding.

python -m benchmarks.never_a_loss --models smollm2 zoo --passes 9

Each cell is one hostile kind of work: an engine as `forerun.load` makes it, with the drafter named, and
two without a drafter run each of its batches in turn; all keep the prompts' caches, and all have run the
work once before. A number is plain seconds over speculative ones: 1 is no loss. The seconds of a batch are
the median of its runs, so that a pause of the machine meets one batch and not the cell; the range is that
of whole passes. The control is one plain engine beside the other: what noise makes of no difference.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.checkpoints import untrained_like
from benchmarks.questions import load_questions
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.files import write_text
from forerun.params import SamplingParams

LONG = 3900
"""Tokens of a long prompt, where the model's context holds them."""
WAITING, SHARES = 3, (1.0, 0.5, 1.5, 0.75, 1.25)
"""Prompts for each row of a batch, and their tokens, in turn."""


@dataclass(frozen=True)
class Cell:
    """One kind of work.

    Args:
        name: of it.
        prompts: token ids.
        temperature, max_tokens, batch_size: of its requests.
        at_once: prompts that are given at once; more than a batch wait for a row, and some are for half
            or for one and a half times as many tokens.
        untrained: whether the draft model has random weights; otherwise it is what `load` picks.
    """

    name: str
    prompts: list[list[int]]
    temperature: float = 0.0
    max_tokens: int = 64
    batch_size: int = 1
    at_once: int = 1
    untrained: bool = False


def cells(engine: Engine, batches: Sequence[int]) -> Iterator[Cell]:
    """All cells for a model."""
    texts = {name: _prompts(engine, name) for name in ("mt_bench", "humaneval", "quotes")}
    usual = texts["mt_bench"][:6]
    yield Cell("random tokens", _random(engine, 6, 200))
    yield Cell("random tokens, T = 1.5", _random(engine, 6, 200), temperature=1.5)
    yield Cell("questions, T = 1.5", usual, temperature=1.5)
    yield Cell("8 tokens", texts["mt_bench"][:12], max_tokens=8)
    yield Cell("8 tokens, T = 1", texts["mt_bench"][:12], temperature=1.0, max_tokens=8)
    yield Cell("8 tokens, untrained draft", texts["mt_bench"][:12], max_tokens=8, untrained=True)
    yield Cell("untrained draft", usual, untrained=True)
    yield Cell("untrained draft, T = 1", usual, temperature=1.0, untrained=True)
    length = min(LONG, engine.max_context - 80)
    yield Cell(f"a context of {length}", _long(usual, length))
    yield Cell(f"a context of {length}, T = 1", _long(usual, length), temperature=1.0)
    turns = [text for pair in zip(texts["quotes"], usual, strict=False) for text in pair]
    yield Cell("the text switches every 100 tokens", turns[:6], max_tokens=100)
    for size in batches:
        # A batch that stays full, as a server's: otherwise it ends with its slowest request.
        count = WAITING * size
        prompts = [texts["mt_bench"][place % 12] for place in range(count)]
        for temperature in (0.0, 1.0):
            at_once = count if size > 1 else 1
            yield Cell(
                f"batch {size}, T = {temperature:g}", prompts, temperature, 48, size, at_once
            )


@dataclass(frozen=True)
class Ratio:
    """Plain seconds over speculative ones.

    Args:
        middle: from the median seconds of each batch.
        least, most: of single passes over all batches.
        control: one plain engine's seconds over the other's, from the medians.
    """

    middle: float
    least: float
    most: float
    control: float


def measure(cell: Cell, engines: Sequence[Engine], passes: int) -> Ratio:
    """Run a cell's batches by two plain engines and a drafting one in turn, after one pass of each."""
    batches = [
        cell.prompts[start : start + cell.at_once]
        for start in range(0, len(cell.prompts), cell.at_once)
    ]
    times: list[list[list[float]]] = [[] for _ in engines]
    for number in range(-1, passes):
        runs: list[list[float]] = [[] for _ in engines]
        for place, batch in enumerate(batches):
            for turn in range(len(engines)):
                which = (turn + place + number) % len(engines)
                runs[which].append(_seconds(engines[which], cell, batch))
        if number >= 0:
            for kept, own in zip(times, runs, strict=True):
                kept.append(own)
    first, second, drafting = (
        sum(statistics.median(runs) for runs in zip(*of, strict=True)) for of in times
    )
    whole = [(sum(one) + sum(other)) / 2 / sum(own) for one, other, own in zip(*times, strict=True)]
    return Ratio((first + second) / 2 / drafting, min(whole), max(whole), first / second)


def _seconds(engine: Engine, cell: Cell, batch: list[list[int]]) -> float:
    shares = SHARES if cell.at_once > 1 else (1.0,)
    params = [
        SamplingParams(
            temperature=cell.temperature,
            max_tokens=int(shares[place % len(shares)] * cell.max_tokens),
            ignore_eos=True,
            seed=7,
        )
        for place in range(len(batch))
    ]
    started = perf_counter()
    engine.generate(batch, params)
    return perf_counter() - started


def _prompts(engine: Engine, category: str) -> list[list[int]]:
    """Questions of a category in tokens."""
    assert engine.tokenizer is not None, "loaded by name"
    template = ChatTemplate.of(engine.tokenizer)
    found = []
    for question in load_questions(category, 12):
        if template is None:
            found.append(list(engine.tokenizer.encode(question.turns[0]))[-400:])
        else:
            found.append(list(template.encode([{"role": "user", "content": question.turns[0]}])))
    return found


def _random(engine: Engine, count: int, length: int) -> list[list[int]]:
    source = random.Random(0)
    return [
        [source.randrange(engine.target.vocab_size) for _ in range(length)] for _ in range(count)
    ]


def _long(prompts: list[list[int]], length: int) -> list[list[int]]:
    joined = [token for prompt in prompts for token in prompt]
    return [(joined * (length // len(joined) + 1))[:length]]


def run(model: str, batches: Sequence[int], passes: int, only: str) -> Iterator[dict[str, Any]]:
    """The rows of a model."""
    first = load(model, False)
    with TemporaryDirectory() as folder:
        untrained = untrained_like(first, Path(folder))
        for cell in cells(first, batches):
            if only not in cell.name:
                continue
            speculative: dict[str, object] = {"model": str(untrained)} if cell.untrained else {}
            size = cell.batch_size
            settings = (False, False, speculative)
            engines = [load(model, each, max_batch_size=size) for each in settings]
            ratio = measure(cell, engines, passes)
            policy = engines[-1].policy
            assert policy is not None
            row = {
                "model": model,
                "cell": cell.name,
                "ratio": ratio.middle,
                "least": ratio.least,
                "most": ratio.most,
                "control": ratio.control,
                "decisions": policy.in_words(),
            }
            yield row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.never_a_loss", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2", "zoo"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--only", default="", help="cells with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rows = []
    print("| model | work | plain / speculative (range) | control | decided |")
    print("| --- | --- | --- | ---: | --- |")
    for model in options.models:
        for row in run(model, options.batches, options.passes, options.only):
            rows.append(row)
            print(
                f"| {row['model']} | {row['cell']} | {row['ratio']:.3f} "
                f"({row['least']:.2f}–{row['most']:.2f}) | {row['control']:.3f} | {row['decisions']} |",
                flush=True,
            )
    if options.json is not None:
        write_text(options.json, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
