"""The result of `forerun bench kv` for people: answers in words, tables, and the plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from forerun.bench.kv.measure import KvEngines, KvRow, measure
from forerun.bench.kv.request import FULL, KvRequest, settings_of
from forerun.bench.kv.texts import prose
from forerun.contracts import CausalLM
from forerun.core import Exactness
from forerun.engine.load import load
from forerun.errors import ConfigError, PromptError
from forerun.files import read_text, size_text
from forerun.progress import say
from forerun.report.chart import Chart, Curves, Line
from forerun.report.result import Interrupted, Result
from forerun.report.table import Cell, Mark, Table, long_table

# Of perplexity, that a setting may cost and still be called as good.
_LITTLE = 1.02


def answer(request: KvRequest) -> Result:
    """The result of the command; see `forerun.bench.kv.request.run`."""
    settings, text = settings_of(request), _text(request.text)
    checkpoint = request.model.open()
    longest = checkpoint.summary.max_context
    if request.longest > longest:
        raise ConfigError(
            f"--contexts go up to {max(request.contexts)}, with what follows {request.longest} tokens; the "
            f"context of {checkpoint.name} is {longest}. Give shorter ones."
        )
    place = request.model
    engines = KvEngines(
        partial(
            load,
            checkpoint,
            False,
            dtype=place.dtype,
            device=place.device,
            backend=place.backend,
            max_context=request.longest,
        )
    )
    rows: list[KvRow] = []
    target = engines.of(settings[0]).target
    try:
        for row in measure(request, settings, engines, text):
            rows.append(row)
    except KeyboardInterrupt:
        say("interrupted: this is what was measured until then")
        raise (Interrupted(_result(rows, target)) if rows else KeyboardInterrupt()) from None
    return _result(rows, target)


def _text(file: str | None) -> str:
    return prose() if file is None else read_text(file, "text", PromptError)


def _result(rows: Sequence[KvRow], target: CausalLM) -> Result:
    facts = {"model": target.name, "precision": target.precision}
    return replace(report_of(rows), facts=facts, device=target.device)


def report_of(rows: Sequence[KvRow]) -> Result:
    """Answers, tables and charts of measured settings."""
    return Result(
        mode="kv",
        rows=[asdict(row) for row in rows],
        tables=list(_tables(rows)),
        charts=list(_charts(rows)),
        answers=list(_answers(rows)),
        notes=[
            "perplexity is that of the tokens behind the prompt, read as the engine decodes; a needle counts "
            "as found where greedy decoding gives its whole number"
        ],
    )


def _by_context(rows: Sequence[KvRow]) -> dict[int, list[KvRow]]:
    found: dict[int, list[KvRow]] = {}
    for row in rows:
        found.setdefault(row.context, []).append(row)
    return found


def _answers(rows: Sequence[KvRow]) -> Iterator[str]:
    for context, some in _by_context(rows).items():
        full, *others = some
        good = [
            row
            for row in others
            if row.perplexity_ratio <= _LITTLE and row.found >= full.found - 1e-9
        ]
        begin = f"At {context} tokens"
        if not others:
            continue
        if not good:
            least = min(others, key=lambda row: (row.perplexity_ratio, -row.found))
            yield (
                f"{begin} no setting keeps perplexity within {_LITTLE - 1:.0%} and finds what the full cache "
                f"finds ({full.found:.0%} of the needles): {least.setting} comes nearest in perplexity "
                f"({least.perplexity_ratio:.3f} x) and finds {least.found:.0%}."
            )
            continue
        best = min(good, key=lambda row: row.memory_share)
        yield (
            f"{begin} {best.setting} keeps perplexity within {_LITTLE - 1:.0%} "
            f"({best.perplexity_ratio:.3f} x) and finds {best.found:.0%} of the needles "
            f"(full: {full.found:.0%}) with {best.memory_share:.0%} of the memory, "
            f"at {best.speed_ratio:.2f} x the speed."
        )


def _tables(rows: Sequence[KvRow]) -> Iterator[Table]:
    columns: dict[str, Callable[[Mapping[str, Any]], Cell | str]] = {
        "setting": _setting,
        "perplexity": lambda row: f"{row['perplexity']:.2f}",
        "x full (95 %)": _ratio,
        "found": lambda row: f"{row['found']:.0%}",
        "p(answer)": lambda row: f"{row['answer_probability']:.2f}",
        "memory": lambda row: size_text(row["memory_bytes"]),
        "of full": lambda row: f"{row['memory_share']:.0%}",
        "read s": lambda row: f"{row['read_seconds']:.1f}",
        "tokens/s": lambda row: f"{row['tokens_per_second']:.1f}",
        "speed x full": lambda row: f"{row['speed_ratio']:.2f}",
    }
    for context, some in _by_context(rows).items():
        title = f"The cache at a context of {context} tokens"
        yield long_table(title, columns, [asdict(row) for row in some], ("exactness",))
    depths = list(rows[0].found_by_depth)
    by_depth: dict[str, Any] = {"setting": _setting, "context": lambda row: str(row["context"])}
    for depth in depths:
        by_depth[f"at {float(depth):.0%}"] = lambda row, at=depth: (
            f"{row['found_by_depth'][at]:.0%}"
        )
    ordered = sorted(
        map(asdict, rows), key=lambda row: [r.setting for r in rows].index(row["setting"])
    )
    yield long_table("Needles found by depth", by_depth, ordered, ("setting",))


def _setting(row: Mapping[str, Any]) -> Cell:
    approximate = row["exactness"] == Exactness.APPROXIMATE
    return Cell(row["setting"], Mark.APPROXIMATE if approximate else Mark.NONE)


def _ratio(row: Mapping[str, Any]) -> str:
    if row["setting"] == FULL:
        return "1"
    low, high = row["perplexity_low"], row["perplexity_high"]
    return f"{row['perplexity_ratio']:.3f} ({low:.3f}–{high:.3f})"


def _charts(rows: Sequence[KvRow]) -> Iterator[Chart]:
    contexts, names = list(_by_context(rows)), list(dict.fromkeys(row.setting for row in rows))
    by_name = {name: [row for row in rows if row.setting == name] for name in names}
    figures = {
        "perplexity": "perplexity_ratio",
        "memory": "memory_share",
        "tokens/s": "speed_ratio",
    }
    panels = {
        title: {
            name: Line(contexts, [getattr(row, field) for row in some])
            for name, some in by_name.items()
            if name != FULL
        }
        for title, field in figures.items()
    }
    if len(names) > 1:
        yield Curves(
            "Settings of the cache",
            "tokens of the prompt",
            panels,
            True,
            "over the full cache",
            "full",
        )
    shares = {
        f"context {context}": {
            row.setting: Line(
                list(map(float, row.found_by_depth)), list(row.found_by_depth.values())
            )
            for row in some
        }
        for context, some in _by_context(rows).items()
    }
    yield Curves("Needles", "depth in the prompt", shares, False, "share found", None)
