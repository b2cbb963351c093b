"""The picture of a training: well-formed, with a line for each category through its points."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from forerun.training.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw, read_curve

SVG = "{http://www.w3.org/2000/svg}"


def test_lines_go_through_their_points() -> None:
    curve = [(0, {"a & b, T=0": 1.0, "<c>": 1.5}), (5000, {"a & b, T=0": 2.0, "<c>": 3.0})]
    root = ElementTree.fromstring(draw(curve, "forerun & others"))
    lines = [line.attrib["points"] for line in root.iter(f"{SVG}polyline")]
    right, low, high = WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
    middle = (low + high) / 2
    assert lines == [
        f"{LEFT}.0,{low}.0 {right}.0,{middle:.1f}",
        f"{LEFT}.0,{low + (high - low) / 4:.1f} {right}.0,{high}.0",
        f"{LEFT}.0,{low + (high - low) / 8:.1f} {right}.0,{low + (high - low) * 0.75:.1f}",
    ]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for text in ("forerun & others", "a & b, T=0 2.00", "<c> 3.00", "mean 2.50", "5 k", "3.0"):
        assert text in texts


def test_labels_do_not_cover_each_other() -> None:
    curve = [(10, dict.fromkeys("abcdefghijkl", 1.0))]
    root = ElementTree.fromstring(draw(curve, ""))
    heights = [float(t.attrib["y"]) for t in root.iter(f"{SVG}text") if "class" in t.attrib]
    assert len(set(heights)) == len(heights) == 14
    assert max(heights) < HEIGHT


@pytest.mark.parametrize("curve", [[], [(0, {})]])
def test_a_training_without_validations(curve: list[tuple[int, dict[str, float]]]) -> None:
    ElementTree.fromstring(draw(curve, "empty"))


def test_the_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "state.jsonl"
    assert read_curve(log, {}) == []
    log.write_text(
        '{"loss": 2.0, "tokens": 5}\n{"acceptance_length": 1.5, "lengths": {"a": 1.5}, "tokens": 9}\n'
    )
    assert read_curve(log, {"a": 1.0}) == [(0, {"a": 1.0}), (9, {"a": 1.5})]
    with log.open("a") as file:
        file.write('{"acceptance_length": 1.7, "len')
    assert read_curve(log, {}) == [(9, {"a": 1.5})]
