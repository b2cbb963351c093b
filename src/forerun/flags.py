"""Flags of a request: its options by flat names, as a command line, variables, a file and Python give them.

A request is a class made by `forerun.options.options`. Its fields are options or parts: other such classes,
whose options stand beside its own. An option has one name: its flag, variable, TOML key, keyword in Python
and key among the settings of a result.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from forerun.errors import ConfigError, UnknownNameError, shown
from forerun.options import Part, Use, schema_of

T = TypeVar("T")
# Sources of a value, from the strongest to the weakest.
FLAG, VARIABLE, FILE = range(3)
# A range of more values is taken for a typing mistake.
MOST_VALUES = 4096
KILO = 1024
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Flag:
    """An option of a request under the name by which it is given.

    Args:
        path: fields that lead to its value.
        schema: JSON schema, with the help as its description.
        default: value if it is not given; a required option has none.
    """

    name: str
    path: tuple[str, ...]
    schema: Mapping[str, Any]
    default: Any
    use: Use = field(default_factory=Use)
    required: bool = False

    @property
    def inner(self) -> Mapping[str, Any]:
        """Schema of its values other than None."""
        options: Sequence[Mapping[str, Any]] = self.schema.get("anyOf", ())
        return next((option for option in options if option.get("type") != "null"), self.schema)

    @property
    def kind(self) -> str:
        """JSON type of its values."""
        return str(self.inner.get("type", "string"))

    @property
    def repeated(self) -> bool:
        """True if several flags make up the value."""
        return self.kind in ("array", "object")

    @property
    def is_path(self) -> bool:
        """True if it names files."""
        schema = self.inner.get("items", self.inner)
        return bool(schema.get("format") == "path")


def flags_of(kind: Any) -> tuple[Flag, ...]:
    """Options of a request, or of a class of options, in their order."""
    return _flags_of(kind)


@cache
def _flags_of(kind: Any) -> tuple[Flag, ...]:
    schemas, flags, section = schema_of(kind), list[Flag](), ""
    for name, declared in kind.__pydantic_fields__.items():
        inner = marked(declared, Part)
        if inner is not None:
            made = declared.get_default(call_default_factory=True)
            own = (inner.flags or part_flags)(made, inner)
            flags += (replace(flag, path=(name, *flag.path)) for flag in own)
        elif name in schemas:
            use = marked(declared, Use) or Use()
            section = use.section or section
            required = declared.is_required()
            default = None if required else declared.get_default(call_default_factory=True)
            use = replace(use, section=section)
            flags.append(Flag(name, (name,), schemas[name], default, use, required))
    return tuple(flags)


def marked(declared: Any, kind: type[T]) -> T | None:
    """The mark of a kind that a field carries, if any."""
    return next((mark for mark in declared.metadata if isinstance(mark, kind)), None)


def part_flags(default: Any, inner: Part) -> list[Flag]:
    """Options of a part, by its fields."""
    flags = (flag for flag in flags_of(type(default)) if flag.name not in inner.without)
    return [_as_part(flag, default, inner) for flag in flags]


def _as_part(flag: Flag, default: Any, inner: Part) -> Flag:
    text = inner.help.get(flag.name, flag.schema.get("description", ""))
    excludes = inner.excludes.get(flag.name, flag.use.excludes)
    return replace(
        flag,
        name=inner.renamed.get(flag.name, flag.name),
        use=replace(
            flag.use,
            section=inner.section or flag.use.section,
            excludes=excludes,
            requires=flag.use.requires or inner.requires,
            argument=flag.name == inner.argument,
        ),
        default=getattr(default, flag.name),
        schema={**flag.schema, "description": text},
    )


@dataclass
class Given:
    """Options that were given, by name.

    Args:
        values: those that were given.
        sources: FLAG, VARIABLE or FILE of each; FLAG unless named.
        written: returns an option as the user knows it, for messages.
    """

    values: dict[str, Any]
    sources: Mapping[str, int] = field(default_factory=dict)
    written: Callable[[str], str] = str

    def source(self, name: str) -> int:
        return self.sources.get(name, FLAG)

    def has(self, name: str) -> bool:
        """True if an option was given, and not as None or False."""
        return is_on(self.values.get(name))

    def weaker(self, name: str, other: str) -> str:
        """The one of two options that yields: a flag beats a variable, and a variable the file.

        Raises:
            ConfigError: if they come from the same source.
        """
        first, second = self.source(name), self.source(other)
        if first == second:
            raise ConfigError(
                f"{self.written(name)} and {self.written(other)} exclude each other; leave one out."
            )
        return name if first > second else other

    def yields(self, name: str, others: Iterable[str]) -> bool:
        """True if one of the others was given by a stronger source than `name`."""
        return any(self.source(o) < self.source(name) for o in others if o in self.values)


def is_on(value: Any) -> bool:
    """True for a value that turns something on: not None, False or empty."""
    return value is not None and value is not False and value != () and value != ""


def request_from(kind: type[T], given: Given) -> T:
    """The request that was given.

    Raises:
        ConfigError: for options that exclude each other or are of no use, and as the class does.
        UnknownNameError: for an option that the request does not have.
    """
    flags = flags_of(kind)
    names = [flag.name for flag in flags]
    for name in given.values:
        if name not in names:
            raise UnknownNameError("option", name, names)
    settled = replace(given, values=dict(given.values))
    for flag in flags:
        for other in flag.use.excludes:
            if settled.has(flag.name) and settled.has(other):
                del settled.values[settled.weaker(flag.name, other)]
        # An option that is switched off excludes those that need it.
        for other in flag.use.requires if len(flag.use.requires) == 1 else ():
            if settled.has(flag.name) and settled.values.get(other) is False:
                del settled.values[settled.weaker(other, flag.name)]
    defaults = {flag.name: flag.default for flag in flags}
    for flag in flags:
        rivals = [other.name for other in flags if {*other.use.excludes} & {*flag.use.requires}]
        _check_use(flag, rivals, settled, defaults)
    declared = kind.__pydantic_fields__  # type: ignore[attr-defined]  # made by `options`
    values: dict[str, Any] = {}
    try:
        for name, info in declared.items():
            values |= _built(info, name, flags, settled)
        return kind(**values)
    except ConfigError as error:
        refusal = named(error, settled)
    raise refusal


def named(error: ConfigError, given: Given) -> ConfigError:
    """An error about an option, under the name that the user knows."""
    option = re.match(r"(\w+)(?=\[| is )", str(error))
    if option is None or option[1] not in given.values or isinstance(error, UnknownNameError):
        return error
    return type(error)(given.written(option[1]) + str(error).removeprefix(option[1]))


def _built(info: Any, name: str, flags: Sequence[Flag], given: Given) -> dict[str, Any]:
    """Value of a field of a request by its name; nothing where the default remains."""
    inner = marked(info, Part)
    if inner is None:
        return {name: given.values[name]} if name in given.values else {}
    default = info.get_default(call_default_factory=True)
    if inner.build is not None:
        return {name: inner.build(default, given)}
    own = [flag for flag in flags if flag.path[0] == name and flag.name in given.values]
    return {name: replace(default, **{flag.path[-1]: given.values[flag.name] for flag in own})}


def _check_use(
    flag: Flag, rivals: Sequence[str], given: Given, defaults: Mapping[str, Any]
) -> None:
    """Drop or refuse an option that is of no use without another one.

    Args:
        rivals: options that exclude that other one.
    """
    name, needed = flag.name, flag.use.requires
    if name not in given.values or not needed:
        return
    if any(_is_used(other, {**defaults, **given.values}, defaults) for other in needed):
        return
    # A variable is for all commands, and what was asked for more strongly decides.
    if given.source(name) == VARIABLE or given.yields(name, rivals):
        del given.values[name]
        return
    *others, last = map(given.written, needed)
    which = f"{', '.join(others)} or {last}" if others else last
    remedy = "add one of them, or leave it out" if others else "add it"
    raise ConfigError(f"{given.written(name)} is only of use with {which}; {remedy}.")


def _is_used(name: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """True if an option is on, and says something else than its default where that is on too."""
    value, default = values.get(name), defaults.get(name)
    value = tuple(value) if isinstance(value, list) else value
    return is_on(value) and (not is_on(default) or default is True or value != default)


def settings_in(request: Any) -> dict[str, Any]:
    """Options of a request that are of use in it, by name, as JSON holds them."""
    declared = flags_of(type(request))
    pairs = ((flag, _value(request, flag.path)) for flag in declared)
    values = {flag.name: value for flag, value in pairs if value is not _ABSENT}
    flags = [flag for flag in declared if flag.name in values]
    defaults = {flag.name: flag.default for flag in flags}
    used = {name for name in values if _is_used(name, values, defaults)}
    unused = {flag.name for flag in flags if flag.use.requires and not used & {*flag.use.requires}}
    for flag in flags:
        unused |= {*flag.use.excludes} if flag.name in used else set()
        unused |= {flag.name} if used & {*flag.use.excludes} else set()
    return {name: values[name] for name in values if name not in unused}


_ABSENT = object()


def _value(owner: Any, path: Sequence[str]) -> Any:
    """Value at the end of a path; _ABSENT where a mapping does not hold it."""
    for name in path:
        owner = owner.get(name, _ABSENT) if isinstance(owner, Mapping) else getattr(owner, name)
    return list(owner) if isinstance(owner, tuple) else owner


def read_value(flag: Flag, text: str) -> Any:
    """Value of an option from text; a list or mapping for one that may be repeated.

    Raises:
        ValueError: saying what is wrong with it.
    """
    schema = flag.inner
    if flag.kind == "array":
        return _list(flag, schema["items"], text)
    if flag.kind == "object":
        return _pair(schema.get("additionalProperties"), text)
    return _single(schema, text, is_path=flag.is_path)


def _single(schema: Mapping[str, Any], text: str, *, is_path: bool = False) -> Any:
    kind = schema.get("type")
    if kind in ("integer", "number"):
        what, read = ("integer", int) if kind == "integer" else ("number", float)
        try:
            return read(text)
        except ValueError:
            raise ValueError(f"{shown(text)} is not a valid {what}.") from None
    if kind == "boolean":
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(f"{shown(text)} is neither true nor false.")
        return text.lower() in _TRUE
    if schema.get("minLength") and not text:
        what = "name a file" if is_path else "give a value"
        raise ValueError(f"it is empty; {what} or leave the option out.")
    if not is_path:
        # Python turns bytes of an argument that are not UTF-8 into surrogates.
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it is not UTF-8 text (character {error.start}).") from None
    return text


def _list(flag: Flag, entry: Mapping[str, Any], text: str) -> list[Any]:
    if flag.use.repeat:
        return [_single({**entry, "minLength": 1}, text, is_path=flag.is_path)]
    parts = [part.strip() for part in text.split(",")] if text else []
    if entry["type"] == "integer":
        return list(chain.from_iterable(map(_integers, parts)))
    if not all(parts):
        raise ValueError(f"{shown(text)} is not a list with commas between its entries.")
    return [_single(entry, part) for part in parts]


def _integers(text: str) -> range:
    """Integers of a part of a list: one, a range such as `1-12`, or `4k` for 4096."""
    first, dash, last = text.partition("-") if text[:1] != "-" else (text, "", "")
    try:
        start, end = (
            int(end[:-1]) * KILO if end[-1:].lower() == "k" else int(end)
            for end in (first, last if dash else first)
        )
    except ValueError:
        raise ValueError(
            f"{shown(text)} is not an integer; give a list such as 1-8,16 or 4k."
        ) from None
    if not 0 <= end - start < MOST_VALUES:
        raise ValueError(f"{shown(text)} is not a range of 1 to {MOST_VALUES} integers.")
    return range(start, end + 1)


def _pair(value: Any, text: str) -> dict[Any, Any]:
    """An entry of a mapping, `NAME=VALUE`: of numbers by id, or of anything that JSON can write."""
    name, equals, written = text.partition("=")
    if isinstance(value, Mapping) and value.get("type") == "number":
        try:
            return {int(name): float(written)}
        except ValueError:
            raise ValueError(f"{shown(text)} is not a pair such as 42=-1.5.") from None
    if not equals or not name.strip():
        raise ValueError(f"{shown(text)} is not NAME=VALUE such as enable_thinking=false.")
    # A template takes the text "False" for true.
    written = written.lower() if written in ("True", "False") else written
    with suppress(ValueError, RecursionError):
        return {name.strip(): json.loads(written, parse_constant=int)}
    return {name.strip(): written}


def from_variables(kind: type) -> dict[str, Any]:
    """Values that `FORERUN_<NAME>` variables give to options of a request, by name.

    Raises:
        ConfigError: for a value that cannot be read.
    """
    variables = {flag.name: f"FORERUN_{flag.name.upper()}" for flag in flags_of(kind)}
    texts = {
        name: os.environ[variable] for name, variable in variables.items() if variable in os.environ
    }
    return from_texts(kind, texts, variables.__getitem__)


def from_texts(
    kind: type, texts: Mapping[str, str], written: Callable[[str], str] = str
) -> dict[str, Any]:
    """Values of options that are given as text, by name; names that a request does not have stay texts.

    Raises:
        ConfigError: for a value that cannot be read.
    """
    values = dict[str, Any](texts)
    for flag in flags_of(kind):
        if flag.name not in texts:
            continue
        try:
            value = read_value(flag, texts[flag.name])
            values[flag.name] = joined(flag, [value]) if flag.repeated else value
        except ValueError as error:
            raise ConfigError(f"{written(flag.name)}: {error}") from None
    return values


def joined(flag: Flag, values: Sequence[Any]) -> Any:
    """Values of a repeated option as one list or mapping.

    Raises:
        ValueError: for a name that is given twice, and for a list without values.
    """
    if flag.kind == "array":
        entries = tuple(chain.from_iterable(values))
        if not entries and flag.default:
            raise ValueError("the list is empty; give at least one value.")
        return entries
    made: dict[Any, Any] = {}
    for value in values:
        for name in value:
            if name in made:
                raise ValueError(f"it gives {name} twice; give it once.")
        made |= value
    return made
