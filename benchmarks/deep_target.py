"""SmolLM2's text at the cost of a larger model: what drafts bring where a forward takes long.

python -m benchmarks.deep_target --billions 1 --dtype auto --questions mt_bench.jsonl gsm8k.jsonl

Layers whose outputs are zero are added to SmolLM2 (`benchmarks.deepened`), so that text and acceptance are
SmolLM2's, bit for bit, and the cost is that of a model of so many parameters. No figure here is that of a
real model of this size: its text is another one, and other drafts are accepted.

Drafters are the head that comes along, looking up, and SmolLM2's own default; with --draft-model also a draft
model. `--draft-model smollm2` is the upper bound, the target's own text from a draft of a tenth of its size.
Figures are those of `forerun bench`: each prompt in turns with plain decoding of the same.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.deepened import layers_for, write_deep, write_deep_head
from forerun.bench.contestants import Workshop
from forerun.bench.pairs import ALL, ROWS, MeasuredPair, SettingFigures, rate
from forerun.bench.report import BenchReport
from forerun.bench.session import BenchSession
from forerun.bench.settings import COLD, DEFAULT, Axes, Setting, cross, method_of
from forerun.cli.bars import bars
from forerun.engine.config import SpeculativeConfig
from forerun.engine.resolve import choose
from forerun.heads import kind_at
from forerun.measure.ledger import Ledger
from forerun.measure.questions import Question, in_turns, read_questions
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.models.gguf.header import GgufHeader
from forerun.models.zoo import packaged_head, packaged_path
from forerun.params import SamplingParams
from forerun.report.machine import made_with
from forerun.report.markdown import as_markdown
from forerun.report.table import Table

SOURCE, HEAD = "smollm2", "eagle3"
WORK = Path("build/deep-target")
LENGTHS = (1, 2, 3, 4, 5)
EARLY_EXIT = "layer_skip"


@dataclass(frozen=True)
class Deep:
    """The deep target and its head, as they are stored.

    Args:
        path, head: of the target's file and of the head's directory.
        num_layers: of the target.
        own_layers: those among them that are not added.
    """

    path: Path
    head: Path | None
    num_layers: int
    own_layers: int

    @classmethod
    def make(cls, billions: float, work: Path) -> Deep:
        """SmolLM2 with so many billions of parameters, and the packaged head for it."""
        source = packaged_path(SOURCE)
        own = int(GgufHeader.read(source).metadata["llama.block_count"])
        num_layers = layers_for(source, billions)
        path = write_deep(source, work / f"{SOURCE}-{num_layers}-layers.gguf", num_layers)
        packaged = packaged_head(SOURCE, HEAD)
        head = packaged and write_deep_head(packaged, work / f"{packaged.name}-deep", own)
        return cls(path, head, num_layers, own)


def settings(
    deep: Deep, methods: Sequence[str], lengths: Sequence[int], draft: str | None
) -> list[Setting]:
    """The default of SmolLM2 with the deep target's head, after earlier requests and cold, and all methods at
    fixed lengths.

    Args:
        draft: a draft model.
    """
    default = choose(SpeculativeConfig(), SOURCE).config
    if default.model is not None and kind_at(default.model) == HEAD:
        default = replace(default, model=str(deep.head))
    models = [str(deep.head)] if deep.head and HEAD in methods else []
    axes = Axes(
        method=tuple(methods),
        num_speculative_tokens=tuple(lengths),
        draft_model=(*models, *([draft] if draft else [])),
        options={"exit_layer": deep.own_layers} if EARLY_EXIT in methods else {},
    )
    defaults = [Setting(DEFAULT, default, cold=cold) for cold in (False, True)]
    fixed = (replace(setting, model="") for setting in cross(axes, str(deep.path)).settings)
    return [*defaults, *fixed]


def measure(deep: Deep, options: argparse.Namespace) -> tuple[BenchReport, dict[str, Any]]:
    """The figures of all settings, and the beginning of the JSON."""
    params = SamplingParams(max_tokens=options.max_tokens, ignore_eos=True)
    chosen = settings(deep, options.methods, options.lengths, options.draft_model)
    workshop = Workshop(Checkpoint.open(deep.path), {"dtype": options.dtype})
    with loading_once(), bars():
        prepared = workshop.prepare(_questions(options), params)
        plain = workshop.engine(False, prepared, params, 1)
        begin = made_with(plain.target.device)
        header = {"model": deep.path.name, "dtype": options.dtype, "hardware": begin["hardware"]}
        done: list[MeasuredPair] = []
        file = options.rows and Ledger(options.rows, ROWS, header, done.append)
        with workshop.drafting(chosen, prepared, params, 1) as contestants:
            session = BenchSession(
                plain, contestants, prepared.prompts, params, options.temperatures
            )
            session.done = {row.key: row for row in done}
            rows = session.usable()
            for row in session.run():
                rows.append(row)
                if file:
                    file.append([row])
    facts = {
        "target:": (
            f"{SOURCE} with {deep.num_layers - deep.own_layers} layers added whose outputs are zero, "
            f"{options.billions:g} billion parameters, dtype {options.dtype}"
        ),
        "text": f"and acceptance are {SOURCE}'s; the cost is a larger model's",
        "workload:": f"{len(prepared.prompts)} questions, {options.max_tokens} tokens each",
    }
    command = shlex.join(["python", "-m", "benchmarks.deep_target", *sys.argv[1:]])
    exactness = {contestant.name: str(contestant.engine.exactness) for contestant in contestants}
    return BenchReport(str(deep.path), command, facts, rows, exactness, notes=session.notes), begin


def _questions(options: argparse.Namespace) -> list[Question]:
    """The first turns: later ones are longer prompts about the same."""
    read = read_questions(options.questions, by_file=True)
    first = [replace(question, turns=question.turns[:1]) for question in read]
    return in_turns(first, options.num_questions)


def shown(cells: Sequence[SettingFigures]) -> list[SettingFigures]:
    """The settings that a table shows: the defaults, and the best fixed length of each method.

    Args:
        cells: of one temperature, over all sets.
    """
    best: dict[str, SettingFigures] = {}
    for cell in cells:
        name = cell.setting if cell.setting in (DEFAULT, COLD) else method_of(cell.setting)
        if name not in best or cell.speedup.value > best[name].speedup.value:
            best[name] = cell
    return list(best.values())


def table(report: BenchReport, temperature: float) -> str:
    """One temperature as a Markdown table: tokens a forward and the speed-up with its interval, by set."""
    cells = [cell for cell in report.cells if cell.temperature == temperature]
    by_place = {(cell.setting, cell.category): cell for cell in cells}
    categories = list(dict.fromkeys(cell.category for cell in cells))
    rows = list[list[str]]()
    for whole in shown([cell for cell in cells if cell.category == ALL]):
        own = [_figures(by_place.get((whole.setting, category))) for category in categories]
        same = "–" if whole.identical is None else f"{whole.identical[0]} of {whole.identical[1]}"
        rows.append([whole.setting, *own, same])
    header = [f"T = {temperature:g}", *categories, "same text"]
    return as_markdown(Table.of("", header, rows, "l" * len(header)))


def _figures(cell: SettingFigures | None) -> str:
    if cell is None or cell.tokens_per_forward is None:
        return "–"
    return f"{cell.tokens_per_forward.value:.2f}, {cell.speedup}"


def text(report: BenchReport) -> str:
    """The report for people."""
    plain = rate([side for cell in report.whole for side in cell.plain])
    parts = [f"{name} {fact}" for name, fact in report.facts.items()]
    parts += [f"plain decoding: {plain:.1f} tokens/s, prompts included", *report.remarks]
    temperatures = dict.fromkeys(cell.temperature for cell in report.whole)
    tables = [table(report, temperature) for temperature in temperatures]
    return "\n\n".join(["\n".join(parts), *tables, "\n".join(report.defects)]).strip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deep_target",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    questions = sorted((packaged_path("zoo").parent / "questions").glob("*.jsonl"))
    parser.add_argument("--billions", type=float, default=0.5, help="parameters of the target")
    parser.add_argument("--dtype", default="auto", help="auto (as stored), int8 or int4")
    parser.add_argument("--questions", nargs="+", type=Path, default=questions, metavar="FILE")
    parser.add_argument("--num-questions", type=int, default=2, help="of each file")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--methods", nargs="+", default=["suffix", HEAD])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--draft-model", help="a draft model; adds the method draft_model")
    parser.add_argument("--rows", type=Path, help="a file that an interrupted run goes on from")
    parser.add_argument("--work", type=Path, default=WORK, help="where the target is written")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.draft_model and "draft_model" not in options.methods:
        options.methods = [*options.methods, "draft_model"]
    report, begin = measure(Deep.make(options.billions, options.work), options)
    print(json.dumps({**begin, **report.as_dict()}) if options.json else text(report))
    if report.defects:
        sys.exit(1)


if __name__ == "__main__":
    main()
