"""`--compare` tells a defect from rounding."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from forerun.measure import paired
from forerun.measure.attribution import DEFECT
from tests.helpers.command_line import Cli


def test_a_defect_is_reported_and_ends_with_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = vars(paired.Run)["completion"].fget

    def corrupted(run: Any) -> Any:
        completion = original(run)
        if "accepted" not in completion.origins:
            return completion
        ids = completion.token_ids
        return dataclasses.replace(completion, token_ids=(*ids[:3], (ids[3] + 1) % 300, *ids[4:]))

    monkeypatch.setattr(paired.Run, "completion", property(corrupted))
    options = ("--prompt", "def add", "--temperature", "0", "--compare", "--compare-rounds", "1")
    result = cli.generate(*options, "--json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert content["identical"] is False
    assert content["first_difference"]["index"] == 3
    assert content["first_difference"]["explanation"] == DEFECT
    result = cli.generate(*options)
    assert result.exit_code == 1
    assert "first difference" in result.stderr


def test_an_interruption_before_the_first_run_ends_quietly(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(paired, "compare", interrupted)
    result = cli.generate("--prompt", "def add", "--compare", "--json")
    assert (result.exit_code, result.stdout) == (130, "")


def test_decisions_are_those_of_the_shown_run(cli: Cli) -> None:
    """Warm-up and other rounds of the comparison are not counted among them."""
    shown = ("--policy", "auto", "--no-calibrate", "--compare", "--compare-rounds", "2")
    content = cli.json("--temperature", "0", *shown)
    rounds = sum(choice["rounds"] for choice in content["decisions"].values())
    assert rounds == content["stats"]["num_target_forwards"]
