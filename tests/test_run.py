"""Commands in Python: the same request, checks and result as on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import forerun
from forerun.cli.main import application
from forerun.errors import ConfigError, UnknownNameError


def test_a_command_is_a_function_of_its_options() -> None:
    result = forerun.run("simulate", acceptance=(0.5, 0.8), lengths=[1, 2, 3])
    flags = ("simulate", "--acceptance", "0.5,0.8", "--lengths", "1-3", "--json")
    printed = CliRunner().invoke(application, flags, catch_exceptions=False).stdout
    assert json.loads(json.dumps(result.as_dict())) == json.loads(printed)


def test_wrong_use_is_refused_as_on_the_command_line() -> None:
    with pytest.raises(UnknownNameError, match=r"'simulat'.*Did you mean 'simulate'"):
        forerun.run("simulat")
    with pytest.raises(UnknownNameError, match="unknown command 'chat'"):
        forerun.run("chat")
    with pytest.raises(UnknownNameError, match=r"'acceptanc'.*Did you mean 'acceptance'"):
        forerun.run("simulate", acceptanc=0.5)
    with pytest.raises(ConfigError, match="seed is only of use with rounds; add it"):
        forerun.run("simulate", seed=3)
    with pytest.raises(ConfigError, match="rounds and hardware exclude each other"):
        forerun.run("simulate", rounds=100, hardware="h100")
    with pytest.raises(ConfigError, match="rounds is 3; it must be an integer in"):
        forerun.run("simulate", rounds=3)
    with pytest.raises(ConfigError, match=r"^acceptance is 2; it must be a list"):
        forerun.run("simulate", acceptance=2)
    with pytest.raises(ConfigError, match=r"^part is 3; it must be a list"):
        forerun.run("prove", part=3)
