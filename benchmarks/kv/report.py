"""The result of `benchmarks.kv` for people: answers in words, tables, and the plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from benchmarks.kv.measure import Row, measure
from benchmarks.kv.request import FULL, CacheSetting, KvRequest, settings_of
from benchmarks.kv.texts import prose
from forerun.core import Exactness
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.errors import ConfigError, PromptError
from forerun.files import read_text, size_text
from forerun.models import Checkpoint
from forerun.progress import say
from forerun.report.chart import Curves, Line
from forerun.report.result import Interrupted, Result
from forerun.report.table import Cell, Mark, Table, long_table

# Perplexity, over the full cache's, up to which a setting is called as good.
_LITTLE = 1.02
_NOTE = (
    "perplexity is that of the tokens behind the prompt, read as the engine decodes; a needle counts as "
    "found where greedy decoding gives its whole number"
)


def answer(request: KvRequest) -> Result:
    """The result of the command; see `benchmarks.kv.request.run`."""
    settings = settings_of(request)
    text = prose() if request.text is None else read_text(request.text, "text", PromptError)
    checkpoint = request.model.open()
    longest = checkpoint.summary.max_context
    if request.longest > longest:
        raise ConfigError(
            f"--contexts go up to {max(request.contexts)}, with what follows {request.longest} tokens; the "
            f"context of {checkpoint.name} is {longest}. Give shorter ones."
        )
    engines = _engines(request, checkpoint, settings)
    target = engines[0].target
    facts = {"model": target.name, "precision": target.precision}
    rows: list[Row] = []
    try:
        rows.extend(measure(request, settings, engines, text))
    except KeyboardInterrupt:
        if not rows:
            raise
        say("interrupted: this is what was measured until then")
        stopped = replace(report_of(rows), facts=facts, device=target.device)
        raise Interrupted(stopped) from None
    return replace(report_of(rows), facts=facts, device=target.device)


def _engines(
    request: KvRequest, checkpoint: Checkpoint, settings: Sequence[CacheSetting]
) -> list[Engine]:
    """An engine for each setting; those that differ in what is evicted alone share a model."""
    place, loaded, engines = request.model.placement, dict[str, Engine](), []
    for setting in settings:
        if setting.kv_dtype not in loaded:
            loaded[setting.kv_dtype] = load(
                checkpoint,
                False,
                dtype=place.dtype,
                device=place.device,
                backend=place.backend,
                kv_dtype=setting.kv_dtype,
                max_context=request.longest,
            )
        engine = loaded[setting.kv_dtype]
        if setting.compression.is_on:
            engine = Engine(
                engine.target,
                tokenizer=engine.tokenizer,
                max_context=engine.max_context,
                compression=setting.compression,
            )
        engines.append(engine)
    return engines


def report_of(rows: Sequence[Row]) -> Result:
    """Answers, tables and charts of measured settings."""
    contexts = dict.fromkeys((row["context"] for row in rows), 0)
    groups = [[row for row in rows if row["context"] == context] for context in contexts]
    return Result(
        mode="kv",
        rows=rows,
        tables=[_table(group) for group in groups],
        charts=list(_charts(rows)),
        answers=[_sentence(group) for group in groups if len(group) > 1],
        notes=[_NOTE],
    )


def _sentence(rows: Sequence[Row]) -> str:
    """The smallest setting that is as good as the full cache at one context, or the nearest to it."""
    full, *others = rows
    good = [
        row
        for row in others
        if row["perplexity_ratio"] <= _LITTLE and row["found"] >= full["found"] - 1e-9
    ]
    begin = f"At {full['context']} tokens"
    if not good:
        least = min(others, key=lambda row: (row["perplexity_ratio"], -row["found"]))
        return (
            f"{begin} no setting keeps perplexity within {_LITTLE - 1:.0%} and finds what the full cache "
            f"finds ({full['found']:.0%} of the needles): {least['setting']} comes nearest in perplexity "
            f"({least['perplexity_ratio']:.3f} x) and finds {least['found']:.0%}."
        )
    best = min(good, key=lambda row: float(row["memory_share"]))
    return (
        f"{begin} {best['setting']} keeps perplexity within {_LITTLE - 1:.0%} "
        f"({best['perplexity_ratio']:.3f} x) and finds {best['found']:.0%} of the needles "
        f"(full: {full['found']:.0%}) with {best['memory_share']:.0%} of the memory, "
        f"at {best['speed_ratio']:.2f} x the speed."
    )


def _table(rows: Sequence[Row]) -> Table:
    columns: dict[str, Callable[[Row], Cell | str]] = {
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
    title = f"The cache at a context of {rows[0]['context']} tokens"
    return long_table(title, columns, rows, ("exactness",))


def _setting(row: Row) -> Cell:
    approximate = row["exactness"] == Exactness.APPROXIMATE
    return Cell(row["setting"], Mark.APPROXIMATE if approximate else Mark.NONE)


def _ratio(row: Row) -> str:
    if row["setting"] == FULL:
        return "1"
    low, high = row["perplexity_low"], row["perplexity_high"]
    return f"{row['perplexity_ratio']:.3f} ({low:.3f}–{high:.3f})"


def _charts(rows: Sequence[Row]) -> Iterator[Curves]:
    figures = {
        "perplexity": "perplexity_ratio",
        "memory": "memory_share",
        "tokens/s": "speed_ratio",
        "share of needles found": "found",
    }
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    settings = dict.fromkeys(row["setting"] for row in rows if row["setting"] != FULL)
    panels = {
        title: {
            name: Line(contexts, [row[figure] for row in rows if row["setting"] == name])
            for name in settings
        }
        for title, figure in figures.items()
    }
    if settings:
        yield Curves(
            "Settings of the cache",
            "tokens of the prompt",
            panels,
            True,
            "over the full cache",
            "full",
        )
