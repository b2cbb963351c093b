"""Which drafter to take for a target when none is named."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from forerun.drafters import all_options, needs_draft_model, options_read
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError

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


@dataclass(frozen=True)
class Choice:
    """A complete config, and one sentence on what was chosen, if anything had to be."""

    config: SpeculativeConfig
    note: str | None = None


def choose(config: SpeculativeConfig, target: str) -> Choice:
    """Fill in the method and the draft model that a config leaves open.

    Args:
        config: `method` and `model` may be None.
        target: the target as the user named it.

    Raises:
        ConfigError: for a method that needs a draft model where none is known.
    """
    needs_model = config.method is None or needs_draft_model(config.method, config.cascade)
    if config.model is not None and not needs_model:
        raise ConfigError(
            f"method {config.method!r} takes no draft model; leave the draft model out "
            "or use method 'draft_model'."
        )
    if config.revision is not None and config.model is None:
        raise ConfigError(
            f"the draft revision {config.revision!r} belongs to no draft model; name the model too."
        )
    if config.model is not None:
        return Choice(replace(config, method=config.method or "draft_model"))
    known = KNOWN_DRAFTS.get(target.rstrip("/"))
    if needs_model and known is not None:
        note = None if target == "zoo" else f"drafting with {known}, the known draft for {target}"
        return Choice(replace(config, method=config.method or "draft_model", model=known), note)
    if config.method is None:
        note = f"no draft model is known for {target}: drafting by prompt lookup (ngram)"
        config = replace(config, method="ngram")
        _refuse_draft_dtype(config)
        return Choice(config, note)
    if needs_model:
        raise ConfigError(f"no draft model is known for {target}; name one, or use method 'ngram'.")
    _refuse_draft_dtype(config)
    return Choice(config)


def refuse_unread(config: SpeculativeConfig) -> None:
    """Refuse options that the method does not read.

    Raises:
        ConfigError: naming the option and the method.
    """
    assert config.method is not None
    defaults = {field.name: field.default for field in fields(config)}
    for name in sorted(all_options() - options_read(config.method, config.cascade)):
        if getattr(config, name) != defaults[name]:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, which method {config.method!r} does not read; "
                "leave it out."
            )


def without_unread(config: SpeculativeConfig) -> SpeculativeConfig:
    """The config with the defaults of what its method does not read."""
    assert config.method is not None
    unread = all_options() - options_read(config.method, config.cascade)
    defaults: dict[str, Any] = {
        field.name: field.default for field in fields(config) if field.name in unread
    }
    return replace(config, **defaults)


def _refuse_draft_dtype(config: SpeculativeConfig) -> None:
    if config.draft_dtype != "auto":
        raise ConfigError(
            f"draft_dtype {config.draft_dtype!r} is for a draft model, and method "
            f"{config.method!r} has none; leave it out or name a draft model."
        )
