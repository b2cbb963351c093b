"""Declaration of options: a frozen dataclass whose fields hold bounds and help, checked by pydantic.

Flags, help texts, variables, TOML keys and error messages are all derived from the declaration.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import pydantic.dataclasses
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from forerun.errors import ConfigError, ForerunError, UnknownNameError, shown

if TYPE_CHECKING:
    from forerun.flags import Flag, Given

T = TypeVar("T")
# True is not an integer, "3" is not a number, and a misspelt name is an error.
_CONFIG = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
_NULL = {"type": "null"}
_WORDS = {"boolean": "True or False", "array": "a list or tuple", "object": "a mapping"}


@dataclass(frozen=True)
class Part:
    """Fields of another class among the options of a request.

    Args:
        section: heading of its options in the help.
        without: fields that are no options of the request.
        renamed: options whose names are not those of their fields.
        help: help texts in place of those of the fields.
        excludes: options that some of them cannot be given together with.
        requires: options of which one must be on for any of them to be of use.
        argument: the field that is a positional argument too.
        flags: returns the options, where the fields are not all of them.
        build: returns the part, where it is not a replacement of fields of the default.
    """

    section: str = ""
    without: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    help: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    requires: Sequence[str] = ()
    argument: str = ""
    flags: Callable[[Any, Part], list[Flag]] | None = None
    build: Callable[[Any, Given], Any] | None = None


@dataclass(frozen=True)
class Use:
    """Conditions under which an option may be used beside others.

    Args:
        section: heading in the help; that of the option before unless given.
        requires: options of which one must be on for this one to be of use.
        excludes: options that cannot be given together with this one.
        argument: it is a positional argument too.
        repeat: each value of the list is given by a flag of its own.
        names: returns the values that a shell offers.
        shown: the default in the help, if it depends on the machine.
    """

    section: str = ""
    requires: Sequence[str] = ()
    excludes: Sequence[str] = ()
    argument: bool = False
    repeat: bool = False
    names: Callable[[], Iterable[str]] | None = None
    shown: str = ""


_USE = {use.name for use in fields(Use)}


def option(**declared: Any) -> Any:
    """A field of a request, declared as by `pydantic.Field`, and what `Use` says of it."""
    info = Field(**{name: declared[name] for name in declared if name not in _USE})
    info.metadata.append(Use(**{name: declared[name] for name in declared if name in _USE}))
    return info


def part(*, default: Any, **how: Any) -> Any:
    """A field that holds other options, with its own defaults; `how` is as of `Part`."""
    info = Field(default_factory=default if isinstance(default, type) else lambda: default)
    info.metadata.append(Part(**how))
    return info


@dataclass_transform(frozen_default=True, field_specifiers=(Field, option, part))
def options(owner: type[T]) -> type[T]:
    """Make a class with annotated fields a frozen dataclass that checks its values.

    A field is declared as in `length: int = Field(default=4, ge=1, le=64, description="…")`.
    Numbers, paths and collections of other libraries are converted to Python's own. The
    descriptions become part of the docstring. The class raises ConfigError for a value of a wrong
    type or out of range and UnknownNameError for a name that it does not declare.
    """
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=_CONFIG)(owner)
    check_all = made.__init__

    @wraps(check_all)
    def initialize(self: Any, *args: Any, **values: Any) -> None:
        try:
            check_all(self, *map(plain, args), **{name: plain(values[name]) for name in values})
            return
        except ValidationError as error:
            # Options that JSON cannot hold have no schema.
            schema = {field.name: schema_of(made).get(field.name, {}) for field in fields(made)}
            refusal = _refusal(error, made.__name__, schema)
        raise refusal from None

    made.__init__ = initialize
    made.__repr__, made.__setattr__ = _short_repr, _refuse_change
    described = made.__pydantic_fields__.items()
    texts = [f"    {name}: {field.description}" for name, field in described if field.description]
    if texts:
        made.__doc__ = "\n".join([f"{cleandoc(owner.__doc__ or '')}\n\nArgs:", *texts])
    declared: type[T] = made
    return declared


def _short_repr(self: Any) -> str:
    """A representation that shows only the values that are not at their defaults."""
    fields_shown = ", ".join(f"{name}={value!r}" for name, value in changes(self).items())
    return f"{type(self).__name__}({fields_shown})"


def _refuse_change(self: Any, name: str, value: Any) -> None:
    kind = type(self).__name__
    raise ConfigError(
        f"a {kind} cannot be changed; make another: dataclasses.replace(..., {name}={shown(value)})."
    )


@options
class NoOptions:
    """The options of a method that has none."""


@cache
def schema_of(owner: type) -> dict[str, dict[str, Any]]:
    """JSON schema of each option of a class, by name, with its default and its help (`description`).

    Options that JSON cannot hold are left out.
    """
    properties: dict[str, Any] = TypeAdapter(owner).json_schema().get("properties", {})
    return properties


def named(values: Any) -> dict[str, Any]:
    """Values by name, from a mapping of any library.

    Raises:
        ConfigError: for anything but a mapping.
    """
    read = plain(values)
    if not isinstance(read, Mapping):
        raise ConfigError(f"the options are {shown(read)}; they must be a mapping of names.")
    return {key if isinstance(key, str) else shown(key): value for key, value in read.items()}


def from_mapping(owner: type[T], values: Any) -> T:
    """Options from a mapping of names to values.

    Raises:
        ConfigError: for anything but a mapping, and as the class does.
        UnknownNameError: for a name that the class does not declare.
    """
    return owner(**named(values))


def pick(owner: type[T], values: Mapping[str, Any]) -> T:
    """The options of one class, picked from values that belong to several.

    Raises:
        ConfigError: as the class does.
    """
    names = {field.name for field in fields(owner)}  # type: ignore[arg-type]
    return owner(**{name: value for name, value in values.items() if name in names})


def changes(values: Any) -> dict[str, Any]:
    """Options that are not at their defaults, by name, including those without a default."""
    declared = type(values).__pydantic_fields__.items()
    usual = {name: field.get_default(call_default_factory=True) for name, field in declared}
    return {name: getattr(values, name) for name in usual if getattr(values, name) != usual[name]}


def check(name: str, value: Any, kind: Any, **bounds: Any) -> Any:
    """A single value as `kind`, within bounds named as in `pydantic.Field`.

    Raises:
        ConfigError: naming the value and what is allowed.
    """
    adapter = _adapter(kind, **bounds)
    try:
        return adapter.validate_python({name: plain(value)})[name]
    except ValidationError as error:
        schema = adapter.json_schema()["additionalProperties"]
        refusal = _refusal(error, name, {name: schema})
    raise refusal from None


@cache
def _adapter(kind: Any, **bounds: Any) -> TypeAdapter[dict[str, Any]]:
    # A mapping, so that an error knows the value's name.
    return TypeAdapter(dict[str, Annotated[kind, Field(**bounds)]], config=_CONFIG)


def known(kind: str, names: Callable[[], Iterable[str]]) -> Any:
    """A validator for names out of a table that other packages may add to.

    Args:
        kind: what the names stand for, for the message.
        names: returns the allowed names; called when a value is checked, so that a declaration
            loads nothing.
    """

    def check_name(value: Any) -> Any:
        if isinstance(value, str):
            if value not in (allowed := list(names())):
                raise UnknownNameError(kind, value, allowed)
        elif value is not None:
            raise ValueError(f"it must be one of {', '.join(names())}")
        return value

    return BeforeValidator(check_name)


def _utf8(text: Any) -> Any:
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it is not UTF-8 text (character {error.start})") from None
    return text


FileName = Annotated[str, Field(min_length=1, json_schema_extra={"format": "path"})]
"""Name of a file or folder, which need not be UTF-8."""
UNIQUE = AfterValidator(lambda values: tuple(dict.fromkeys(values)))
"""Validator of a list that drops repeated values."""

Text = Annotated[str, Field(min_length=1), BeforeValidator(_utf8)]
"""Text that is not empty and can be written as UTF-8."""


def plain(value: Any) -> Any:
    """A value with numbers, paths and collections of other libraries converted to Python's own."""
    if type(value) in (int, float, str, bool) or value is None or callable(value):
        return value
    try:
        if getattr(value, "ndim", None) == 0:
            return value.item()
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, numbers.Real):
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, Mapping):
            return {plain(key): plain(entry) for key, entry in value.items()}
        if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
            return tuple(map(plain, value))
    except Exception:
        return _Unreadable(value)
    return value


class _Unreadable:
    """Placeholder for a value whose own methods fail; no option accepts it."""

    def __init__(self, value: Any) -> None:
        self._kind = type(value).__name__

    def __repr__(self) -> str:
        return f"<{self._kind} that cannot be read>"


def _refusal(error: ValidationError, owner: str, schema: Mapping[str, Any]) -> ForerunError:
    """The first problem of a validation error, as an error of ours with a message of one line.

    Raise it only after `error` has been handled. `error` refers to a validator's exception in a way
    that the garbage collector does not see; as the context of a new error it would keep that
    exception, its traceback and all frames in it alive forever.

    Args:
        owner: name of the class that declares the options.
        schema: JSON schema of each option, by name.
    """
    problem = error.errors(include_url=False)[0]
    kind, value, place = problem["type"], problem["input"], list(problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ForerunError):
        return cause
    if kind == "unexpected_keyword_argument":
        return UnknownNameError(f"{owner} option", str(place[0]), schema)
    if kind == "unexpected_positional_argument":
        return ConfigError(f"{owner} takes {len(schema)} values at most; give them by name.")
    if not place:
        return ConfigError(f"{owner}: {cause or problem['msg']}.")
    if isinstance(place[0], int):
        place[0] = list(schema)[place[0]]
    name = str(place[0])
    allowed = _descend(schema[name], place[1:])
    if kind.startswith("missing"):
        return ConfigError(f"{name} is missing; it must be {_in_words(allowed)}.")
    if "enum" in allowed and isinstance(value, str):
        return UnknownNameError(name, value, allowed["enum"])
    words = (
        f"it must be {_in_words(allowed)}"
        if allowed
        else problem["msg"].replace("Input should", "it must")
    )
    return ConfigError(f"{_where(name, place[1:])} is {shown(value)}; {cause or words}.")


def _where(name: str, steps: list[Any]) -> str:
    if steps[-1:] == ["[key]"]:
        return f"a key of {name}"
    return name + "".join(f"[{step!r}]" for step in steps)


def _descend(schema: Mapping[str, Any], steps: list[Any]) -> Mapping[str, Any]:
    """The schema of an entry of a list or mapping."""
    for step in steps:
        inner = next((some for some in schema.get("anyOf", ()) if some != _NULL), schema)
        entry = "propertyNames" if step == "[key]" else "additionalProperties"
        entry_schema = inner.get("items", inner.get(entry))
        schema = entry_schema if isinstance(entry_schema, Mapping) else {}
    return schema


def _in_words(schema: Mapping[str, Any]) -> str:
    """The values that a schema allows, in words."""
    if "anyOf" in schema:
        # None, which leaves an option out, cannot be typed.
        some = [inner for inner in schema["anyOf"] if inner != _NULL]
        return " or ".join(map(_in_words, some))
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    kind = schema.get("type", "value")
    if kind in ("integer", "number"):
        return f"{'an integer' if kind == 'integer' else 'a number'}{_interval(schema)}"
    if kind == "string":
        return "text that is not empty" if schema.get("minLength") else "text"
    return _WORDS.get(kind, f"a {kind}")


def _interval(schema: Mapping[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    if -low == high == math.inf:
        return ""
    first, last = "[" if "minimum" in schema else "(", "]" if "maximum" in schema else ")"
    texts = [str(end) if isinstance(end, int) else f"{end:g}" for end in (low, high)]
    return f" in {first}{texts[0]}, {texts[1]}{last}"
