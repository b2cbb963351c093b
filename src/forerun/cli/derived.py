"""Flags and help that follow from declared options.

A method's own options stand in a section of the help under its name. Methods of other packages share
`--method-option NAME=VALUE`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from forerun.cli.options import Option
from forerun.cli.param_types import Whole
from forerun.cli.requests import option_of
from forerun.drafters.base import HeadOptions
from forerun.drafters.lookup.corpus_cache import CorpusOptions
from forerun.engine.config import SpeculativeConfig
from forerun.engine.speculation_options import OWN_SECTIONS
from forerun.flags import flags_of
from forerun.options import schema_of

# Where a flag cannot be called as its field.
RENAMED = {"model": "draft_model", "revision": "draft_revision"}
SPECULATION = "Speculation"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def derived(
    owner: type,
    section: str,
    without: Container[str] = (),
    renamed: Mapping[str, str] = _NOTHING,
    defaults: Mapping[str, Any] = _NOTHING,
) -> list[Option]:
    """An option for each field of a class made by `forerun.options.options`.

    Args:
        without: fields that get none.
        renamed: flags whose names are not those of their fields.
        defaults: a command's own.
    """
    return [
        option_of(
            replace(
                flag,
                name=renamed.get(flag.name, flag.name),
                default=defaults.get(flag.name, flag.default),
                use=replace(flag.use, section=section),
            )
        )
        for flag in flags_of(owner)
        if flag.name not in without
    ]


def speculation_options(defaults: Mapping[str, Any] = _NOTHING) -> list[Option]:
    """Flags for how to speculate: the common ones, then those of each method and policy.

    Args:
        defaults: a command's own.
    """
    shared = schema_of(CorpusOptions) | schema_of(HeadOptions)
    return [
        *derived(SpeculativeConfig, SPECULATION, ("options",), RENAMED, defaults),
        *derived(CorpusOptions, SPECULATION),
        *derived(HeadOptions, SPECULATION),
        Option(
            "speculative_config",
            SPECULATION,
            type=Whole(),
            metavar="JSON",
            help="All of this in one JSON object, keys as vLLM's: method, model, "
            "num_speculative_tokens, prompt_lookup_max and so on.",
        ),
        Option(
            "method_option",
            SPECULATION,
            type=Whole(),
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of the method by its name, also where it has no flag. Repeatable.",
        ),
        *(flag for title, kind in OWN_SECTIONS.items() for flag in derived(kind, title, shared)),
    ]
