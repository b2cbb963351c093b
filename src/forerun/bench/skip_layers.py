"""Which layers a target should leave out when it drafts for itself: a search, measured.

python -m forerun.bench.skip_layers --model zoo --dtype int8

Beginning with none, the layer is added to the skipped ones that makes the best round, until nothing is
left to add (after Draft & Verify, arXiv 2309.08168, which searches by Bayesian optimization). A set is
judged by what is accepted on calibration prompts and by what its forwards cost, measured in turns with
plain ones; the best one, the early exits and plain decoding are then compared on other prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from forerun.bench.heldout import Row, summarize, table
from forerun.bench.paired import compare
from forerun.contracts import CausalLM
from forerun.core import Plan, Sequence
from forerun.drafters.exit_adapter import ExitAdapter
from forerun.drafters.layer_skip import LayerSkipDrafter, exit_at, zoo_adapter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.errors import ConfigError
from forerun.models.cpu.threads import threads_in_use
from forerun.models.running import prefill, run_rows
from forerun.models.zoo import zoo_path
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.stats import Stats
from forerun.theory.formulas import acceptance_from_tokens, speedup
from forerun.training.heldout import load_prompts

LONGEST = 10
REPEATS = 60


@dataclass(frozen=True)
class Choice:
    """A way to draft: the layers that it leaves out, and what stands before the head."""

    name: str
    skip_layers: tuple[int, ...]
    adapter: ExitAdapter | None = None


@dataclass(frozen=True)
class Measured:
    """What a choice is worth on the calibration prompts.

    Args:
        name, skip_layers: the choice.
        acceptance: of one drafted token after accepted ones.
        draft_cost: seconds of one drafted token over those of a plain forward of one token.
        verification_cost: of the rest of a round that drafts `drafted` tokens, likewise.
        drafted: the length at which it was measured.
        length: the one that the formulas find best at these costs.
        speedup: over plain decoding at that length, by the formulas.
        tokens_per_second: the same, times what plain decoding gave.
        identical: outputs equal to plain decoding's, and of how many.
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
    """What all choices are measured with.

    Args:
        engine: of the target alone.
        texts: the calibration prompts, as token ids.
        outputs: what plain decoding makes of them.
        params: of all outputs.
        drafted: tokens a round.
    """

    engine: Engine
    texts: Several[list[int]]
    outputs: Several[tuple[int, ...]]
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
            LayerSkipDrafter(plain.target, choice.skip_layers, choice.adapter),
            SpeculativeConfig(num_speculative_tokens=drafted, monitor=False),
            tokenizer=plain.tokenizer,
            eos_token_ids=plain.eos_token_ids,
            max_context=plain.max_context,
        )

    def measure(self, choice: Choice) -> Measured:
        """A choice on the calibration prompts."""
        completions = self.speculative(choice, self.drafted).generate(self.texts, self.params)
        stats = Stats.total(one.stats for one in completions)
        emitted = min(stats.mean_acceptance_length or 1.0, self.drafted + 1.0)
        acceptance = float(acceptance_from_tokens(emitted, self.drafted))
        forward, draft, rest = time_round(self.engine.target, choice, self.texts[0], self.drafted)
        lengths = np.arange(1, LONGEST + 1)
        gains = np.asarray(speedup(acceptance, lengths, draft, verification_cost=rest))
        best = int(gains.argmax())
        same = [one.token_ids for one in completions]
        equal = sum(one == other for one, other in zip(same, self.outputs, strict=True))
        return Measured(
            choice.name, choice.skip_layers, acceptance, draft, rest, self.drafted,
            int(lengths[best]), float(gains[best]), float(gains[best] / forward), (equal, len(same)),
        )  # fmt: skip

    def search(self, say: bool = True) -> list[Measured]:
        """All sets that the greedy search came by, best first."""
        skipped: tuple[int, ...] = ()
        seen: list[Measured] = []
        while len(skipped) < self.num_layers - 1:
            step = []
            for layer in set(range(1, self.num_layers)) - set(skipped):
                some = tuple(sorted((*skipped, layer)))
                step.append(self.measure(Choice(f"skip {_ranges(some)}", some)))
                if say:
                    print(f"\r{len(seen) + len(step)} sets", end="", file=sys.stderr)
            seen += step
            skipped = max(step, key=lambda one: one.speedup).skip_layers
        if say:
            print(file=sys.stderr)
        return sorted(seen, key=lambda one: -one.speedup)


def time_round(
    target: CausalLM, choice: Choice, text: list[int], drafted: int
) -> tuple[float, float, float]:
    """Seconds of a plain forward of one token; in such units a drafted token, and what a round costs
    besides: the forward that verifies, and the shared layers once more, for the last drafted token.
    All in turns, so that what else the machine does hits them alike."""
    cache = target.new_cache(1, len(text) + drafted + 1)
    prefill(target, cache, 0, text[:-1])
    drafter = LayerSkipDrafter(target, choice.skip_layers, choice.adapter)
    drafter.attach(cache)
    one = Sequence(0, text, len(text), SamplingParams(temperature=0.0), seed=0, row=0)
    randomness, first = Randomness(), len(text) - 1
    laps = []
    for _ in range(REPEATS):
        started = perf_counter()
        run_rows(target, cache, [0], [text[-1:]])
        plain = perf_counter()
        cache.trim(0, first)
        begun = perf_counter()
        drafter.propose([one], [Plan(0)], randomness)
        shared = perf_counter()
        cache.trim(0, first)
        again = perf_counter()
        draft = drafter.propose([one], [Plan(drafted)], randomness)[0]
        proposed = perf_counter()
        assert draft.hidden is not None
        run_rows(
            target,
            cache,
            [0],
            [[text[-1], *draft.token_ids]],
            positions=[[*range(first, first + 1 + len(draft))]],
            layers=range(drafter.shared_layers, target.num_layers),
            hidden_in=draft.hidden[None],
        )
        verified = perf_counter()
        cache.trim(0, first)
        rest = verified - proposed + shared - begun
        laps.append((plain - started, (proposed - again - (shared - begun)) / len(draft), rest))
    times = np.array(laps)
    ratios = np.median(times[:, 1:] / times[:, :1], axis=0)
    return float(np.median(times[:, 0])), float(ratios[0]), float(ratios[1])


def exits(engine: Engine, layers: Iterable[int]) -> list[Choice]:
    """Early exits with the plain head, and with the zoo's adapters where there are some."""
    found = []
    for layer in layers:
        skip_layers = tuple(exit_at(layer, engine.target.num_layers))
        found.append(Choice(f"exit {layer}", skip_layers))
        path = zoo_adapter(layer)
        if engine.target.name == "zoo" and path.is_file():
            adapter = ExitAdapter.load(path)
            found.append(Choice(f"exit {layer} + adapter", skip_layers, adapter))
    return found


def _ranges(layers: Several[int]) -> str:
    """Layers in few signs: 1-3,5."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][1] == layer - 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def listing(found: Several[Measured]) -> str:
    """What was measured as a Markdown table."""
    lines = [
        "| layers | accepted a token | draft cost | rest of the round | best length | speed-up "
        "| tokens/s | identical |",
        "| --- " * 8 + "|",
    ]
    for one in found:
        lines.append(
            f"| {one.name} | {one.acceptance:.1%} | {one.draft_cost:.3f} "
            f"| {one.verification_cost:.2f} | {one.length} | {one.speedup:.2f} "
            f"| {one.tokens_per_second:.0f} | {one.identical[0]} of {one.identical[1]} |"
        )
    return "\n".join(lines)


def final(bench: Bench, choices: Several[tuple[Choice, int]], texts: list[list[int]]) -> list[Row]:
    """Choices at their best lengths on prompts that the search has not seen."""
    rows = []
    for choice, length in choices:
        engine = bench.speculative(choice, length)
        found = [compare(engine, text, bench.params, 1) for text in texts]
        name = f"{choice.name}, {length} tokens"
        rows.append(summarize(name, bench.params.temperature, found))
    return rows


def make(options: argparse.Namespace) -> tuple[Bench, list[list[int]]]:
    """The bench, and the prompts that are kept from it.

    Raises:
        ConfigError: for a model without layers to leave out, or too few prompts.
    """
    engine = load(options.model, False, dtype=options.dtype, backend=options.backend)
    if engine.target.num_layers < 2:
        raise ConfigError(f"{engine.target.name} has one layer; there is nothing to leave out.")
    path = options.prompt_file or zoo_path().parent / "heldout.jsonl"
    prompts = load_prompts(path)[: options.prompts + options.final_prompts]
    if len(prompts) <= options.prompts:
        raise ConfigError(
            f"{path} has {len(prompts)} prompts, which leaves none for the comparison; "
            "give fewer --prompts."
        )
    assert engine.tokenizer is not None
    texts = [list(engine.tokenizer.encode(prompt.prompt)) for prompt in prompts]
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.max_tokens, seed=0, ignore_eos=True
    )
    few = texts[: options.prompts]
    outputs = [one.token_ids for one in engine.generate(few, params)]
    return Bench(engine, few, outputs, params, options.num_speculative_tokens), texts[len(few) :]


def parse_arguments(arguments: Several[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m forerun.bench.skip_layers", description=__doc__
    )
    parser.add_argument("--model", default="zoo")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--prompt-file", type=Path, help="prompts as in the zoo's heldout.jsonl")
    parser.add_argument("--prompts", type=int, default=8, help="to calibrate on")
    parser.add_argument("--final-prompts", type=int, default=20, help="to compare the best on")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--exits-only", action="store_true", help="search no sets")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Several[str] | None = None) -> None:
    options = parse_arguments(arguments)
    bench, texts = make(options)
    sets = [] if options.exits_only else bench.search()
    early = exits(bench.engine, range(1, min(bench.num_layers, 5)))
    measured = sorted(map(bench.measure, early), key=lambda one: -one.speedup)
    named = {choice.name: choice for choice in early}
    best = [(Choice(one.name, one.skip_layers), one.length) for one in sets[:1]]
    best += [(named[one.name], one.length) for one in measured[:2]]
    rows = final(bench, best, texts)
    if options.json:
        content: dict[str, Any] = {"threads": threads_in_use(), "model": options.model}
        content |= {
            "sets": [asdict(one) for one in sets],
            "exits": [asdict(one) for one in measured],
        }
        print(json.dumps({**content, "rows": [asdict(row) for row in rows]}))
        return
    if sets:
        print("Sets, best first:\n")
        print(listing(sets[:10]))
    print("\nEarly exits, best first:\n")
    print(listing(measured))
    print("\nThe best ones on other prompts, beside plain decoding in turns:\n")
    print(table(rows))


if __name__ == "__main__":
    main()
