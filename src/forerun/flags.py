"""Flags of a request: its options by flat names, as a command line, variables, a file and Python give them.

A request is a class made by `forerun.options.options`. Its fields are options or parts: other such classes,
whose options stand beside its own. An option has one name: its flag, variable, TOML key, keyword in Python
and key among the settings of a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Any, TypeVar

from forerun.errors import ConfigError, UnknownNameError
from forerun.options import Part, Use, schema_of

T = TypeVar("T")
# Sources of a value, from the strongest to the weakest.
FLAG, VARIABLE, FILE = range(3)


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
        default=reduce(getattr, flag.path, default),
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
    try:
        return kind(**_values(kind, None, flags, settled))
    except ConfigError as error:
        refusal = named(error, settled)
    raise refusal


def named(error: ConfigError, given: Given) -> ConfigError:
    """An error about an option, under the name that the user knows."""
    option = re.match(r"(\w+)(?=\[| is )", str(error))
    if option is None or option[1] not in given.values or isinstance(error, UnknownNameError):
        return error
    return type(error)(given.written(option[1]) + str(error).removeprefix(option[1]))


def _values(kind: Any, default: Any, flags: Iterable[Flag], given: Given) -> dict[str, Any]:
    """Values of a class's fields, by name; a field that is no part and was not given has none.

    Args:
        default: the object that they will replace values of; None for a request.
        flags: options of the class, with paths from its fields on.
    """
    values: dict[str, Any] = {}
    for name, info in kind.__pydantic_fields__.items():
        own = [replace(flag, path=flag.path[1:]) for flag in flags if flag.path[0] == name]
        inner = marked(info, Part)
        if inner is None:
            for flag in own:
                if flag.name in given.values:
                    values[name] = given.values[flag.name]
            continue
        usual = info.get_default(call_default_factory=True)
        held = usual if default is None else getattr(default, name)
        if inner.build is not None:
            values[name] = inner.build(held, given)
        else:
            values[name] = replace(held, **_values(type(held), held, own, given))
    return values


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
