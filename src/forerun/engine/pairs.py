"""The drafter for a target if none is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forerun.drafters import drafters_of
from forerun.drafters.lookup.kept import CorpusOptions
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError
from forerun.heads import kind_at

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


# Members of a cascade in their order; the number is the most tokens that a member drafts.
_LOOKING_UP, _DRAFT_MODEL = "suffix", "draft_model:4"


@dataclass(frozen=True)
class Choice:
    """A complete config, and one sentence on the choices that were made for it."""

    config: SpeculativeConfig
    note: str | None = None


def default_method(model: str | None, target: str) -> str:
    """The method if none is named: that of a named head, a draft model, or looking up (`suffix`).

    A draft model is used if one is named or known for the target; looking up earlier text needs no
    model.

    Args:
        model: the draft model or head, if one is named.
        target: the target as the user named it.
    """
    head = None if model is None else kind_at(model)
    if head is not None:
        return head
    known = model is not None or target.rstrip("/") in KNOWN_DRAFTS
    return "draft_model" if known else "suffix"


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
    if "corpus" not in own or issubclass(drafters_of(method, own)[0].options, CorpusOptions):
        return method, own
    last = _DRAFT_MODEL if method == "draft_model" else method
    return "cascade", {"cascade": (_LOOKING_UP, last), **own}


def choose(config: SpeculativeConfig, target: str) -> Choice:
    """Fill in the method and the draft model that a config leaves open.

    Args:
        config: `method` and `model` may be None.
        target: the target as the user named it.

    Raises:
        ConfigError: for a method that needs a draft model if none is known, and for options that
            the method does not have.
    """
    method, own = config.method, dict(config.options)
    if method is None:
        method, own = pick_method(config.model, target, own)
    settled = replace(config, method=method, options=own)
    needs_model = any(drafter.needs_draft_model for drafter in settled.drafters)
    if needs_model and settled.head:
        raise ConfigError(
            f"method {method!r} needs a draft model and a head, and one can be named; leave one of the "
            "methods that it drafts with out."
        )
    if config.model is not None and not needs_model and not settled.head:
        raise ConfigError(
            f"method {method!r} takes no draft model; leave the draft model out "
            "or use method 'draft_model'."
        )
    if config.revision is not None and config.model is None:
        raise ConfigError(
            f"the draft revision {config.revision!r} belongs to no draft model; name the model too."
        )
    if settled.head and config.model is None:
        from forerun.models.zoo import packaged_head  # Here, because models load torch.

        packaged = packaged_head(target, settled.head)
        if packaged is None:
            raise ConfigError(
                f"no {settled.head} head is known for {target}; name the directory of one as the draft model."
            )
        return Choice(replace(settled, model=str(packaged)))
    if config.model is not None or not needs_model:
        picked = config.method is None and config.model is None
        note = f"no draft model is known for {target}: drafting by looking up (suffix)"
        return Choice(settled, note if picked else None)
    known = KNOWN_DRAFTS.get(target.rstrip("/"))
    if known is None:
        raise ConfigError(
            f"no draft model is known for {target}; name one, or use method 'suffix'."
        )
    note = f"drafting with {known}, the known draft for {target}"
    return Choice(replace(settled, model=known), None if target == "zoo" else note)
