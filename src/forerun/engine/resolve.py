"""Names to parts: the drafter, its draft model or head and the policy that a caller asks for, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forerun.contracts import Drafter, Policy
from forerun.core import Tree
from forerun.drafters import drafters_of
from forerun.drafters.corpus import CorpusOptions
from forerun.engine.config import SpeculativeConfig, all_option_names
from forerun.engine.settings import SizeOptions, check_part, refuse_unknown
from forerun.errors import ConfigError, shown
from forerun.foreign import own_flag
from forerun.heads import HEADS, kind_at
from forerun.options import Text, check

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from forerun.models.checkpoint import Checkpoint

_QWEN3 = "Qwen/Qwen3-0.6B"
_QWEN25 = "Qwen/Qwen2.5-0.5B-Instruct"
_LLAMA = "meta-llama/Llama-3.2-1B-Instruct"
_GPT2 = "openai-community/gpt2"

# Drafts of the target's own family and vocabulary, five times smaller or more.
KNOWN_DRAFTS = {
    "zoo": "zoo-draft",
    "Qwen/Qwen3-4B": _QWEN3,
    "Qwen/Qwen3-8B": _QWEN3,
    "Qwen/Qwen3-14B": _QWEN3,
    "Qwen/Qwen3-32B": _QWEN3,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN25,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN25,
    "Qwen/Qwen2.5-14B-Instruct": _QWEN25,
    "Qwen/Qwen2.5-32B-Instruct": _QWEN25,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA,
    "openai-community/gpt2-large": _GPT2,
    "openai-community/gpt2-xl": _GPT2,
    "gpt2-large": "gpt2",
    "gpt2-xl": "gpt2",
}

# The first member of a cascade that is chosen for the caller.
_LOOKING_UP = "suffix"


class LoadOptions(SizeOptions, total=False):
    """Further arguments of `load`, for type checkers: settings of the engine, and fields of the config."""

    method: str
    draft_model: str | os.PathLike[str] | Checkpoint | PreTrainedModel
    draft_revision: str
    num_speculative_tokens: int | None
    tree: str | Tree | None
    num_tree_nodes: int
    rejection_sample_method: str
    draft_sample_method: str
    options: Any


# Options that are not called as the fields of the config.
RENAMED: Mapping[str, str] = {"model": "draft_model", "revision": "draft_revision"}


@dataclass(frozen=True)
class Resolved:
    """The parts of speculation, with no name left open.

    Args:
        config: names the method and its draft model; without a method and a drafter, plain decoding.
        drafter, policy: complete parts, given in place of the config's names.
        draft: the draft model as it was given, if it was not named.
        note: one sentence on the choices that were made for the caller.
    """

    config: SpeculativeConfig
    drafter: Drafter | None = None
    policy: Policy | None = None
    draft: Any = None
    note: str | None = None


Speculative = SpeculativeConfig | Mapping[str, object] | Resolved | bool
"""A config, its fields by name, parts that are resolved already, True for the defaults or False for none."""


def split_options(
    taker: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Further arguments of `load`: fields of the config, under their own names, and settings of the engine.

    Args:
        taker: the function that takes them, for messages.
        options: its further arguments: those of `LoadOptions`, and options of methods and policies.

    Raises:
        ConfigError: for a name from another engine, with the name here.
        UnknownNameError: for a name that does not exist.
    """
    declared = LoadOptions.__annotations__
    if unread := sorted(options.keys() - declared.keys() - all_option_names()):
        flags = {name.replace("_", "-") for name in ("speculative", *declared)}
        ours = own_flag(unread[0], flags).replace("-", "_")
        if ours != unread[0]:
            raise ConfigError(f"{unread[0]} is called {ours} here; use that name.")
        refuse_unknown(taker, unread, declared)
    sizes = SizeOptions.__annotations__
    settings = {name: value for name, value in options.items() if name in sizes}
    others = {name: value for name, value in options.items() if name not in sizes}
    fields = {ours: field for field, ours in RENAMED.items()}
    return {fields.get(name, name): value for name, value in others.items()}, settings


def resolve(
    speculative: Speculative,
    drafter: str | Drafter | None,
    policy: str | Policy | None,
    target: str,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Resolved:
    """The parts of speculation that a caller asks for.

    Args:
        speculative: what `forerun.load` takes.
        drafter, policy: names or parts.
        target: the target as the user named it.
        more: fields of the config beside those of `speculative`, by name.

    Raises:
        ConfigError: for values that contradict each other or have a wrong type.
        UnknownNameError: for a name that does not exist.
    """
    if speculative is False or isinstance(speculative, Resolved):
        for name, part in {"drafter": drafter, "policy": policy, **more}.items():
            if part is not None:
                how = "False" if speculative is False else "complete"
                raise ConfigError(
                    f"speculative is {how}, and {name} is {shown(part)}; leave one out."
                )
        return Resolved(SpeculativeConfig()) if speculative is False else speculative
    draft = more.get("model")
    if draft is None or isinstance(draft, (str, os.PathLike)):
        draft = None
    else:
        more = {**more, "model": name_of(draft, "draft_model")}
    names = {"method": drafter, "policy": policy}
    more = {**more, **{field: name for field, name in names.items() if isinstance(name, str)}}
    config = _config(speculative, more)
    own_policy = None if isinstance(policy, str) else policy
    check_part("policy", own_policy)
    if drafter is None or isinstance(drafter, str):
        return replace(choose(config, target), policy=own_policy, draft=draft)
    check_part("drafter", drafter)
    for name in ("method", "model", "revision"):
        if (given := getattr(config, name)) is not None:
            raise ConfigError(
                f"drafter is {shown(drafter)}, and {name} is {given!r}; leave one of them out."
            )
    return Resolved(config, drafter, own_policy)


def _config(
    speculative: SpeculativeConfig | Mapping[str, object] | bool, more: Mapping[str, Any]
) -> SpeculativeConfig:
    twice = (
        []
        if speculative is True
        else [n for n in more if not isinstance(speculative, Mapping) or n in speculative]
    )
    if twice:
        raise ConfigError(
            f"{twice[0]} is given beside speculative, which sets it; leave one of them out."
        )
    if speculative is True or isinstance(speculative, Mapping):
        return SpeculativeConfig.from_dict({**({} if speculative is True else speculative), **more})
    if not isinstance(speculative, SpeculativeConfig):
        raise ConfigError(
            f"speculative is {shown(speculative)}; it must be a SpeculativeConfig, a mapping of its "
            "fields, True or False."
        )
    return speculative


def name_of(model: Any, what: str = "model") -> str:
    """The name of a model that is given by name, as a checkpoint, or as a model of transformers.

    Args:
        model: the model.
        what: name of the argument, for messages.

    Raises:
        ConfigError: for anything else.
    """
    from forerun.models.checkpoint import Checkpoint  # Here, because models load torch.
    from forerun.models.in_memory import is_model

    if isinstance(model, Checkpoint):
        return model.name
    if is_model(model):
        return getattr(model, "name_or_path", "") or type(model).__name__
    if callable(getattr(model, "new_cache", None)):
        raise ConfigError(f"{what} is {shown(model)}, loaded already; give it to forerun.Engine.")
    if not isinstance(model, (str, os.PathLike)):
        raise ConfigError(
            f"{what} is {shown(model)}; it must be a name, a path, a Checkpoint, or a model of transformers."
        )
    name: str = check(what, model, Text)
    return name


def default_method(model: str | None, target: str) -> str:
    """The method if none is named: that of a named head or draft model, or the best one known for the target.

    A drafter that is known for the target drafts where nothing is found by looking up (`cascade`).
    For all other targets earlier text is looked up (`suffix`).

    Args:
        model: the draft model or head, if one is named.
        target: the target as the user named it.
    """
    if model is not None:
        return kind_at(model) or "draft_model"
    return "suffix" if known_drafter(target) is None else "cascade"


def known_drafter(target: str) -> str | None:
    """Method of the draft model or packaged head known for a target; None without one."""
    from forerun.models.zoo import packaged_head  # Here, because models load torch.

    if target.rstrip("/") in KNOWN_DRAFTS:
        return "draft_model"
    return next((kind for kind in HEADS if packaged_head(target, kind) is not None), None)


def pick_method(
    model: str | None, target: str, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The method if none is named, with its options.

    It is that of `default_method`. If there is a corpus that this method would not read, it drafts
    in a cascade after looking up.

    Args:
        model: the draft model or head, if one is named.
        target: the target as the user named it.
        options: the given options.
    """
    method, own = default_method(model, target), dict(options)
    if method == "cascade":
        return method, {"cascade": (_LOOKING_UP, known_drafter(target)), **own}
    if "corpus" not in own or issubclass(drafters_of(method, own)[0].options, CorpusOptions):
        return method, own
    return "cascade", {"cascade": (_LOOKING_UP, method), **own}


def choose(config: SpeculativeConfig, target: str) -> Resolved:
    """Fill in the method and the draft model that a config leaves open.

    Args:
        config: `method` and `model` may be None.
        target: the target as the user named it.

    Raises:
        ConfigError: for a method that needs a draft model if none is known, and for options that
            the method does not have.
    """
    if config.method is None:
        method, own = pick_method(config.model, target, config.options)
        settled = replace(config, method=method, options=own)
    else:
        settled = config
    needs_model = any(drafter.needs_draft_model for drafter in settled.drafters)
    _check_model(settled, needs_model)
    if config.model is not None:
        return Resolved(settled)
    if settled.head:
        from forerun.models.zoo import packaged_head  # Here, because models load torch.

        packaged = packaged_head(target, settled.head)
        if packaged is None:
            raise ConfigError(
                f"no {settled.head} head is known for {target}; name the directory of one as the draft model."
            )
        return Resolved(replace(settled, model=str(packaged)))
    if not needs_model:
        note = f"no draft model is known for {target}: drafting by looking up (suffix)"
        return Resolved(settled, note=note if config.method is None else None)
    known = KNOWN_DRAFTS.get(target.rstrip("/"))
    if known is None:
        raise ConfigError(
            f"no draft model is known for {target}; name one, or use method 'suffix'."
        )
    note = f"drafting with {known}, the known draft for {target}"
    return Resolved(replace(settled, model=known), note=None if target == "zoo" else note)


def _check_model(config: SpeculativeConfig, needs_model: bool) -> None:
    """Refuse a draft model or head that the method does not take, and a method that would take both."""
    if needs_model and config.head:
        raise ConfigError(
            f"method {config.method!r} needs a draft model and a head, and one can be named; leave one of "
            "the methods that it drafts with out."
        )
    if config.model is not None and not needs_model and not config.head:
        raise ConfigError(
            f"method {config.method!r} takes no draft model; leave the draft model out "
            "or use method 'draft_model'."
        )
    if config.revision is not None and config.model is None:
        raise ConfigError(
            f"the draft revision {config.revision!r} belongs to no draft model; name the model too."
        )
