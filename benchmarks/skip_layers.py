"""Which layers a target should skip when it drafts for itself: a search by measurement.

python -m benchmarks.skip_layers --model zoo --dtype int8

Starting without any, the search adds the skipped layer that makes the best round, until one layer is left
(after Draft & Verify, arXiv 2309.08168, which searches by Bayesian optimization). A set counts by its
acceptance on calibration prompts and by the cost of its forwards, measured in alternation with plain
forwards. The best set, early exits and plain decoding are then compared on other prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy.optimize import brentq

from benchmarks.heldout import Row, summarize, table
from forerun.contracts import CausalLM
from forerun.core import Batch, Plan, Request, Stats
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.errors import ConfigError
from forerun.measure.paired import compare
from forerun.measure.questions import read_questions
from forerun.models.cpu.threads import threads_in_use
from forerun.models.running import prefill
from forerun.models.zoo import zoo_path
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.report.markdown import as_markdown
from forerun.report.table import Table
from forerun.theory.formulas import expected_tokens, speedup

LONGEST = 10
REPEATS = 60


@dataclass(frozen=True)
class Choice:
    """A way to draft: the layers that it skips."""

    name: str
    skip_layers: tuple[int, ...]


@dataclass(frozen=True)
class Measured:
    """A choice on the calibration prompts.

    Args:
        name, skip_layers: the choice.
        acceptance: probability that a drafted token is accepted if those before it are.
        draft_cost: of a drafted token, in plain forwards of one token.
        verification_cost: of the rest of a round that drafts `drafted` tokens, likewise.
        drafted: tokens per round of the measurement.
        length: the best at these costs, by the formulas.
        speedup: over plain decoding at that length, by the formulas.
        tokens_per_second: at that speed-up.
        identical: outputs equal to plain decoding's, and all outputs.
    """

    name: str
    skip_layers: tuple[int, ...]
    acceptance: float
    draft_cost: float
    verification_cost: float
    drafted: int
    length: int
    speedup: float
    tokens_per_second: float
    identical: tuple[int, int]


@dataclass(frozen=True)
class Bench:
    """Engine, prompts and outputs to measure choices with.

    Args:
        engine: of the target alone.
        texts: the calibration prompts, as token ids.
        outputs: of plain decoding.
        params: of all outputs.
        drafted: tokens a round.
    """

    engine: Engine
    texts: Sequence[list[int]]
    outputs: Sequence[tuple[int, ...]]
    params: SamplingParams
    drafted: int

    @property
    def num_layers(self) -> int:
        return self.engine.target.num_layers

    def speculative(self, choice: Choice, drafted: int) -> Engine:
        """An engine that drafts `drafted` tokens a round."""
        plain = self.engine
        return Engine(
            plain.target,
            LayerSkipDrafter(plain.target, choice.skip_layers),
            SpeculativeConfig(num_speculative_tokens=drafted, policy="fixed"),
            tokenizer=plain.tokenizer,
            eos_token_ids=plain.eos_token_ids,
            max_context=plain.max_context,
        )

    def measure(self, choice: Choice) -> Measured:
        """A choice on the calibration prompts."""
        completions = self.speculative(choice, self.drafted).generate(self.texts, self.params)
        stats = Stats.total(completion.stats for completion in completions)
        emitted = min(stats.mean_acceptance_length or 1.0, self.drafted + 1.0)
        acceptance = acceptance_from(emitted, self.drafted)
        forward, draft, rest = time_round(self.engine.target, choice, self.texts[0], self.drafted)
        lengths = np.arange(1, LONGEST + 1)
        gains = np.asarray(speedup(acceptance, lengths, draft, verification_cost=rest))
        best = int(gains.argmax())
        outputs = [completion.token_ids for completion in completions]
        equal = sum(ids == plain for ids, plain in zip(outputs, self.outputs, strict=True))
        return Measured(
            choice.name, choice.skip_layers, acceptance, draft, rest, self.drafted,
            int(lengths[best]), float(gains[best]), float(gains[best] / forward), (equal, len(outputs)),
        )  # fmt: skip

    def search(self, say: bool = True) -> list[Measured]:
        """All sets that the greedy search tried, best first."""
        skipped: tuple[int, ...] = ()
        seen: list[Measured] = []
        while len(skipped) < self.num_layers - 1:
            step = []
            for layer in set(range(1, self.num_layers)) - set(skipped):
                layers = tuple(sorted((*skipped, layer)))
                step.append(self.measure(Choice(f"skip {_ranges(layers)}", layers)))
                if say:
                    print(f"\r{len(seen) + len(step)} sets", end="", file=sys.stderr)
            seen += step
            skipped = max(step, key=lambda measured: measured.speedup).skip_layers
        if say:
            print(file=sys.stderr)
        return sorted(seen, key=lambda measured: -measured.speedup)


def acceptance_from(tokens: float, length: int) -> float:
    """The acceptance at which rounds of `length` drafted tokens give this many, 1 to length + 1."""
    return float(brentq(lambda alpha: expected_tokens(alpha, length) - tokens, 0.0, 1.0))


def time_round(
    target: CausalLM, choice: Choice, text: list[int], drafted: int
) -> tuple[float, float, float]:
    """Seconds of a plain forward of one token; in such units a drafted token, and the rest of a round:
    the verifying forward, and the shared layers once more for the last drafted token. All in
    alternation, so that other work on the machine affects them alike."""
    cache = target.new_cache(1, len(text) + drafted + 1)
    prefill(target, cache, 0, text[:-1])
    drafter = LayerSkipDrafter(target, choice.skip_layers)
    drafter.attach(cache)
    request = Request(0, text, len(text), SamplingParams(temperature=0.0), seed=0, row=0)
    randomness, first = Randomness(), len(text) - 1
    laps = []
    for _ in range(REPEATS):
        started = perf_counter()
        target.forward(Batch.after(cache, [0], [text[-1:]]), cache)
        plain = perf_counter()
        cache.trim(0, first)
        begun = perf_counter()
        drafter.propose([request], [Plan(0)], randomness)
        shared = perf_counter()
        cache.trim(0, first)
        again = perf_counter()
        draft = drafter.propose([request], [Plan(drafted)], randomness)[0]
        proposed = perf_counter()
        assert draft.hidden is not None
        batch = Batch.after(
            cache,
            [0],
            [[text[-1], *draft.token_ids]],
            layers=range(drafter.shared_layers, target.num_layers),
            hidden_in=draft.hidden[None],
        )
        target.forward(batch, cache)
        verified = perf_counter()
        cache.trim(0, first)
        rest = verified - proposed + shared - begun
        laps.append((plain - started, (proposed - again - (shared - begun)) / len(draft), rest))
    times = np.array(laps)
    ratios = np.median(times[:, 1:] / times[:, :1], axis=0)
    return float(np.median(times[:, 0])), float(ratios[0]), float(ratios[1])


def exits(engine: Engine, layers: Iterable[int]) -> list[Choice]:
    """Early exits."""
    return [
        Choice(f"exit {layer}", tuple(range(layer, engine.target.num_layers))) for layer in layers
    ]


def _ranges(layers: Sequence[int]) -> str:
    """Layers as ranges: 1-3,5."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][1] == layer - 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def listing(choices: Sequence[Measured]) -> str:
    """Measured choices as a Markdown table."""
    header = (
        *("layers", "accepted a token", "draft cost", "rest of the round"),
        *("best length", "speed-up", "tokens/s", "identical"),
    )
    lines = [
        [
            row.name,
            f"{row.acceptance:.1%}",
            f"{row.draft_cost:.3f}",
            f"{row.verification_cost:.2f}",
            str(row.length),
            f"{row.speedup:.2f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.identical[0]} of {row.identical[1]}",
        ]
        for row in choices
    ]
    return as_markdown(Table.of("", header, lines))


def final(bench: Bench, choices: Sequence[tuple[Choice, int]], texts: list[list[int]]) -> list[Row]:
    """Choices at their best lengths on prompts that the search has not seen."""
    rows = []
    for choice, length in choices:
        engine = bench.speculative(choice, length)
        comparisons = [compare(engine, text, bench.params, 1) for text in texts]
        name = f"{choice.name}, {length} tokens"
        rows.append(summarize(name, bench.params.temperature, comparisons))
    return rows


def make(options: argparse.Namespace) -> tuple[Bench, list[list[int]]]:
    """The bench, and the prompts for the final comparison.

    Raises:
        ConfigError: for a model of one layer, or too few prompts.
    """
    engine = load(options.model, False, dtype=options.dtype, backend=options.backend)
    if engine.target.num_layers < 2:
        raise ConfigError(f"{engine.target.name} has one layer; give a model with more.")
    path = options.prompt_file or zoo_path().parent / "heldout.jsonl"
    prompts = read_questions([path])[: options.prompts + options.final_prompts]
    if len(prompts) <= options.prompts:
        raise ConfigError(
            f"{path} has {len(prompts)} prompts, which leaves no prompt for the comparison; "
            "give fewer --prompts."
        )
    assert engine.tokenizer is not None
    texts = [list(engine.tokenizer.encode(prompt.opening)) for prompt in prompts]
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.max_tokens, seed=0, ignore_eos=True
    )
    few = texts[: options.prompts]
    outputs = [completion.token_ids for completion in engine.generate(few, params)]
    return Bench(engine, few, outputs, params, options.num_speculative_tokens), texts[len(few) :]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.skip_layers", description=__doc__)
    parser.add_argument("--model", default="zoo")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--prompt-file", type=Path, help="questions as `forerun bench` takes them")
    parser.add_argument("--prompts", type=int, default=8, help="to calibrate on")
    parser.add_argument("--final-prompts", type=int, default=20, help="to compare the best on")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--exits-only", action="store_true", help="skip the search")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    bench, texts = make(options)
    sets = [] if options.exits_only else bench.search()
    early = exits(bench.engine, range(1, min(bench.num_layers, 5)))
    measured = sorted(map(bench.measure, early), key=lambda row: -row.speedup)
    named = {choice.name: choice for choice in early}
    best = [(Choice(row.name, row.skip_layers), row.length) for row in sets[:1]]
    best += [(named[row.name], row.length) for row in measured[:2]]
    rows = final(bench, best, texts)
    if options.json:
        content: dict[str, Any] = {"threads": threads_in_use(), "model": options.model}
        content |= {
            "sets": [asdict(row) for row in sets],
            "exits": [asdict(row) for row in measured],
        }
        print(json.dumps({**content, "rows": [asdict(row) for row in rows]}))
        return
    if sets:
        print("Sets, best first:\n")
        print(listing(sets[:10]))
    print("\nEarly exits, best first:\n")
    print(listing(measured))
    print("\nThe best on other prompts, in alternation with plain decoding:\n")
    print(table(rows))


if __name__ == "__main__":
    main()
