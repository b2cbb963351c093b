"""The picture of a training: well-formed, with a line for each category through its points."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from forerun.training.result import draw

SVG = "{http://www.w3.org/2000/svg}"


def points(line: ElementTree.Element) -> list[list[float]]:
    return [[float(part) for part in pair.split(",")] for pair in line.attrib["points"].split()]


def test_lines_go_through_their_points() -> None:
    curve = [(0, {"a & b, T=0": 1.0, "<c>": 1.5}), (50_000, {"a & b, T=0": 2.0, "<c>": 3.0})]
    root = ElementTree.fromstring(draw(curve, "forerun & others"))
    assert root.attrib["aria-label"] == "forerun & others"
    kinds = [line.attrib["class"] for line in root.iter(f"{SVG}polyline")]
    assert kinds == ["curve plain", "curve line0", "curve line1"]
    mean, first, second = (points(line) for line in root.iter(f"{SVG}polyline"))
    assert mean[0][0] == first[0][0] < mean[1][0] == first[1][0]
    (low, high), (_, middle) = (first[0][1], second[1][1]), first[1]
    assert low - middle == pytest.approx((low - high) / 2, abs=0.11)
    assert low - mean[1][1] == pytest.approx(0.75 * (low - high), abs=0.11)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for text in ("a & b, T=0 2.00", "<c> 3.00", "mean 2.50", "50 k", "tokens", "3"):
        assert text in texts


def test_labels_do_not_cover_each_other() -> None:
    curve = [(10, dict.fromkeys("abcdefghijkl", 1.0))]
    root = ElementTree.fromstring(draw(curve, ""))
    texts = root.iter(f"{SVG}text")
    places = [t.attrib for t in texts if "series" in t.attrib["class"]]
    assert len({(place["x"], place["y"]) for place in places}) == 13
    heights = {float(place["y"]) for place in places}
    assert all(lower - upper >= 15 for upper, lower in pairwise(sorted(heights)))
    assert 0 < min(heights) < max(heights) < float(root.attrib["viewBox"].split()[3])


@pytest.mark.parametrize("curve", [[], [(0, {})]])
def test_a_training_without_validations(curve: list[tuple[int, dict[str, float]]]) -> None:
    root = ElementTree.fromstring(draw(curve, "empty"))
    assert root.attrib["aria-label"] == "empty"
    (line,) = root.iter(f"{SVG}polyline")
    assert (line.attrib["class"], len(points(line))) == ("curve plain", 1)
