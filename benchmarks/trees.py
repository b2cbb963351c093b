"""Trees for a pair of models on given text: acceptance by depth and rank, the cost of rounds, the best
shape for both, and a comparison with other shapes.

python -m benchmarks.trees --prompts 12 --nodes 16 --out tree.json

Half of the prompts serve to measure, the other half to compare.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.questions import CATEGORIES, load_questions
from benchmarks.round_costs import TreeCosts, measure_costs
from benchmarks.rule_pairs import RulePairs
from benchmarks.tree_acceptance import AcceptanceCounts, fastest_shape
from forerun.core import Stats, Tree
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.resolve import choose
from forerun.files import write_text
from forerun.measure import intervals
from forerun.measure.intervals import Interval
from forerun.measure.questions import Question, read_questions
from forerun.params import SamplingParams
from forerun.report.markdown import as_markdown
from forerun.report.table import Table
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape

RANKS = 8
# Deep along first children, wide where the ranks matter.
PROBE_NODES = 64


@dataclass(frozen=True)
class Trial:
    """A shape, or a way to grow trees, over all prompts.

    Args:
        name: of the shape.
        nodes, depth: drafted per round at most.
        tokens: per drafting round.
        ahead: mean difference of tokens per round from the searched tree on the same prompts.
        milliseconds: of a drafting round, the median over prompts.
    """

    name: str
    nodes: int
    depth: int
    tokens: Interval
    ahead: Interval | None
    milliseconds: float


@dataclass(frozen=True)
class Report:
    """The results at one temperature.

    Args:
        temperature: 0 grows the most probable tokens, others draw.
        acceptance: by depth and rank.
        searched: parents of the best tree of `nodes` nodes.
        fastest: parents of the fastest tree at the measured costs.
        trials: shapes of the same number of nodes, and ways to grow without a shape.
        rules: tokens per round that traversal accepts beyond the token rule, on the same drafts.
    """

    temperature: float
    acceptance: list[list[float]]
    searched: tuple[int, ...]
    fastest: tuple[int, ...]
    trials: list[Trial]
    rules: Interval | None


@dataclass
class Study:
    """A pair of models and the prompts to study it on."""

    model: str
    dtype: str
    questions: list[Question]
    max_tokens: int

    def engine(self, **options: Any) -> Engine:
        config = SpeculativeConfig(method="draft_model", policy="fixed", **options)
        return load(self.model, choose(config, self.model).config, dtype=self.dtype)

    def run(self, engine: Engine, questions: Sequence[Question], temperature: float) -> list[Stats]:
        """An output for each prompt, with seeds that all engines share."""
        params = SamplingParams(
            temperature=temperature, max_tokens=self.max_tokens, ignore_eos=True
        )
        numbers = count()
        # A seed in the parameters would select coupled drafts.
        engine.use_seeds(lambda: next(numbers))
        assert engine.tokenizer is not None, "loaded by name"
        prompts = [engine.tokenizer.encode(question.turns[0])[-1024:] for question in questions]
        return [engine.generate([prompt], params)[0].stats for prompt in prompts]

    @property
    def halves(self) -> tuple[list[Question], list[Question]]:
        """Prompts to measure with, and prompts to compare on."""
        return self.questions[::2], self.questions[1::2]


def run(study: Study, temperature: float, nodes: int, depth: int, costs: TreeCosts) -> Report:
    """Measure, search, compare."""
    measured_on, compared_on = study.halves
    probe = best_shape(TYPICAL_ACCEPTANCE, PROBE_NODES, depth).shape
    engine = study.engine(tree=probe, num_speculative_tokens=depth)
    counts = AcceptanceCounts(depth, RANKS)
    engine.watch_rounds(lambda done: counts.observe(done.drafts[0], done.verdicts[0]))
    study.run(engine, measured_on, temperature)
    table = counts.table()
    searched = best_shape(table, nodes, depth).shape
    shapes = {"searched": searched, **_others(nodes, depth)}
    stats = {name: _try(study, compared_on, temperature, shape) for name, shape in shapes.items()}
    grown: dict[str, dict[str, Any]] = {"most probable": {"draft_sample_method": "greedy"}}
    for name, options in grown.items():
        engine = study.engine(
            tree="auto", num_tree_nodes=nodes, num_speculative_tokens=depth, **options
        )
        stats[name] = study.run(engine, compared_on, temperature)
    chain = study.engine(num_speculative_tokens=depth)
    stats[f"chain of {depth}"] = study.run(chain, compared_on, temperature)
    return Report(
        temperature=temperature,
        acceptance=table.round(4).tolist(),
        searched=searched.parents,
        fastest=fastest_shape(table, nodes, costs.seconds).parents,
        trials=[_trial(name, own, stats["searched"]) for name, own in stats.items()],
        rules=_rules(study, compared_on, temperature, searched) if temperature else None,
    )


def _others(nodes: int, depth: int) -> dict[str, Tree]:
    """Common shapes of the same size: equal branching, wide at the top, parallel chains."""
    per_chain = max(1, min(depth, nodes // 4))
    chains = [-1 if at % per_chain == 0 else at - 1 for at in range(nodes // per_chain * per_chain)]
    binary = [(node - 2) // 2 if node > 1 else -1 for node in range(nodes)]
    wide = [(node - 4) // 2 if node > 3 else -1 for node in range(nodes)]
    return {
        "two children each": Tree(tuple(binary)).cut(depth),
        "four, then two each": Tree(tuple(wide)).cut(depth),
        f"chains of {per_chain}": Tree(tuple(chains)),
    }


def _try(
    study: Study, questions: Sequence[Question], temperature: float, shape: Tree
) -> list[Stats]:
    engine = study.engine(tree=shape, num_speculative_tokens=shape.depth)
    return study.run(engine, questions, temperature)


def _trial(name: str, by_prompt: Sequence[Stats], searched: Sequence[Stats]) -> Trial:
    total = Stats.total(by_prompt)
    lengths, others = (
        [stats.mean_acceptance_length or 1.0 for stats in side] for side in (by_prompt, searched)
    )
    tokens = intervals.ratio(
        [stats.num_emitted_in_drafts for stats in by_prompt],
        [stats.num_drafts for stats in by_prompt],
    )
    assert tokens is not None, "a draft model always drafts"
    ahead = None
    if by_prompt is not searched:
        ahead = intervals.mean(np.subtract(lengths, others).tolist())
    return Trial(
        name=name,
        nodes=round(total.num_draft_tokens / total.num_drafts),
        depth=len(total.num_accepted_tokens_per_pos),
        tokens=tokens,
        ahead=ahead,
        milliseconds=float(
            np.median([1e3 * stats.seconds / stats.num_target_forwards for stats in by_prompt])
        ),
    )


def _rules(
    study: Study, questions: Sequence[Question], temperature: float, shape: Tree
) -> Interval:
    """Tokens per round of traversal beyond the token rule, on the same drafts."""
    engine = study.engine(tree=shape, num_speculative_tokens=shape.depth)
    pairs = RulePairs()
    engine.rules["traversal"] = pairs
    differences = []
    for question in questions:
        study.run(engine, [question], temperature)
        differences.append(pairs.take())
    return intervals.mean(differences)


def table(report: Report) -> str:
    """A report as Markdown."""
    rows = [
        [
            trial.name,
            str(trial.nodes),
            str(trial.depth),
            str(trial.tokens),
            "–" if trial.ahead is None else str(trial.ahead),
            f"{trial.milliseconds:.2f}",
        ]
        for trial in report.trials
    ]
    header = (
        *("tree", "nodes", "depth", "tokens a round (95 %)"),
        *("beyond the searched one", "ms a round"),
    )
    lines = [f"T = {report.temperature:g}", "", as_markdown(Table.of("", header, rows))]
    if report.rules is not None:
        lines += ["", f"traversal beyond token on the same drafts: {report.rules} tokens a round"]
    by_rank = "; ".join(" ".join(f"{x:.2f}" for x in row) for row in report.acceptance[:3])
    fastest = Tree(report.fastest)
    return "\n".join(
        [
            *lines,
            "",
            f"acceptance by rank at depths 1, 2, 3: {by_rank}",
            f"fastest by measured costs: {len(fastest)} nodes, {fastest.depth} deep",
            "",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__)
    parser.add_argument("--model", default="zoo")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--nodes", type=int, default=SpeculativeConfig.num_tree_nodes)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--categories", nargs="+", default=CATEGORIES[:4], choices=CATEGORIES)
    parser.add_argument("--questions", type=Path, help="a file of your own, JSON lines")
    parser.add_argument("--prompts", type=int, default=10, help="of each category")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, help="write the fastest shape of the first temperature")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.questions is not None:
        questions = read_questions([options.questions])[: options.prompts]
    else:
        sets = [load_questions(name, options.prompts) for name in options.categories]
        questions = [question for group in zip(*sets, strict=False) for question in group]
    study = Study(options.model, options.dtype, questions, options.max_tokens)
    costs = measure_costs(replace(study, questions=questions[:4]), options.nodes, options.depth)
    reports = [
        run(study, temperature, options.nodes, options.depth, costs)
        for temperature in options.temperatures
    ]
    print(costs.table(), "", *map(table, reports), sep="\n")
    if options.out is not None:
        shape = {"parents": reports[0].fastest, "acceptance": reports[0].acceptance}
        write_text(options.out, json.dumps(shape, indent=2) + "\n")
    if options.json is not None:
        content = {"costs": asdict(costs), "reports": [asdict(report) for report in reports]}
        write_text(options.json, json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
