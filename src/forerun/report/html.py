"""Results as one page with charts, which loads nothing: readable in the dark and on paper."""

from __future__ import annotations

import re
from html import escape
from importlib import resources

from forerun.report.result import Figure, Result, Sentence, as_sentence
from forerun.report.svg import style, svg
from forerun.report.table import Cell, Table

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page(result: Result) -> str:
    """A whole page: answers, figures, tables, and how it was measured."""
    heading = f"{escape(result.title)} <span>{escape(result.subject)}</span>"
    answers = "".join(_answer(as_sentence(answer)) for answer in result.answers)
    parts = [f"<h1>{heading}</h1>", f'<section class="verdict">{answers}</section>']
    parts += map(_figure, result.figures)
    parts += ["<h2>All figures</h2>", *map(_table, result.tables), "<h2>How it was measured</h2>"]
    said = [*(as_sentence(ending).text for ending in result.endings), *result.notes]
    said += result.legend
    items = [f"<li>{escape(text)}</li>" for text in said]
    items += [
        f"<li><b>{escape(name)}</b> {escape(text)}</li>" for name, text in result.described.items()
    ]
    parts.append(f"<ul>{''.join(items)}</ul><pre>{escape(result.command)}</pre>")
    return _PAGE.format(
        title=escape(f"{result.title}: {result.subject}"),
        style=style() + (resources.files("forerun.report") / "page.css").read_text("utf-8"),
        body="\n".join(parts),
    )


def _answer(sentence: Sentence) -> str:
    kind = "defect" if "red" in sentence.style else "advice"
    details = "".join(f"<li>{_words(text)}</li>" for text in sentence.details)
    return f'<p class="{kind}">{_words(sentence.text)}</p><ul>{details}</ul>'


def _words(text: str) -> str:
    """A sentence whose numbers keep their `x`."""
    return re.sub(r"(\d) x\b", r"\1&nbsp;x", escape(text))


def _figure(figure: Figure) -> str:
    title, text = escape(figure.title), escape(figure.text)
    return f"<figure><h2>{title}</h2><p>{text}</p>{svg(figure.chart)}</figure>"


def _table(table: Table) -> str:
    """A table; cells with heat are coloured by it."""
    heat = (
        ' class="heat"' if any(cell.heat is not None for row in table.rows for cell in row) else ""
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    lines = "".join(
        f"<tr><th>{escape(first.text)}</th>{''.join(map(_cell, others))}</tr>"
        for first, *others in table.rows
    )
    shown = f"<table{heat}><tr>{head}</tr>{lines}</table>"
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return f"<h3>{escape(table.title)}</h3><div class='wide'>{shown}</div>{notes}"


def _cell(cell: Cell) -> str:
    text = escape(f"{cell.text}{cell.mark} {cell.tail}".strip())
    text = f"<b>{text}</b>" if cell.style == "bold" else text
    if cell.heat is None:
        return f"<td>{text}</td>"
    kind = "win" if cell.heat >= 1 else "lose"
    strength = min(70, round(120 * abs(cell.heat - 1)))
    return f'<td class="{kind}" style="--strength:{strength}%">{text}</td>'
