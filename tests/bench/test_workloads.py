"""Built-in questions: enough of every category, each once."""

from __future__ import annotations

from collections import Counter

import pytest

from forerun.bench.request import BUILT_IN, built_in
from forerun.errors import UnknownNameError


def test_what_is_built_in() -> None:
    counts = Counter(question.category for question in built_in())
    assert set(counts) == set(BUILT_IN)
    assert min(counts.values()) >= 6
    assert {q.category for q in built_in(["json", "xml"])} == {"json", "xml"}
    texts = [question.text for question in built_in()]
    assert len(set(texts)) == len(texts)
    with pytest.raises(UnknownNameError, match="summary"):
        built_in(["sumary"])
