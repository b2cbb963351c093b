"""The page and the tables: whole, self-contained, and true to the rows."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from forerun.bench.pairs import MeasuredPair
from forerun.bench.report import BenchReport, result_of, tables
from forerun.bench.settings import COLD, DEFAULT
from forerun.report.html import page
from forerun.report.markdown import document
from tests.helpers.bench_rows import failed_row, made_row

NAME = 'draft_model <x>&"y", 3 tokens'


def report(rows: list[MeasuredPair]) -> BenchReport:
    return BenchReport("a <b> model", "forerun bench -m 'a <b>'", {"machine": "c & d"}, rows)


def full() -> list[MeasuredPair]:
    rows = [
        made_row(name, n, value, category=category, temperature=t, batch=batch)
        for name, value in ((NAME, 1.4), ("suffix, 6 tokens", 0.9), ("default", 1.1))
        for category in ("code", "qa")
        for n in range(6)
        for t in (0.0, 1.0)
        for batch in (1, 2)
    ]
    return [*rows, failed_row("suffix, 6 tokens", 77, "it <broke>")]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if (
            tag not in ("meta", "line", "circle", "rect", "polyline")
            or not self.get_starttag_text()
        ) or (tag in ("rect",) and not (self.get_starttag_text() or "").endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = page(result_of(report(full())))
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    names = {name for name, _ in tags.attributes}
    assert not names & {"src", "href", "srcset", "onload"}
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "http" not in text
    assert "a <b>" not in text
    assert "a &lt;b&gt; model" in text
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(chart)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for node in root.iter():
            for key in ("x", "x1", "x2", "cx"):
                assert -1 <= float(node.attrib.get(key, 0)) <= width
            for key in ("y", "y1", "y2", "cy"):
                assert -1 <= float(node.attrib.get(key, 0)) <= height
    assert text.count("<svg") == 4


def test_the_page_says_the_verdict_first() -> None:
    made = report(full())
    text = page(result_of(made))
    assert text.index("use draft_model") < text.index("<svg")
    assert "it &lt;broke&gt;" in text


def test_peers_are_compared_with_what_one_can_choose() -> None:
    rows = [
        made_row(name, n, value)
        for name, value in (("peer", 1.0), (DEFAULT, 1.5), (COLD, 3.0))
        for n in range(6)
    ]
    made = BenchReport("m", "c", {}, rows, peers={"peer": {"name": "peer"}}, notes=["what cold is"])
    [sentence] = made.beside_peers
    assert "1.50 x at its own best" in sentence
    assert {row[0].text for row in tables(made)[0].rows} == {"peer", DEFAULT, COLD}
    for text in (page(result_of(made)), document(result_of(made)), *made.as_dict()["remarks"]):
        assert "what cold is" in text


def test_a_page_of_little() -> None:
    for rows in ([made_row("a, 3 tokens", 1, 1.0)], full()[:1]):
        assert "too few prompts" in page(result_of(report(rows)))


def test_tables_hold_every_setting() -> None:
    made = report(full())
    for table in tables(made):
        settings = {row[0].text for row in table.rows} - {"plain decoding"}
        assert settings == {NAME, "suffix, 6 tokens", "default"}
        assert all(len(row) == len(table.header) for row in table.rows)
    text = document(result_of(made))
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {10, 4, 7}
    assert "1.40 x (1.40–1.40)" in text
    assert "1 measurement failed: suffix, 6 tokens" in text
