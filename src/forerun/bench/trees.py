"""Trees for a pair of models on given text: what is accepted by depth and rank, what rounds cost, the
shape that follows from both, and how it does beside others.

python -m forerun.bench.trees --prompts 12 --nodes 16 --out tree.json

Half of the prompts are measured on, the other half compared on.
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

from forerun.bench import intervals
from forerun.bench.intervals import Interval
from forerun.bench.questions import CATEGORIES, Question, load_questions, read_questions
from forerun.bench.round_costs import RoundCosts, measure_costs
from forerun.bench.rule_pairs import RulePairs
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.pairs import choose
from forerun.files import write_text
from forerun.params import SamplingParams
from forerun.stats import Stats
from forerun.trees import TreeShape
from forerun.trees.acceptance import AcceptanceCounts
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_for_costs, best_shape

RANKS = 8
# Deep where the first child is, wide where it pays to know the ranks.
PROBE_NODES = 64


@dataclass(frozen=True)
class Trial:
    """A shape, or a way to grow trees, over all prompts.

    Args:
        name: of the shape.
        nodes, depth: drafted a round at most.
        tokens: a drafting round.
        ahead: tokens a round beyond those of the searched tree on the same prompts, on average.
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
    """What one temperature came to.

    Args:
        temperature: 0 grows the most probable tokens, others draw.
        acceptance: by depth and rank.
        searched: parents of the best tree of `nodes` nodes.
        fastest: parents of the tree that the search finds fastest at the measured costs.
        trials: shapes of the same number of nodes, and the ways to grow without a shape.
        rules: tokens a round that traversal accepts beyond the token rule, on the same drafts.
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
        config = SpeculativeConfig(method="draft_model", monitor=False, **options)
        return load(self.model, choose(config, self.model).config, dtype=self.dtype)

    def run(self, engine: Engine, questions: Sequence[Question], temperature: float) -> list[Stats]:
        """One output for each prompt; drawn ones by seeds that all engines share."""
        params = SamplingParams(
            temperature=temperature, max_tokens=self.max_tokens, ignore_eos=True
        )
        numbers = count()
        # A seed of the request's own would select coupled drafts.
        engine.use_seeds(lambda: next(numbers))
        assert engine.tokenizer is not None, "loaded by name"
        prompts = [engine.tokenizer.encode(one.prompt)[-1024:] for one in questions]
        return [engine.generate([prompt], params)[0].stats for prompt in prompts]

    @property
    def halves(self) -> tuple[list[Question], list[Question]]:
        """Prompts to measure on, and prompts to compare on."""
        return self.questions[::2], self.questions[1::2]


def study(one: Study, temperature: float, nodes: int, depth: int, costs: RoundCosts) -> Report:
    """Measure, search, compare."""
    measured_on, compared_on = one.halves
    probe = best_shape(TYPICAL_ACCEPTANCE, PROBE_NODES, depth).shape
    engine = one.engine(tree=probe, num_speculative_tokens=depth)
    counts = AcceptanceCounts(depth, RANKS)
    engine.watch_rounds(lambda _, draft, verdict: counts.observe(draft, verdict))
    one.run(engine, measured_on, temperature)
    table = counts.table()
    searched = best_shape(table, nodes, depth).shape
    shapes = {"searched": searched, **_others(nodes, depth)}
    found = {name: _try(one, compared_on, temperature, shape) for name, shape in shapes.items()}
    grown: dict[str, dict[str, Any]] = {"most probable": {"draft_sample_method": "greedy"}}
    for name, options in grown.items():
        engine = one.engine(
            tree="auto", num_tree_nodes=nodes, num_speculative_tokens=depth, **options
        )
        found[name] = one.run(engine, compared_on, temperature)
    chain = one.engine(num_speculative_tokens=depth)
    found[f"chain of {depth}"] = one.run(chain, compared_on, temperature)
    return Report(
        temperature=temperature,
        acceptance=table.round(4).tolist(),
        searched=searched.parents,
        fastest=best_for_costs(table, costs.seconds, nodes, depth).shape.parents,
        trials=[_trial(name, stats, found["searched"]) for name, stats in found.items()],
        rules=_rules(one, compared_on, temperature, searched) if temperature else None,
    )


def _others(nodes: int, depth: int) -> dict[str, TreeShape]:
    """Shapes of as many nodes that people use: equal branching, wide at the top, several chains."""
    per_chain = max(1, min(depth, nodes // 4))
    several = [
        -1 if at % per_chain == 0 else at - 1 for at in range(nodes // per_chain * per_chain)
    ]
    binary = [(node - 2) // 2 if node > 1 else -1 for node in range(nodes)]
    wide = [(node - 4) // 2 if node > 3 else -1 for node in range(nodes)]
    return {
        "two children each": TreeShape(tuple(binary)).cut(depth),
        "four, then two each": TreeShape(tuple(wide)).cut(depth),
        f"chains of {per_chain}": TreeShape(tuple(several)),
    }


def _try(
    one: Study, questions: Sequence[Question], temperature: float, shape: TreeShape
) -> list[Stats]:
    engine = one.engine(tree=shape, num_speculative_tokens=shape.depth)
    return one.run(engine, questions, temperature)


def _trial(name: str, each: Sequence[Stats], beside: Sequence[Stats]) -> Trial:
    total = Stats.total(each)
    lengths, others = (
        [one.mean_acceptance_length or 1.0 for one in side] for side in (each, beside)
    )
    tokens = intervals.ratio(
        [one.num_emitted_in_drafts for one in each], [one.num_drafts for one in each]
    )
    assert tokens is not None, "a draft model always drafts"
    ahead = None if each is beside else intervals.mean(np.subtract(lengths, others).tolist())
    return Trial(
        name=name,
        nodes=round(total.num_draft_tokens / total.num_drafts),
        depth=len(total.num_accepted_tokens_per_pos),
        tokens=tokens,
        ahead=ahead,
        milliseconds=float(
            np.median([1e3 * one.seconds / one.num_target_forwards for one in each])
        ),
    )


def _rules(
    one: Study, questions: Sequence[Question], temperature: float, shape: TreeShape
) -> Interval:
    """Traversal and the token rule on the same drafts."""
    engine = one.engine(tree=shape, num_speculative_tokens=shape.depth)
    pairs = RulePairs()
    engine.rules["traversal"] = pairs
    differences = []
    for question in questions:
        one.run(engine, [question], temperature)
        differences.append(pairs.take())
    return intervals.mean(differences)


def table(report: Report) -> str:
    """One temperature as Markdown."""
    lines = [
        f"T = {report.temperature:g}",
        "",
        "| tree | nodes | depth | tokens a round (95 %) | beyond the searched one | ms a round |",
        "| --- " * 6 + "|",
    ]
    for one in report.trials:
        lines.append(
            f"| {one.name} | {one.nodes} | {one.depth} | {one.tokens} "
            f"| {'–' if one.ahead is None else one.ahead} | {one.milliseconds:.2f} |"
        )
    if report.rules is not None:
        lines += ["", f"traversal beyond token on the same drafts: {report.rules} tokens a round"]
    by_rank = "; ".join(" ".join(f"{x:.2f}" for x in row) for row in report.acceptance[:3])
    fastest = TreeShape(report.fastest)
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
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.trees", description=__doc__)
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
        questions = read_questions(options.questions)[: options.prompts]
    else:
        each = [load_questions(name, options.prompts) for name in options.categories]
        questions = [question for several in zip(*each, strict=False) for question in several]
    one = Study(options.model, options.dtype, questions, options.max_tokens)
    costs = measure_costs(replace(one, questions=questions[:4]), options.nodes, options.depth)
    reports = [
        study(one, temperature, options.nodes, options.depth, costs)
        for temperature in options.temperatures
    ]
    print(costs.table(), "", *map(table, reports), sep="\n")
    if options.out is not None:
        TreeShape(reports[0].fastest).save(options.out, acceptance=reports[0].acceptance)
    if options.json is not None:
        content = {"costs": asdict(costs), "reports": [asdict(report) for report in reports]}
        write_text(options.json, json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
