"""Every method in alternation with plain decoding: where it helps, how much, and where it loses.

python -m benchmarks.methods --prompts 10 --max-tokens 64 --json methods.json
python -m benchmarks.methods --model smollm2 --dtype auto --as-loaded --seed 1 --max-tokens 128
python -m benchmarks.methods --model smollm2 --dtype auto --methods eagle3 --draft-model HEAD --length 3

A model with a chat template gets its questions as messages, and its answers end where it ends them.
Methods that remember earlier requests start cold with every prompt, which has a namespace of its own.
The monitor is off, so that losses show, except with `--as-loaded`. Without a prediction in the question,
the `prediction` method gets the output of plain greedy decoding with one line in ten changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import intervals
from benchmarks.intervals import Interval
from benchmarks.questions import CATEGORIES, Question, load_questions, read_questions
from forerun.compare.paired import Comparison, Run, comparison_of, run_pair
from forerun.core import NO_HINTS, Hints, Stats
from forerun.drafters import DRAFTERS
from forerun.engine.chat import ChatTemplate
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.pairs import choose
from forerun.errors import UnknownNameError
from forerun.files import write_text
from forerun.params import SamplingParams
from recipes.heldout import loops

# Tokens along a path: drafting with a model costs time, looking up does not.
LENGTHS = {
    "suffix": 8,
    "ngram": 8,
    "prediction": 16,
    "cascade": 8,
    "token_recycling": 6,
    "layer_skip": 2,
}
USUAL_LENGTH = 4
WARM_UP_TOKENS = 16
AS_LOADED = "as loaded"


@dataclass(frozen=True)
class Setting:
    """A way to speculate.

    Args:
        method: the drafter; AS_LOADED is what `forerun.load` picks, with its monitor.
        shape: `chain`, `auto`, or a file with a tree.
        length: tokens along a path at most.
        num_nodes: of an automatic tree.
        model: the draft model or head; None for the known one, or none.
    """

    method: str
    shape: str
    length: int
    num_nodes: int
    model: str | None = None

    @property
    def config(self) -> SpeculativeConfig:
        """For an engine."""
        if self.method == AS_LOADED:
            return SpeculativeConfig()
        config = SpeculativeConfig(
            method=self.method,
            model=self.model,
            num_speculative_tokens=self.length,
            monitor=False,
        )
        if self.shape == "chain":
            return config
        if self.shape == "auto":
            return replace(config, tree="auto", num_tree_nodes=self.num_nodes)
        return replace(config, tree=self.shape)


@dataclass(frozen=True)
class Row:
    """A setting over the prompts of one category at one temperature.

    Args:
        setting, category, temperature: of the row.
        prompts: their number.
        tokens_per_target_forward: over all rounds of all prompts; 1 for plain decoding.
        mean_acceptance_length: the same over drafting rounds.
        acceptance_by_position: share of drafting rounds that accepted at least 1, 2, … tokens.
        drafted_per_round: mean number of nodes of a draft.
        share_of_rounds_that_drafted: in the others there was nothing to propose.
        speedup: median over prompts of the paired ratio of tokens per second, prefill included.
        tokens_per_second, plain_tokens_per_second: over all prompts.
        share_that_loops: of the outputs.
        speedup_without_loops: over the other outputs.
        identical: outputs equal to plain decoding's; None where sampling makes that meaningless.
    """

    setting: Setting
    category: str
    temperature: float
    prompts: int
    tokens_per_target_forward: Interval
    mean_acceptance_length: Interval | None
    acceptance_by_position: tuple[float, ...]
    drafted_per_round: float
    share_of_rounds_that_drafted: float
    speedup: Interval
    tokens_per_second: float
    plain_tokens_per_second: float
    share_that_loops: float
    speedup_without_loops: Interval | None
    identical: int | None


def summarize(
    setting: Setting, category: str, temperature: float, comparisons: Sequence[Comparison]
) -> Row:
    """One row from the comparisons of its prompts."""
    pairs = [entry.shown for entry in comparisons]
    by_prompt = [pair.speculative.completion.stats for pair in pairs]
    stats = Stats.total(by_prompt)
    looping = [loops(pair.speculative.completion.token_ids) for pair in pairs]
    straight = [p.speedup for p, loop in zip(pairs, looping, strict=True) if not loop]
    per_forward = intervals.ratio(
        [counts.num_emitted_tokens for counts in by_prompt],
        [counts.num_target_forwards for counts in by_prompt],
    )
    assert per_forward is not None, "every output takes a forward"
    comparable = [entry.identical for entry in comparisons if entry.identical is not None]
    return Row(
        setting=setting,
        category=category,
        temperature=temperature,
        prompts=len(comparisons),
        tokens_per_target_forward=per_forward,
        mean_acceptance_length=intervals.ratio(
            [counts.num_emitted_in_drafts for counts in by_prompt],
            [counts.num_drafts for counts in by_prompt],
        ),
        acceptance_by_position=tuple(
            count / stats.num_drafts for count in stats.num_accepted_tokens_per_pos
        ),
        drafted_per_round=stats.num_draft_tokens / max(1, stats.num_drafts),
        share_of_rounds_that_drafted=stats.num_drafts / stats.num_target_forwards,
        speedup=intervals.median([pair.speedup for pair in pairs]),
        tokens_per_second=_rate([pair.speculative for pair in pairs]),
        plain_tokens_per_second=_rate([pair.plain for pair in pairs]),
        share_that_loops=sum(looping) / len(looping),
        speedup_without_loops=intervals.median(straight) if straight else None,
        identical=sum(comparable) if comparable else None,
    )


def measure(
    engine: Engine,
    questions: Sequence[Question],
    temperature: float,
    max_tokens: int,
    seed: int | None = None,
) -> list[Comparison]:
    """Compare with plain decoding on every question, after a warm-up on the first."""
    params = SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        ignore_eos=_template(engine) is None,
        seed=seed,
    )
    short = replace(params, max_tokens=WARM_UP_TOKENS)
    run_pair(engine, _encoded(engine, questions[0]), short)
    comparisons = []
    for question in questions:
        prompt_ids = _encoded(engine, question)
        hints = NO_HINTS
        if engine.drafter is not None and engine.drafter.reads_predictions:
            hints = Hints(question.prediction or _nearly_plain(engine, prompt_ids, params))
        pair = run_pair(engine, prompt_ids, params, hints)
        comparisons.append(comparison_of(engine, prompt_ids, params, [pair]))
    return comparisons


def _nearly_plain(engine: Engine, prompt_ids: list[int], params: SamplingParams) -> str:
    """The output of plain greedy decoding with one line in ten changed."""
    run = Run(engine.stream_plain(prompt_ids, replace(params, temperature=0.0))).follow()
    lines = run.completion.text.splitlines(keepends=True)
    return "".join(f"# {line}" if number % 10 == 9 else line for number, line in enumerate(lines))


def _template(engine: Engine) -> ChatTemplate | None:
    return ChatTemplate.of(engine.tokenizer)


def _encoded(engine: Engine, question: Question) -> list[int]:
    assert engine.tokenizer is not None, "loaded by name"
    template = _template(engine)
    if template is not None:
        return template.encode([{"role": "user", "content": question.prompt}])
    # The zoo's context holds prompt and output.
    return list(engine.tokenizer.encode(question.prompt))[-1024:]


def _rate(runs: Sequence[Run]) -> float:
    return sum(len(run.events) for run in runs) / sum(run.seconds for run in runs)


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| category | T | method | draft | tokens a forward (95 %) | a drafting round (95 %) "
        "| by position | drafted | speed-up (95 %) | tokens/s | plain | loops | identical |",
        "| --- " * 13 + "|",
    ]
    for row in rows:
        positions = " ".join(f"{share:.0%}" for share in row.acceptance_by_position[:4])
        length = row.mean_acceptance_length
        lines.append(
            f"| {row.category} | {row.temperature:g} | `{row.setting.method}` "
            f"| {_shape(row)} | {row.tokens_per_target_forward} "
            f"| {'–' if length is None else length} | {positions or '–'} "
            f"| {row.drafted_per_round:.1f} | {row.speedup} | {row.tokens_per_second:.0f} "
            f"| {row.plain_tokens_per_second:.0f} | {row.share_that_loops:.0%} "
            f"| {'–' if row.identical is None else f'{row.identical} of {row.prompts}'} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """A table for each temperature: tokens per target forward and speed-up, by category."""
    categories = list(dict.fromkeys(row.category for row in rows))
    tables = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        cells: dict[tuple[str, str], dict[str, str]] = {}
        for row in rows:
            if row.temperature == temperature:
                tokens = row.tokens_per_target_forward
                cell = f"{tokens.value:.2f}, {row.speedup.value:.2f} x"
                cells.setdefault((row.setting.method, _shape(row)), {})[row.category] = cell
        lines = [f"| T = {temperature:g} | draft | {' | '.join(categories)} |"]
        lines.append("| --- " * (len(categories) + 2) + "|")
        for (method, shape), by_category in cells.items():
            columns = " | ".join(by_category.get(category, "–") for category in categories)
            lines.append(f"| `{method}` | {shape} | {columns} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _shape(row: Row) -> str:
    return "chain" if row.setting.shape == "chain" else f"tree {row.setting.num_nodes}"


def settings(
    methods: Sequence[str],
    shapes: Sequence[str],
    nodes: int,
    length: int | None = None,
    model: str | None = None,
) -> Iterator[Setting]:
    """All valid settings: methods without trees have chains only. `length` is by default the method's
    usual one."""
    for method in methods:
        for shape in shapes:
            if shape == "chain" or DRAFTERS.find(method).takes_trees:
                tokens = length or LENGTHS.get(method, USUAL_LENGTH)
                yield Setting(method, shape, tokens, nodes, model)


def run(
    engine: Engine,
    setting: Setting,
    questions: dict[str, list[Question]],
    temperatures: Sequence[float],
    max_tokens: int,
    seed: int | None = None,
) -> Iterator[Row]:
    """The rows of a setting."""
    for temperature in temperatures:
        for category, prompts in questions.items():
            comparisons = measure(engine, prompts, temperature, max_tokens, seed)
            yield summarize(setting, category, temperature, comparisons)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("--model", default="zoo")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--methods", nargs="+", default=DRAFTERS.names())
    parser.add_argument(
        "--draft-model", help="for all methods named: a draft model, or a trained head of theirs"
    )
    parser.add_argument("--shapes", nargs="+", default=["chain", "auto"])
    parser.add_argument("--nodes", type=int, default=SpeculativeConfig.num_tree_nodes)
    parser.add_argument("--length", type=int, help="tokens along any path, for every method")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--categories", nargs="+", default=CATEGORIES, choices=CATEGORIES)
    parser.add_argument(
        "--questions", nargs="+", type=Path, help="files of your own, JSON lines: a category each"
    )
    parser.add_argument("--prompts", type=int, default=10, help="of each category")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, help="of all requests; by default they have none")
    parser.add_argument("--as-loaded", action="store_true", help="only what forerun.load picks")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.questions is not None:
        questions = {
            path.stem: read_questions(path)[: options.prompts] for path in options.questions
        }
    else:
        questions = {name: load_questions(name, options.prompts) for name in options.categories}
    if unknown := set(options.methods) - set(DRAFTERS.names()):
        raise UnknownNameError("method", sorted(unknown)[0], DRAFTERS.names())
    rows = []
    chosen = [Setting(AS_LOADED, "chain", SpeculativeConfig.num_speculative_tokens, 0)]
    if not options.as_loaded:
        shapes, model = options.shapes, options.draft_model
        chosen = [*settings(options.methods, shapes, options.nodes, options.length, model)]
    for setting in chosen:
        config = choose(setting.config, options.model).config
        engine = load(options.model, config, dtype=options.dtype)
        temperatures, limit = options.temperatures, options.max_tokens
        for row in run(engine, setting, questions, temperatures, limit, options.seed):
            print(table([row]).splitlines()[-1], file=sys.stderr)
            rows.append(row)
    rows.sort(key=lambda row: (list(questions).index(row.category), row.temperature))
    print(table(rows), summary(rows), sep="\n\n")
    if options.json is not None:
        content: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
        write_text(options.json, json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
