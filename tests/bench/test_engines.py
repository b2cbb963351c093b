"""Engines of a session: what stays on disk of what their policies learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.contestants import Drafting, Workshop
from forerun.bench.runs import EncodedPrompt, Prepared, run_plain
from forerun.bench.settings import DEFAULT, Axes, cross
from forerun.files import CACHE_VARIABLE
from forerun.models import Checkpoint
from forerun.models.checkpoint import loading_once
from forerun.params import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=24)
PROMPT = EncodedPrompt("0", "a", (1, 2, 3, 1, 2, 3, 1, 2))


def test_only_the_warm_default_begins_with_the_disk_and_leaves_something_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cold one, which saves later here, would leave what a single request has taught it."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    workshop = Workshop(Checkpoint.open("zoo"), {})
    prepared = Prepared((PROMPT,), 0, template=False)
    settings = cross(Axes(method=(DEFAULT,)), "zoo").settings
    with loading_once():
        with workshop.drafting(settings, prepared, PARAMS, 1) as (warm, cold):
            for contestant in (warm, warm, cold):
                measure(contestant)
                policy_of(contestant).close()
            learned = beliefs(warm)
            assert beliefs(cold) != learned, "or else this test could not fail"
        [file] = (tmp_path / "costs").iterdir()
        assert json.loads(file.read_text())["learned"]["members"] == learned
        with workshop.drafting(settings, prepared, PARAMS, 1) as (warm, cold):
            assert beliefs(warm) == learned
            begun = beliefs(cold)
            policy_of(cold).forget()
            assert beliefs(cold) == begun != learned


def measure(contestant: Drafting) -> None:
    contestant.measure([PROMPT], PARAMS, run_plain(contestant.engine, [PROMPT], PARAMS))


def beliefs(contestant: Drafting) -> Any:
    """What its policy believes of drafters, as JSON has it."""
    return json.loads(json.dumps(policy_of(contestant).learned["members"]))


def policy_of(contestant: Drafting) -> Any:
    return contestant.engine.policy
