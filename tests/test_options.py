"""How options are declared: types are made right or refused, and every refusal says what is allowed."""

from __future__ import annotations

import dataclasses
import enum
import gc
import inspect
import weakref
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

from forerun.errors import ConfigError, ForerunError, UnknownNameError
from forerun.options import (
    NoOptions,
    Text,
    changes,
    check,
    from_mapping,
    known,
    options,
    schema_of,
)


class Size(enum.IntEnum):
    FOUR = 4


@options
class Example:
    """An example.

    Of several lines.
    """

    length: int = Field(default=4, ge=1, le=64, description="How long.")
    share: float = Field(default=0.5, gt=0.0, le=1.0, description="How much.")
    limit: int | None = Field(default=None, ge=0, description="At most.")
    on: bool = Field(default=True, description="Whether.")
    mode: Literal["fast", "slow"] = Field(default="fast", description="Which way.")
    name: Text | None = Field(default=None, description="What for.")
    color: Annotated[str, known("color", lambda: ("red", "blue"))] = Field(
        default="red", description="Of the paint."
    )
    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), description="Which.")
    weights: Mapping[int, float] = Field(default_factory=dict, description="Of what.")

    def __post_init__(self) -> None:
        if self.length == 13:
            raise ConfigError("length is 13, which brings bad luck; take 12.")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"length": 0}, "length is 0; it must be an integer in [1, 64]."),
        ({"length": True}, "length is True; it must be an integer in [1, 64]."),
        ({"length": torch.tensor(True)}, "length is True; it must be an integer in [1, 64]."),
        ({"length": 2.0}, "length is 2.0; it must be an integer in [1, 64]."),
        ({"length": None}, "length is None; it must be an integer in [1, 64]."),
        ({"length": 13}, "length is 13, which brings bad luck; take 12."),
        ({"share": 0}, "share is 0; it must be a number in (0, 1]."),
        ({"share": float("nan")}, "share is nan; it must be a number in (0, 1]."),
        ({"share": "1"}, "share is '1'; it must be a number in (0, 1]."),
        ({"share": 1 + 2j}, "share is (1+2j); it must be a number in (0, 1]."),
        ({"limit": -1}, "limit is -1; it must be an integer in [0, inf)."),
        ({"on": 1}, "on is 1; it must be True or False."),
        ({"mode": 3}, "mode is 3; it must be one of fast, slow."),
        ({"mode": "fats"}, "unknown mode 'fats'. Did you mean 'fast'? Known: fast, slow."),
        ({"color": "redd"}, "unknown color 'redd'. Did you mean 'red'? Known: blue, red."),
        ({"color": 3}, "color is 3; it must be one of red, blue."),
        ({"name": ""}, "name is ''; it must be text that is not empty."),
        ({"name": b"a"}, "name is b'a'; it must be text that is not empty."),
        ({"name": "a\udcff"}, r"name is 'a\udcff'; it is not UTF-8 text (character 1)."),
        ({"layers": 3}, "layers is 3; it must be a list or tuple."),
        ({"layers": "34"}, "layers is '34'; it must be a list or tuple."),
        ({"layers": [3, "4"]}, "layers[1] is '4'; it must be an integer in [0, inf)."),
        ({"weights": [1]}, "weights is (1,); it must be a mapping."),
        ({"weights": {3: "a"}}, "weights[3] is 'a'; it must be a number."),
        ({"weights": {"a": 1.0}}, "a key of weights is 'a'; it must be a valid integer."),
        ({"lenght": 3}, "unknown Example option 'lenght'. Did you mean 'length'?"),
    ],
    ids=str,
)
def test_refusals_say_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Example(**values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_misspelt_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as error:
        Example(colour="red")  # type: ignore[call-arg]
    assert error.value.known == sorted(field.name for field in dataclasses.fields(Example))


def test_values_without_names_are_refused_by_the_name_of_their_field() -> None:
    with pytest.raises(ConfigError, match=r"share is 2; it must be"):
        Example(4, 2)
    with pytest.raises(ConfigError, match="takes 9 values at most"):
        Example(4, 0.5, None, True, "fast", None, "red", (), {}, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"length": np.int64(3)}, {"length": 3}),
        ({"length": np.array(3)}, {"length": 3}),
        ({"length": torch.tensor(3)}, {"length": 3}),
        ({"length": Size.FOUR}, {"length": 4}),
        ({"share": 1}, {"share": 1.0}),
        ({"share": np.float32(0.5)}, {"share": 0.5}),
        ({"share": torch.tensor(0.5)}, {"share": 0.5}),
        ({"share": Fraction(1, 4)}, {"share": 0.25}),
        ({"on": np.False_}, {"on": False}),
        ({"name": Path("a") / "b"}, {"name": str(Path("a") / "b")}),
        ({"layers": [1, np.int8(2)]}, {"layers": (1, 2)}),
        ({"layers": np.arange(2)}, {"layers": (0, 1)}),
        ({"layers": torch.arange(2)}, {"layers": (0, 1)}),
        ({"layers": range(2)}, {"layers": (0, 1)}),
        ({"layers": {5}}, {"layers": (5,)}),
        ({"weights": {torch.tensor(4): np.float64(2)}}, {"weights": {4: 2.0}}),
    ],
    ids=str,
)
def test_types_are_made_right(values: dict[str, Any], wanted: dict[str, Any]) -> None:
    # 1 == 1.0 == True: only the text tells the types apart.
    assert repr(Example(**values)) == repr(Example(**wanted))


def test_values_that_cannot_even_be_shown_are_refused() -> None:
    class Broken:
        ndim = 0

        def __iter__(self) -> Any:
            raise ZeroDivisionError

        def __repr__(self) -> str:
            raise ZeroDivisionError

    for field in dataclasses.fields(Example):
        with pytest.raises(ConfigError, match="Broken"):
            Example(**{field.name: Broken()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "refused",
    [
        lambda: Example(color="green"),
        lambda: Example(length=13),
        lambda: Example(length="4"),  # type: ignore[arg-type]
        lambda: check("name", "\udcff", Text),
    ],
    ids=["unknown name", "between fields", "type", "single value"],
)
def test_a_refusal_keeps_nothing_alive(refused: Callable[[], object]) -> None:
    """Not what the caller holds while an error is at hand, as it does in a block of its own."""

    class Held:
        pass

    def refuse() -> weakref.ref[Held]:
        held = Held()
        with pytest.raises(ForerunError) as raised:
            refused()
        assert raised.value.__context__ is None
        return weakref.ref(held)

    left = refuse()
    gc.collect()
    assert left() is None


def test_long_values_are_cut() -> None:
    with pytest.raises(ConfigError) as error:
        Example(length=np.zeros((50, 50)))  # type: ignore[arg-type]
    assert len(str(error.value)) < 120


def test_they_are_frozen_values() -> None:
    example = Example(length=5)
    assert example == Example(length=5) != Example()
    assert dataclasses.replace(example, share=1.0) == Example(length=5, share=1.0)
    with pytest.raises(ConfigError, match=r"dataclasses.replace\(..., length=3\)"):
        example.length = 3  # type: ignore[misc]
    with pytest.raises(ConfigError):
        dataclasses.replace(example, share=2.0)


def test_the_schema_has_bounds_defaults_and_help() -> None:
    schema = schema_of(Example)
    assert list(schema) == [field.name for field in dataclasses.fields(Example)]
    length = schema["length"]
    assert length["description"] == "How long."
    assert (length["default"], length["minimum"], length["maximum"]) == (4, 1, 64)
    assert schema_of(NoOptions) == {}


def test_the_docstring_and_the_signature_show_the_options() -> None:
    assert Example.__doc__ == inspect.cleandoc(Example.__doc__ or "")
    assert "Of several lines.\n\nArgs:\n    length: How long." in Example.__doc__
    assert list(inspect.signature(Example).parameters)[:2] == ["length", "share"]


def test_a_mapping_of_names() -> None:
    assert from_mapping(Example, {"length": 5}) == Example(length=5)
    with pytest.raises(UnknownNameError, match="'3'"):
        from_mapping(Example, {3: 5})
    with pytest.raises(ConfigError, match="mapping of names"):
        from_mapping(Example, [("length", 5)])


def test_changes_are_what_is_not_at_its_default() -> None:
    @options
    class Needed:
        """An option that has no default."""

        size: int = Field(ge=1, description="How large.")
        color: str = Field(default="red", description="Of the paint.")

    assert changes(Example()) == {}
    assert changes(Example(length=5, weights={1: 2.0})) == {"length": 5, "weights": {1: 2.0}}
    assert changes(Needed(size=3)) == {"size": 3}
    with pytest.raises(ConfigError, match=r"size is missing; it must be an integer in \[1, inf\)"):
        Needed()  # type: ignore[call-arg]


def test_single_values() -> None:
    assert check("length", np.int64(3), int, ge=1) == 3
    with pytest.raises(ConfigError, match=r"length is 0; it must be an integer in \[1, 9\]"):
        check("length", 0, int, ge=1, le=9)
    with pytest.raises(ConfigError, match=r"sizes\[1\] is 'a'; it must be an integer"):
        check("sizes", [1, "a"], tuple[int, ...])
