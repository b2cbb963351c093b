"""Options of every method and policy as options of a request, and those that are given by name alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.drafters import DRAFTERS
from forerun.errors import ConfigError
from forerun.flags import flags_of, joined, read_value
from forerun.policies import POLICIES

# Sections of the help with the options that have flags of their own.
OWN_SECTIONS: dict[str, type] = {
    **{f"Method {name}": drafter.options for name, drafter in DRAFTERS.items()},
    **{f"Policy {name}": policy.options for name, policy in POLICIES.items()},
}


def with_method_options(
    texts: Sequence[str], own: Mapping[str, Any], *kinds: type
) -> dict[str, Any]:
    """Options of methods and policies with others that are given as `NAME=VALUE`.

    Args:
        kinds: classes that declare options besides those of our own methods.

    Raises:
        ConfigError: for what is no option with a value, or is given twice.
    """
    found = dict(own)
    flags = {
        flag.name: flag for kind in (*OWN_SECTIONS.values(), *kinds) for flag in flags_of(kind)
    }
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or name in found:
            problem = "gives an option twice" if equals else "is not NAME=VALUE"
            raise ConfigError(f"--method-option {text!r} {problem}; give it once, as NAME=VALUE.")
        found[name] = value
        if name in flags:
            try:
                read = read_value(flags[name], value)
            except ValueError as error:
                raise ConfigError(f"--method-option {text!r}: {error}") from None
            found[name] = joined(flags[name], [read]) if flags[name].repeated else read
    return found
