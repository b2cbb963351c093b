"""A method of another package has options like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.contracts import DrafterSetup
from forerun.drafters import DRAFTERS
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError, UnknownNameError
from forerun.params import SamplingParams
from forerun.policies import make_policy
from forerun.testing import ToyModel
from tests.helpers.other_package import Parrot, ParrotOptions, Sleepy

pytestmark = pytest.mark.usefixtures("other_package")


def test_its_options_are_sorted_checked_and_read() -> None:
    config = SpeculativeConfig.from_dict({"method": "parrot", "volume": 11, "words": ["hello"]})
    assert config.read(ParrotOptions) == ParrotOptions(volume=11, words=("hello",))
    assert config.as_dict()["silent_at_night"] is False

    def load_draft_model() -> ToyModel:
        raise AssertionError

    setup = DrafterSetup(ToyModel(5), 1, 64, config.options, load_draft_model)
    drafter = DRAFTERS.find("parrot").build(setup)
    assert drafter.own.volume == 11
    engine = Engine(ToyModel(5), drafter, replace(config, policy="fixed"))
    params = SamplingParams(temperature=0.0, max_tokens=8)
    [completion] = engine.generate([[1, 2]], params)
    assert list(completion.token_ids) == [
        event.token_id for event in engine.stream_plain([1, 2], params)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"volume": 12}, r"volume is 12; it must be an integer in \[1, 11\]"),
        ({"volume": 10, "silent_at_night": True}, "a parrot that is silent"),
        ({"exit_layer": 1}, "exit_layer is not read by method 'parrot' .*silent_at_night"),
        ({"volum": 3}, "Did you mean 'volume'.*Known: .*silent_at_night"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_like_any_others(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(method="parrot", options=options)


def test_its_options_belong_to_it_alone_and_to_cascades_with_it() -> None:
    with pytest.raises(ConfigError, match="or use method 'parrot'"):
        SpeculativeConfig(method="ngram", options={"volume": 3})
    options = {"cascade": ("ngram", "parrot:2"), "volume": 4}
    config = SpeculativeConfig(method="cascade", options=options)
    assert config.read(ParrotOptions).volume == 4
    assert Parrot in config.drafters


def test_a_package_that_cannot_be_loaded_harms_nobody_else() -> None:
    with pytest.raises(ConfigError, match="cannot be loaded: No module named 'broken'"):
        SpeculativeConfig(method="broken")
    with pytest.raises(UnknownNameError, match="'volum'"):
        SpeculativeConfig(options={"volum": 3})


def test_a_drafter_whose_options_are_no_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parrot, "options", frozenset({"volume"}))
    with pytest.raises(ConfigError, match=r"declare them by forerun\.options\.options"):
        SpeculativeConfig(method="parrot")


def test_a_policy_whose_options_are_no_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sleepy, "options", {"hours": 8})
    with pytest.raises(ConfigError, match="policy 'sleepy' has options"):
        SpeculativeConfig(policy="sleepy")


def test_its_policy_is_made_like_any_other() -> None:
    assert SpeculativeConfig(policy="sleepy").policy == "sleepy"
    assert make_policy("sleepy", 3).name == "sleepy"
