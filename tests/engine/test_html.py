"""A completion as HTML: escaped, self-contained, by origin, with its drafts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from forerun.core import Origin
from forerun.engine.html import page, render
from forerun.engine.requests import Completion, RoundRecord
from forerun.params import SamplingParams
from tests.helpers.engines import engine


class Reader(HTMLParser):
    """The text of each class, and the elements that are open at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}
        self.spans: Counter[str] = Counter()
        self.tags: set[str] = set()
        self.drafts: list[list[tuple[str, str]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        kind = dict(attrs).get("class") or ""
        if tag == "meta":
            return
        self.open.append((tag, kind))
        if kind == "draft":
            self.drafts.append([])
        if not self._inside("draft") and not self._inside("legend"):
            self.spans[kind] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        kind = self.open[-1][1] if self.open else ""
        if self._inside("draft"):
            if kind != "draft":
                self.drafts[-1].append((kind, data))
        elif self._inside("text"):
            self.texts["text"] = self.texts.get("text", "") + data

    def _inside(self, kind: str) -> bool:
        return any(own == kind for _, own in self.open)


@pytest.fixture
def completion() -> Completion:
    return engine(length=4).generate([[1, 2, 3]], SamplingParams(temperature=0.9, max_tokens=60))[0]


def test_it_is_the_text_by_origin(completion: Completion) -> None:
    reader = Reader(render(completion, "abc "))
    assert reader.open == []
    assert reader.texts["text"] == "abc " + completion.text
    for origin in Origin:
        assert reader.spans[origin] == completion.origins.count(origin)
    assert {Origin.ACCEPTED, Origin.RECOVERED} <= set(completion.origins)


def test_a_round_shows_its_draft(completion: Completion) -> None:
    drafts = Reader(render(completion)).drafts
    assert len(drafts) == len(completion.rounds) > 3
    for shown, record in zip(drafts, completion.rounds, strict=True):
        texts = [text.strip("⟨⟩") for kind, text in shown if text.startswith("⟨")]
        assert texts == list(record.draft_texts)
        assert sum(kind == "accepted" for kind, _ in shown) == len(record.accepted)


def test_branches_stand_below_each_other(completion: Completion) -> None:
    record = RoundRecord(0, 1, (1, 2, 3, 4), ("a", "b", "c", "d"), (-1, 0, 1, 0), (0, 3))
    html = render(replace(completion, rounds=(record,)))
    draft = html.split('class="draft">')[1].split('<div class="legend">')[0]
    lines = [[part.split("⟩")[0] for part in line.split("⟨")[1:]] for line in draft.splitlines()]
    assert lines[1:4] == [["a"], ["b", "c"], ["d"]]
    assert "2 of 4 drafted tokens accepted" in draft


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a & b", "\"'>", "\x1b[2J\x00", "𝔘\n\t"]
)
def test_everything_is_escaped(completion: Completion, text: str) -> None:
    texts = (text, *completion.texts[1:])
    rounds = tuple(
        replace(record, draft_texts=(text,) * len(record.draft_texts))
        for record in completion.rounds
    )
    html = page(replace(completion, texts=texts, rounds=rounds), text, title=text)
    reader = Reader(html)
    assert "script" not in reader.tags
    assert reader.open == []
    visible = text.replace("\x1b", "␛").replace("\x00", "␀")
    assert reader.texts["text"].startswith(visible * 2)
    assert "\x1b" not in html


def test_a_page_loads_nothing_and_has_two_themes(completion: Completion) -> None:
    html = page(completion)
    for word in ("http:", "https:", "src=", "url(", "@import", "<link", "<script", "javascript"):
        assert word not in html
    assert "prefers-color-scheme:dark" in html
    assert html.startswith("<!doctype html>")


def test_a_notebook_shows_it(completion: Completion) -> None:
    assert completion._repr_html_() == render(completion)
    assert not completion._repr_html_().startswith("<!doctype")
