"""Every writer shows every cell, in columns that line up, whatever its text holds."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from forerun.errors import ConfigError
from forerun.report.chart import Span, Spans
from forerun.report.html import page, style, svg
from forerun.report.machine import made_with
from forerun.report.markdown import as_markdown, document, heading, line
from forerun.report.plot import figure_of
from forerun.report.result import Figure, Result, Sentence
from forerun.report.table import MEANINGS, Cell, Mark, Table, long_table
from forerun.report.terminal import as_text, show

ROWS = [{"name": "a | <b>", "value": 1.5}, {"name": "c", "value": 12.25}]
COLUMNS = {
    "name": lambda row: row["name"],
    "value": lambda row: Cell(
        f"{row['value']:.2f}", Mark.BEST if row["value"] > 2 else Mark.NONE, "x"
    ),
}
TABLE = long_table("T", COLUMNS, ROWS, ["name"])
NAMED = Table.of("N", ["name", "n"], [["long name", "1"], ["b", Cell("23")]], notes=["below"])
CHART = Spans("s & t", "x", [Span("n<1>", 1, 2, 3, "w", "win")], 1.5)


def test_columns_line_up_with_marks_and_without() -> None:
    title, *lines = as_text(TABLE).splitlines()
    assert title == "T"
    assert lines == ["   name     value", "a | <b>   1.50  x", "      c  12.25* x"]
    assert as_text(NAMED).splitlines() == [
        "N",
        "name        n",
        "long name   1",
        "b          23",
        "below",
    ]


def test_markdown_has_as_many_cells_in_every_line() -> None:
    lines = as_markdown(TABLE).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert r"a \| <b>" in lines[2]
    assert as_markdown(NAMED).splitlines()[1] == "| --- | ---: |"
    rows = map(line, NAMED.texts)
    assert as_markdown(NAMED) == "\n".join([heading(NAMED.header, NAMED.align), *rows])


def test_a_document_and_a_page_hold_all_that_a_result_says() -> None:
    result = Result(
        answers=[Sentence("use <x>.", ["why"], "bold")],
        tables=[TABLE, NAMED],
        endings=["in the end"],
        notes=["a note"],
        title="forerun",
        subject="m",
        figures=[Figure("F", "text", CHART)],
        described={"machine": "c & d"},
        command="forerun it",
    )
    text, html = document(result), page(result)
    for words in ("why", "12.25", "long name", "in the end", "a note", "machine", "forerun it"):
        assert words in text
        assert words in html
    assert "**Use <x>.**" in text
    assert "use &lt;x&gt;." in html
    assert "a | &lt;b&gt;" in html
    assert html.count("<svg") == 1
    assert result.legend == ["* best length"]


def test_a_pipe_gets_answers_tables_and_endings_and_talk_goes_aside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Result(answers=[Sentence("a", ["b"])], tables=[NAMED, TABLE], endings=["e"], notes=["n"]))
    out, err = capsys.readouterr()
    assert out.split("\n\n") == ["a\n  b", as_text(NAMED), as_text(TABLE), "e\n"]
    assert err == "* best length\nforerun: n\n"


def test_charts_are_well_formed() -> None:
    root = ElementTree.fromstring(svg(CHART))
    assert root.attrib["aria-label"] == CHART.title


LONG = "a name far longer than any chart is wide, which no reader takes in at once"
CROWDED = [Span(LONG, low, 2, 3, "1.23 (0.91 to 1.42)", "win") for low in (0.001, 1, 2)]


@pytest.mark.parametrize(
    "chart", [CHART, Spans("s", "times", CROWDED), Spans("s", "x", CROWDED[2:])]
)
def test_charts_can_be_read_on_a_page_360_pixels_wide(chart: Spans) -> None:
    """Text is of 9 pixels at least, ends inside the chart, and does not run into its neighbour."""
    narrow, _, _ = style().partition("@media (min-width")
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", narrow)]
    assert "min-width" not in narrow
    root = ElementTree.fromstring(svg(chart))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert min(sizes) * (360 - 2 * 20) / width >= 9
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in root.iter("text"):
        x, y, long = float(text.attrib["x"]), float(text.attrib["y"]), 6.5 * len(text.text or "")
        start = x - long * {"start": 0, "middle": 0.5, "end": 1}[text.attrib["text-anchor"]]
        assert -1 <= start <= start + long <= width + 1
        assert 0 <= y <= height
        lines.setdefault(y, []).append((start, start + long))
    for places in map(sorted, lines.values()):
        for (_, end), (start, _) in itertools.pairwise(places):
            assert end <= start


def test_the_object_is_what_the_command_says_or_its_fields() -> None:
    begun = made_with(None)
    said = Result(content={"a": 1}, settings={"s": 2}, answers=["b"], mode="m").as_dict()
    assert said == {**begun, "settings": {"s": 2}, "a": 1}
    fields = Result("m", {"s": 1}, [{"r": 2}], facts={"f": 3}).as_dict()
    assert fields == {**begun, "mode": "m", "settings": {"s": 1}, "f": 3, "rows": [{"r": 2}]}


def test_a_page_and_a_document_hold_the_notes_and_the_legend_of_its_tables() -> None:
    marked = Table("t", ["a"], [[[Cell("1", Mark.SLOWER)]]], notes=["a note below it"])
    result = Result(tables=[marked], title="x")
    for text in (page(result), document(result)):
        assert "a note below it" in text
        assert f"{Mark.SLOWER} {MEANINGS[Mark.SLOWER]}" in text


def test_a_result_without_charts_is_refused_by_the_drawer() -> None:
    with pytest.raises(ConfigError, match="no chart"):
        figure_of([])
