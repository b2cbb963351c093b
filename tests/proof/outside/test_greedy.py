"""Verdicts on the first difference of two answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forerun.proof.outside.greedy import DEFECT, UNCLEAR, Noise, _divergence
from forerun.proof.outside.reply import Spoken


@pytest.mark.parametrize(("told", "verdict"), [(True, DEFECT), (False, UNCLEAR)])
def test_a_limit_ends_tokens_and_not_characters(told: bool, verdict: str) -> None:
    """One answer goes on where the other ended; without tokens both may have as many."""
    short, long = ("New",), ("New", " York")
    on, off = (
        Spoken(
            "".join(texts),
            texts if told else tuple("".join(texts)),
            texts if told else (),
            (),
            (),
            "length",
        )
        for texts in (short, long)
    )
    subject: Any = SimpleNamespace(is_reference=False)
    found = _divergence(0, subject, ("Where?", {"max_tokens": 1}), on, off, Noise([0.1 / 3]))
    assert found is not None
    assert found.verdict == verdict
