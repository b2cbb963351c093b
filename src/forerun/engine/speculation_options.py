"""Options that say how a command speculates: common ones, each method's own, and all in one object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.core import Drawing
from forerun.drafters import DRAFTERS, drafters_of
from forerun.drafters.corpus import CorpusOptions
from forerun.engine.config import SpeculativeConfig, option_classes, option_names
from forerun.engine.model_options import DEFAULT_MODEL
from forerun.engine.resolve import RENAMED, default_method, pick_method
from forerun.errors import ConfigError
from forerun.flag_values import joined, read_value
from forerun.flags import Flag, Given, flags_of, part_flags
from forerun.options import Part, Text, Use, check, part, schema_of
from forerun.policies import POLICIES

SECTION = "Speculation"
# Sections of the help with the options that have flags of their own.
OWN_SECTIONS: dict[str, type] = {
    **{f"Method {name}": drafter.options for name, drafter in DRAFTERS.items()},
    **{f"Policy {name}": policy.options for name, policy in POLICIES.items()},
}
# Methods in SGLang's words.
METHODS = {"NGRAM": "ngram", "STANDALONE": "draft_model"}
_BY_NAME = "method_option"


def speculation(policy: str = "auto", requires: Sequence[str] = ()) -> Any:
    """A field of a request that holds a `SpeculativeConfig`.

    Args:
        policy: the request's default.
        requires: options of which one must be on.
    """
    return part(
        default=SpeculativeConfig(policy=policy),
        section=SECTION,
        without=("options",),
        renamed=RENAMED,
        requires=requires,
        flags=_flags,
        build=_config,
    )


def settings_of(config: SpeculativeConfig) -> dict[str, Any]:
    """Options of a config by the names that they have in a request."""
    return {RENAMED.get(name, name): value for name, value in config.as_dict().items()}


def _flags(default: SpeculativeConfig, inner: Part) -> list[Flag]:
    texts = {
        "type": "array",
        "items": {"type": "string"},
        "description": "An option of the method as NAME=VALUE, also where it has no flag.",
    }
    own = list(_own_flags())
    shared = [flag for flag in own if flag.use.section == SECTION]
    made = [
        *shared,
        Flag(_BY_NAME, ("options", _BY_NAME), texts, (), Use(SECTION, repeat=True)),
        *(flag for flag in own if flag not in shared),
    ]
    needs = (replace(flag, use=replace(flag.use, requires=inner.requires)) for flag in made)
    return [*part_flags(default, inner), *needs]


def _own_flags() -> Iterator[Flag]:
    """Options of methods and policies; those that several methods share come first."""
    met = set[str]()
    for section, kind in [(SECTION, CorpusOptions), *OWN_SECTIONS.items()]:
        for flag in flags_of(kind):
            if flag.name not in met:
                met.add(flag.name)
                use = replace(flag.use, section=section)
                yield replace(flag, path=("options", flag.name), use=use)


def _config(default: SpeculativeConfig, given: Given) -> SpeculativeConfig:
    """The config that is asked for; its method is open if none is named.

    Raises:
        ConfigError: for a value out of range, or an option of another method.
        UnknownNameError: for a name that does not exist.
    """
    values, target = given.values, given.values.get("model", DEFAULT_MODEL)
    names = {field: RENAMED.get(field, field) for field in schema_of(SpeculativeConfig)}
    common = {field: values[name] for field, name in names.items() if name in values}
    method, draft = common.get("method"), common.get("model")
    if isinstance(method, str):
        method = common["method"] = METHODS.get(method, method)
    # The values are checked before anything reads them, by the names that were typed.
    for field, name in RENAMED.items():
        check(name, common.get(field), Text | None)
    replace(default, **common)
    own = {flag.name: values[flag.name] for flag in _own_flags() if flag.name in values}
    first = DRAFTERS.find(method or default_method(draft, target)).options
    by_name: tuple[str, ...] = check(_BY_NAME, values.get(_BY_NAME, ()), tuple[Text, ...])
    own = with_method_options(by_name, own, first)
    picked = (method, own) if method else pick_method(draft, target, own)
    read = _names_read(*picked, common.get("policy", default.policy))
    # Options that the method does not read yield to a method from a stronger source.
    for holder in (own, common):
        for name in holder.keys() - read - (names.keys() - {"draft_sample_method"}):
            flag = name if name in values else _BY_NAME
            if given.yields(flag, ("method", "draft_model", "policy")):
                del holder[name]
    return replace(default, **common, options=own)


def _names_read(method: str, own: Mapping[str, Any], policy: str) -> set[str]:
    """Names of the options that a method and a policy read."""
    draws = any(Drawing.SAMPLED in drafter.drawings for drafter in drafters_of(method, own))
    names = option_names(option_classes(method, policy, own))
    return names | ({"draft_sample_method"} if draws else set())


def with_method_options(
    texts: Sequence[str], own: Mapping[str, Any], *kinds: type
) -> dict[str, Any]:
    """Options of methods and policies with others that are given as `NAME=VALUE`.

    Args:
        kinds: classes that declare options besides those of our own methods.

    Raises:
        ConfigError: for what is no option with a value, or is given twice.
    """
    named_options = dict(own)
    flags = {
        flag.name: flag for kind in (*OWN_SECTIONS.values(), *kinds) for flag in flags_of(kind)
    }
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or name in named_options:
            problem = "gives an option twice" if equals else "is not NAME=VALUE"
            raise ConfigError(f"--method-option {text!r} {problem}; give it once, as NAME=VALUE.")
        named_options[name] = (
            _read(f"--method-option {text!r}", flags[name], value) if name in flags else value
        )
    return named_options


def _read(where: str, flag: Flag, value: Any) -> Any:
    """Value of an option, from text as its flag reads it."""
    if not isinstance(value, str):
        return value
    try:
        read = read_value(flag, value)
        return joined(flag, [read]) if flag.repeated else read
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
