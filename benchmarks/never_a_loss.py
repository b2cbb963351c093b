"""What forerun does at its defaults where speculation should lose, beside plain decoding.

python -m benchmarks.never_a_loss --models smollm2 zoo --passes 9

Each cell is one hostile kind of work: an engine as `forerun.load` makes it, with the drafter named, two
without a drafter and one for each fixed length, with the same drafter, run each of its batches in turn; all
keep the prompts' caches, and all have run the work once before, when policy auto learned nothing. A number
is plain seconds over speculative ones: 1 is no loss.

The first pass is cold: it runs in an empty home folder, with a policy that has forgotten the cells before.
Of the later passes a batch is compared with plain decoding of the same pass, moments before or after, and
counts by the median of these ratios, so that a pause of the machine meets one batch and not the cell; the
range is that of whole passes. The best fixed setting is plain decoding or the fixed
length with the largest ratio in the later passes, the share auto's ratio over it. The control is one plain
engine beside the other: what noise makes of no difference.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.checkpoints import untrained_like
from benchmarks.cold_homes import empty_home
from benchmarks.questions import load_questions
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.resolve import Speculative
from forerun.files import write_text
from forerun.measure.paired import warming_up
from forerun.measure.turns import seconds_of
from forerun.params import SamplingParams
from forerun.policies.decisions import in_words
from forerun.report.markdown import heading, line

LONG = 3900
"""Tokens of a long prompt, where the model's context holds them."""
WAITING, SHARES = 3, (1.0, 0.5, 1.5, 0.75, 1.25)
"""Prompts for each row of a batch, and their tokens, in turn."""
LENGTHS = (1, 2, 4, 8)
"""Fixed ones."""


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
        first: of the first pass, in which policy auto begins to learn.
        ratio: of the later passes, from each batch's median.
        least, most: of single later passes over all batches.
        control: one plain engine's seconds over the other's, from the medians.
        fixed: by fixed length, from the medians.
    """

    first: float
    ratio: float
    least: float
    most: float
    control: float
    fixed: Mapping[int, float]

    @property
    def best_length(self) -> int:
        """The best fixed length; 0 where none beats plain decoding."""
        best = max(self.fixed, key=lambda length: self.fixed[length])
        return best if self.fixed[best] > 1.0 else 0

    @property
    def best_fixed(self) -> float:
        return self.fixed[self.best_length] if self.best_length else 1.0

    @property
    def share(self) -> float:
        """What auto reaches of the best fixed setting's speed."""
        return self.ratio / self.best_fixed


def measure(cell: Cell, engines: Sequence[Engine], passes: int) -> Ratio:
    """Run a cell's batches by several engines in turn, after one pass of each that teaches nothing.

    Args:
        cell: the work.
        engines: two plain ones, one with policy auto, and one for each of LENGTHS.
        passes: after the first, which is cold.
    """
    batches = [
        cell.prompts[start : start + cell.at_once]
        for start in range(0, len(cell.prompts), cell.at_once)
    ]
    for engine in engines:
        with warming_up(engine):
            for batch in batches:
                _seconds(engine, cell, batch)
        if engine.policy is not None:
            engine.policy.forget()
    times: list[list[list[float]]] = [[] for _ in engines]
    # In a fixed order each engine would always follow the same one, and find the caches as that left them.
    order = random.Random(0)
    for _ in range(1 + passes):
        runs: list[list[float]] = [[] for _ in engines]
        for batch in batches:
            for which in order.sample(range(len(engines)), len(engines)):
                runs[which].append(_seconds(engines[which], cell, batch))
        for seconds, own in zip(times, runs, strict=True):
            seconds.append(own)
    return ratio_of(times)


def ratio_of(times: Sequence[Sequence[Sequence[float]]]) -> Ratio:
    """The ratios of a cell from the seconds of each engine in each pass on each batch."""
    plain = [
        [(one + other) / 2 for one, other in zip(*runs, strict=True)]
        for runs in zip(times[0][1:], times[1][1:], strict=True)
    ]
    first, second, drafting, *fixed = (_over_plain(of[1:], plain) for of in times)
    cold, *whole = [
        (sum(one) + sum(other)) / 2 / sum(own) for one, other, own in zip(*times[:3], strict=True)
    ]
    lengths = {length: 1.0 / own for length, own in zip(LENGTHS, fixed, strict=True)}
    return Ratio(cold, 1.0 / drafting, min(whole), max(whole), first / second, lengths)


def _over_plain(own: Sequence[Sequence[float]], plain: Sequence[Sequence[float]]) -> float:
    """An engine's seconds over plain ones of the same passes: each batch's median, weighted by its time."""
    weights = [statistics.median(runs) for runs in zip(*plain, strict=True)]
    shares = [[o / p for o, p in zip(*runs, strict=True)] for runs in zip(own, plain, strict=True)]
    medians = [statistics.median(runs) for runs in zip(*shares, strict=True)]
    return float(sum(w * m for w, m in zip(weights, medians, strict=True)) / sum(weights))


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
    return seconds_of(lambda: engine.generate(batch, params))


def _prompts(engine: Engine, category: str) -> list[list[int]]:
    """Questions of a category in tokens."""
    assert engine.tokenizer is not None, "loaded by name"
    template = ChatTemplate.of(engine.tokenizer)
    prompts = []
    for question in load_questions(category, 12):
        if template is None:
            prompts.append(list(engine.tokenizer.encode(question.turns[0]))[-400:])
        else:
            prompts.append(list(template.encode([{"role": "user", "content": question.turns[0]}])))
    return prompts


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
    with TemporaryDirectory() as folder, load(model, False) as first:
        untrained = untrained_like(first, Path(folder))
        for cell in cells(first, batches):
            if only in cell.name:
                drafter = {"model": str(untrained)} if cell.untrained else {}
                yield {"model": model, "cell": cell.name, **_row(model, cell, drafter, passes)}


def _row(model: str, cell: Cell, drafter: dict[str, str], passes: int) -> dict[str, Any]:
    settings: list[Speculative] = [False, False, drafter]
    settings += [{**drafter, "policy": "fixed", "num_speculative_tokens": n} for n in LENGTHS]
    with ExitStack() as stack:
        engines = [
            stack.enter_context(load(model, setting, max_batch_size=cell.batch_size))
            for setting in settings
        ]
        ratio = measure(cell, engines, passes)
        policy = engines[2].policy
        assert policy is not None
        return {
            **asdict(ratio),
            "best_length": ratio.best_length,
            "best_fixed": ratio.best_fixed,
            "share": ratio.share,
            "decisions": in_words(policy.report() or {}),
        }


def table_row(row: Mapping[str, Any]) -> str:
    """A row of the table in Markdown."""
    length = row["best_length"]
    setting = f"{length} token{'s'[: length > 1]}" if length else "plain"
    return line(
        [
            row["model"],
            row["cell"],
            f"{row['first']:.2f}",
            f"{row['ratio']:.3f} ({row['least']:.2f}–{row['most']:.2f})",
            f"{row['best_fixed']:.2f} ({setting})",
            f"{row['share']:.1%}",
            f"{row['control']:.3f}",
            row["decisions"],
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.never_a_loss", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2", "zoo"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--passes", type=int, default=9, help="after the cold one")
    parser.add_argument("--only", default="", help="cells with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.passes < 1:
        parser.error("--passes must be at least 1")
    rows = []
    header = "model,work,first,later (range),best fixed,share,control,decided"
    print(heading(header.split(","), "llrllrrl"))
    with empty_home():
        for model in options.models:
            for row in run(model, options.batches, options.passes, options.only):
                rows.append(row)
                print(table_row(row), flush=True)
    if options.json is not None:
        write_text(options.json, json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
