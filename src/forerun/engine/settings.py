"""Settings of an engine, and checks that its parts can work together, made once, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypedDict

from pydantic import BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from forerun.compression import NO_COMPRESSION, Compression
from forerun.contracts import Cache, CausalLM, Drafter, Evicts, compresses_cache
from forerun.core import Drawing, Tree
from forerun.engine.config import SpeculativeConfig
from forerun.errors import (
    ConfigError,
    IncompatibleDraftError,
    UnknownNameError,
    UnsupportedModelError,
    shown,
)
from forerun.options import changes, from_mapping, options
from forerun.params import SamplingParams, TokenId
from forerun.policies.base import USUAL_LENGTH

# More rows than any machine has memory for.
MOST_ROWS = 2**16
# Methods that each part of an engine must have, and advice on what to pass instead.
_PARTS = {
    "target": (
        ("new_cache", "forward"),
        "a model from forerun.models.load_model, or call forerun.load",
    ),
    "drafter": (("propose", "observe", "release"), "a drafter, or leave it out"),
    "policy": (("plan", "observe", "release"), "a policy, or leave it out"),
    "tokenizer": (("encode", "decode"), "a tokenizer of transformers, or leave it out"),
    "randomness": (("uniform", "gumbel"), "a forerun.randomness.Randomness, or leave it out"),
}


class SizeOptions(TypedDict, total=False):
    """Fields of `EngineSettings` that `load` takes too, for type checkers."""

    max_batch_size: int
    max_context: int | None
    prefix_reuse: bool
    compression: Compression | Mapping[str, Any]


class EngineOptions(SizeOptions, total=False):
    """The fields of `EngineSettings`, for type checkers."""

    eos_token_ids: Iterable[int]
    sampling_defaults: Mapping[str, Any] | None


def _compression(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_mapping(Compression, value)
    if not isinstance(value, Compression):
        raise ValueError("it must be a forerun.compression.Compression or a mapping of its options")
    return value


def _defaults(value: Any) -> dict[str, Any]:
    return changes(SamplingParams.from_dict({} if value is None else value))


@options
class EngineSettings:
    """Settings of an engine: its size, the tokens that end its texts, and how its cache is used."""

    max_batch_size: int = Field(
        default=1, ge=1, le=MOST_ROWS, description="Requests that run at once; more wait."
    )
    max_context: int | None = Field(
        default=None, ge=2, description="Tokens of prompt and output at most; the target's own."
    )
    eos_token_ids: tuple[TokenId, ...] = Field(default=(), description="Tokens that end a text.")
    prefix_reuse: bool = Field(
        default=True,
        description="A prompt that begins like an earlier request's text runs only the rest.",
    )
    compression: Annotated[SkipJsonSchema[Compression], BeforeValidator(_compression)] = Field(
        default=NO_COMPRESSION, description="Compression of the target's cache: approximate."
    )
    sampling_defaults: Annotated[SkipJsonSchema[Mapping[str, Any]], BeforeValidator(_defaults)] = (
        Field(default_factory=dict, description="Sampling parameters unless a request sets them.")
    )


def refuse_unknown(taker: Callable[..., Any], given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments by names that a function or class does not take.

    Args:
        taker: the function or class.
        given: names of the arguments that it has not declared.
        known: further names that it takes.

    Raises:
        UnknownNameError: for the first of them, listing the known names.
    """
    parameters = inspect.signature(taker).parameters.values()
    names = [*(p.name for p in parameters if p.kind is not p.VAR_KEYWORD), *known]
    for name in given:
        if name not in names:
            raise UnknownNameError(f"argument of {taker.__name__}", name, names)


def check_part(name: str, part: Any) -> None:
    """Refuse a part of an engine that lacks a required method; None is allowed for optional parts.

    Raises:
        ConfigError: naming the part and the missing method.
    """
    needed, allowed = _PARTS[name]
    if part is None and name != "target":
        return
    if isinstance(part, type):
        raise ConfigError(f"{name} is the class {part.__name__} itself; give {allowed}.")
    lacking = [method for method in needed if not callable(getattr(part, method, None))]
    if lacking:
        raise ConfigError(f"{name} is {shown(part)}, which has no {lacking[0]}; give {allowed}.")


def check_engine(
    target: CausalLM,
    drafter: Drafter | None,
    config: SpeculativeConfig,
    settings: EngineSettings,
) -> None:
    """Refuse parts from which no engine can be built.

    Raises:
        ConfigError, IncompatibleDraftError: naming the parts.
    """
    check_part("target", target)
    if not isinstance(config, SpeculativeConfig):
        raise ConfigError(f"config is {shown(config)}; it must be a SpeculativeConfig or None.")
    if settings.max_context is not None and settings.max_context > target.max_context:
        raise ConfigError(
            f"max_context is {settings.max_context}; {target.name} takes 2 to {target.max_context} "
            "tokens."
        )
    if config.waiting:
        raise ConfigError(
            f"the options {', '.join(config.waiting)} are those of a method, and the config names none; "
            "use forerun.load, or hand them to the drafter."
        )
    check_part("drafter", drafter)
    if drafter is not None:
        check_drafter(drafter, target, config, settings.max_batch_size)
    elif config.method is not None:
        raise ConfigError(
            f"the config asks for method {config.method!r} and no drafter was given; "
            "use forerun.load, or hand in the drafter."
        )


def check_drafter(
    drafter: Drafter, target: CausalLM, config: SpeculativeConfig, max_batch_size: int
) -> None:
    """Refuse a drafter that could not be exact or could not run.

    Raises:
        ConfigError: naming the target, the drafter and the remedy.
        IncompatibleDraftError: if the vocabularies differ.
    """
    rule = config.rejection_sample_method
    draws = Drawing.SAMPLED in drafter.drawings and config.draft_sample_method != "greedy"
    if rule in ("block", "traversal") and Drawing.SAMPLED not in drafter.drawings:
        raise ConfigError(
            f"{drafter.name} proposes point masses, which {rule} verification cannot take; "
            "use rejection_sample_method 'token' or 'auto'."
        )
    if rule == "typical" and draws and (drafter.draws_trees or config.tree is not None):
        raise ConfigError(
            f"{drafter.name} draws trees, typical acceptance takes trees of most likely tokens; "
            "use draft_sample_method 'greedy', or rejection_sample_method 'auto'."
        )
    if rule == "block" and drafter.draws_trees:
        raise ConfigError(
            f"{drafter.name} proposes trees, block verification takes chains; "
            "use rejection_sample_method 'token' or 'auto'."
        )
    if config.tree is not None and not drafter.takes_trees:
        raise ConfigError(f"{drafter.name} proposes chains alone; leave the tree out.")
    if config.tree is not None and rule == "block":
        raise ConfigError(
            "block verification takes chains; leave the tree out, or use rejection_sample_method "
            "'traversal' or 'auto'."
        )
    missing = [layer for layer in drafter.hidden_layers if not 0 <= layer <= target.num_layers]
    if missing:
        raise ConfigError(
            f"{drafter.name} reads hidden layers {missing} of {target.name}, "
            f"which has layers 0 to {target.num_layers}."
        )
    if drafter.vocab_size not in (None, target.vocab_size):
        raise IncompatibleDraftError(
            f"{drafter.name} proposes from {drafter.vocab_size} tokens and {target.name} has "
            f"{target.vocab_size}; they must share one vocabulary."
        )
    if drafter.rows is not None and drafter.rows < max_batch_size:
        raise ConfigError(
            f"{drafter.name} was built for {drafter.rows} requests at once and the engine runs "
            f"{max_batch_size}; build it with as many rows."
        )


def check_depth(tree: Tree | str | None, config: SpeculativeConfig) -> None:
    """Refuse a tree whose lower part would never be drafted.

    Raises:
        ConfigError: with both numbers.
    """
    longest = config.num_speculative_tokens
    if longest is None and config.policy != "auto":
        longest = USUAL_LENGTH
    if isinstance(tree, Tree) and longest is not None and tree.depth > longest:
        raise ConfigError(
            f"the tree is {tree.depth} deep and num_speculative_tokens is "
            f"{longest}; raise that to {tree.depth}, or cut the tree."
        )


def new_cache(
    target: CausalLM, rows: int, capacity: int, compression: Compression
) -> tuple[Cache, Evicts | None]:
    """The target's cache, and the same object again if it evicts, otherwise None.

    Raises:
        UnsupportedModelError: for a target whose cache cannot evict.
    """
    if not compression.is_on:
        return target.new_cache(rows, capacity), None
    if not compresses_cache(target):
        raise UnsupportedModelError(
            f"{target.name} cannot run with kv_method {compression.kv_method!r}: its cache holds the same "
            "tokens in all heads; load a model that forerun runs itself, or leave kv_method out."
        )
    cache = target.compressed_cache(rows, capacity, compression)
    return cache, cache
