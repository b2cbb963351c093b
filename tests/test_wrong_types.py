"""Whatever stands where an option belongs is taken, made right, or refused in one line of ours."""

from __future__ import annotations

import dataclasses
import decimal
import fractions
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import forerun
from forerun.core import Hints
from forerun.drafters import DRAFTERS
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ForerunError
from forerun.params import SamplingParams
from forerun.policies import POLICIES
from forerun.testing import ToyModel
from tests.helpers.examples import examples

TARGET = ToyModel(7)


def _fail(*_: Any) -> Any:
    raise RuntimeError


class Odd:
    """Whatever is asked of it fails."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError

    __iter__ = __len__ = __index__ = __float__ = __fspath__ = _refuse


class Hostile:
    """Cannot even be compared or read."""

    __eq__ = __bool__ = __iter__ = __len__ = __str__ = _fail
    __hash__ = object.__hash__


class HostileText(str):
    __eq__ = encode = rstrip = _fail  # type: ignore[assignment]
    __hash__ = str.__hash__


class HostileList(list[Any]):
    __iter__ = _fail


class HostileMapping(dict[Any, Any]):
    __iter__ = __getitem__ = items = keys = values = _fail


ODD = [
    *(object(), object, len, Odd(), ..., NotImplemented, 1 + 2j, b"ab", bytearray(b"ab"), range(3)),
    *(decimal.Decimal("1.5"), fractions.Fraction(1, 3), pathlib.Path("a"), "", "a\udcff", "auto"),
    *(10**400, -(10**400), float("nan"), float("inf"), -float("inf"), -1, 0, 2**31, 2**63, 2**64),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array(2), np.array(0.5), np.array([1, 2])),
    *(np.array([[1.0]]), np.array("a"), np.array([None]), np.zeros(0), np.datetime64("2020-01-01")),
    *(torch.tensor(2), torch.tensor(0.5), torch.tensor(True), torch.arange(2), torch.zeros(2, 2)),
    *(Hostile(), HostileText("ngram"), HostileText(""), HostileList([1]), HostileMapping(a=1)),
    *({Hostile(): 1}, [[[1]]], np.array(None), {(1, 2): 3}, ToyModel),
    *(torch.zeros(0), Hints(), SamplingParams(), TARGET, frozenset({1}), {"a": 1}, {1: "a"}),
]
LEAVES = st.one_of(
    st.sampled_from(ODD),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(iter),
        st.dictionaries(
            st.one_of(st.integers(), st.text(max_size=3), st.none()), inner, max_size=2
        ),
    ),
    max_leaves=4,
)
KINDS = {
    kind.__name__: kind
    for kind in (
        SamplingParams,
        SpeculativeConfig,
        *(method.options for method in (*DRAFTERS.values(), *POLICIES.values())),
    )
    if dataclasses.fields(kind)
}


def refused(call: Callable[[], Any]) -> Any:
    """What the call returns, or None where it is refused as it should be."""
    try:
        return call()
    except ForerunError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert len(message) < 700
        return None


@pytest.mark.parametrize("name", sorted(KINDS))
@given(data=st.data())
@examples(50)
def test_options_are_made_right_or_refused(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    field = data.draw(st.sampled_from([field.name for field in dataclasses.fields(kind)]))
    value = data.draw(ANYTHING)
    made = refused(lambda: kind(**{field: value}))
    if made is not None:
        # What has been taken is of the declared types: made again, nothing changes any more.
        values = {entry.name: getattr(made, entry.name) for entry in dataclasses.fields(kind)}
        assert repr(kind(**values)) == repr(made)
        assert repr(dataclasses.replace(made)) == repr(made)


@pytest.mark.parametrize("kind", [SamplingParams, SpeculativeConfig])
@given(values=ANYTHING)
def test_mappings_are_taken_or_refused(kind: Any, values: Any) -> None:
    refused(lambda: kind.from_dict(values))


@pytest.mark.parametrize(
    "call",
    [
        lambda: SamplingParams(stop=HostileList(["a"])),  # type: ignore[arg-type]
        lambda: SamplingParams.from_dict(HostileMapping(top_k=1)),
        lambda: SamplingParams.from_dict({Hostile(): 1}),  # type: ignore[dict-item]
        lambda: SpeculativeConfig(tree=HostileMapping(parents=[-1])),  # type: ignore[arg-type]
        lambda: SpeculativeConfig(method="a" * 9999),
        lambda: SpeculativeConfig.from_dict(HostileMapping(method="ngram")),
        lambda: SpeculativeConfig.from_dict({Hostile(): 1}),  # type: ignore[dict-item]
        lambda: Engine(ToyModel),  # type: ignore[arg-type]
        lambda: forerun.load("/nowhere/at/all", dtype="a" * 9999),
    ],
)
def test_what_cannot_be_read_is_refused(call: Callable[[], Any]) -> None:
    assert refused(call) is None


def test_text_of_another_type_is_text() -> None:
    assert type(SamplingParams(stop=HostileText("a")).stop[0]) is str  # type: ignore[arg-type]
    assert SpeculativeConfig(method=HostileText("ngram")).method == "ngram"


PARAMETERS = (
    *("target", "drafter", "config", "tokenizer", "eos_token_ids", "max_batch_size"),
    *("max_context", "prefix_reuse", "randomness"),
)


@pytest.mark.parametrize("parameter", PARAMETERS)
@given(value=ANYTHING)
@examples(20)
def test_engines_are_built_and_run_or_refused(parameter: str, value: Any) -> None:
    if parameter in ("max_batch_size", "max_context") and isinstance(value, int) and value > 99:
        return  # As large as asked for: it is memory that ends there.
    engine = refused(lambda: Engine(**{"target": TARGET, parameter: value}))
    if engine is not None:
        [completion] = engine.generate([[1, 2]], SamplingParams(temperature=0.0, max_tokens=3))
        assert len(completion.token_ids) == 3 or completion.finish_reason == "stop"


SHORT = SamplingParams(temperature=0.0, max_tokens=2)
CALLS: dict[str, Callable[[Engine, Any], Any]] = {
    "prompts": lambda engine, value: engine.generate(value, SHORT),
    "prompt": lambda engine, value: engine.generate([value], SHORT),
    "params": lambda engine, value: engine.generate([[1]], value),
    "hints": lambda engine, value: engine.generate([[1]], SHORT, hints=value),
    "speculative": lambda engine, value: engine.generate([[1]], SHORT, speculative=value),
    "prediction": lambda engine, value: engine.generate([[1]], SHORT, hints=Hints(value)),
    "namespace": lambda engine, value: engine.generate([[1]], SHORT, hints=Hints((), value)),
    "add": lambda engine, value: engine.add([1], value),
    "add speculative": lambda engine, value: engine.add([1], SHORT, speculative=value),
    "stream": lambda engine, value: list(engine.stream([1], value)),
    "stream_plain": lambda engine, value: list(engine.stream_plain(value, SHORT)),
    "completion": lambda engine, value: engine.completion(value),
    "cancel": lambda engine, value: engine.cancel(value),
    "use_seeds": lambda engine, value: engine.use_seeds(value),
    "watch_rounds": lambda engine, value: engine.watch_rounds(value),
    "watch_rounds, before passes": lambda engine, value: engine.watch_rounds(None, value),
}


@pytest.mark.parametrize("name", sorted(CALLS))
@given(value=ANYTHING)
@examples(20)
def test_calls_are_carried_out_or_refused(name: str, value: Any) -> None:
    engine = Engine(TARGET)
    refused(lambda: CALLS[name](engine, value))
    if name != "use_seeds" and not name.startswith("watch_rounds"):
        # Refused or not, the engine goes on.
        [completion] = Engine(TARGET).generate([[1, 2]], SHORT)
        assert engine.generate([[1, 2]], SHORT)[0].token_ids == completion.token_ids


@pytest.mark.parametrize(
    "parameter",
    [
        *("speculative", "revision", "dtype", "device", "backend", "max_batch_size", "max_context"),
        *("prefix_reuse", "tokenizer"),
    ],
)
@given(value=ANYTHING)
@examples(20)
def test_loading_is_refused(parameter: str, value: Any) -> None:
    assert refused(lambda: forerun.load("/nowhere/at/all", **{parameter: value})) is None
