"""From names to a running engine: load target and draft, check that they fit, put them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.core import CausalLM, Drafter, DrafterSetup
from forerun.drafters import find_drafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.pairs import choose
from forerun.errors import ConfigError, IncompatibleDraftError
from forerun.models import load_config, load_model, load_tokenizer
from forerun.models.loading import eos_token_ids
from forerun.models.memory import check_memory, describe
from forerun.models.zoo import is_zoo, zoo_path

# Tokens of prompt and output a request may have unless asked otherwise: caches are allocated at once.
DEFAULT_CONTEXT = 4096


def load(
    model: str = "zoo",
    speculative: SpeculativeConfig | bool = True,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    max_batch_size: int = 1,
    max_context: int | None = None,
    tokenizer: Any = None,
) -> Engine:
    """Load a model, and a drafter for it, into an engine.

    Args:
        model: a checkpoint directory, a hub id, or `zoo`, the small model that comes with forerun.
        speculative: how to speculate; True picks the known draft model or prompt lookup, False
            decodes plainly.
        revision: branch, tag or commit on the hub.
        dtype: `auto` (as stored), `fp32`, `bf16` or `fp16`.
        device: `auto`, `cpu`, `cuda` or `mps`.
        max_batch_size: requests that run at once.
        max_context: prompt and output tokens of a request at most; by default the model's own
            context, 4096 tokens at most.
        tokenizer: the model's own, from `load_tokenizer`, where it was needed before.

    Raises:
        ForerunError: one of its kinds, saying what is wrong and what to do.
    """
    config = speculative if isinstance(speculative, SpeculativeConfig) else SpeculativeConfig()
    if speculative is not False:
        config = choose(config, model).config
    target_path = locate(model)
    draft_path = None if config.model is None else locate(config.model)
    if draft_path is not None:
        _refuse_itself(target_path, revision, draft_path, config.revision, model)
    target_config = load_config(target_path, revision=revision)
    context = min(max_context or DEFAULT_CONTEXT, describe(target_config).max_context)
    draft_config = None if draft_path is None else load_config(draft_path, revision=config.revision)
    check_memory(
        target_config,
        draft_config,
        dtype=dtype,
        draft_dtype=config.draft_dtype,
        device=device,
        rows=max_batch_size,
        capacity=context,
    )
    if tokenizer is None:
        tokenizer = load_tokenizer(target_path, revision=revision)
    if draft_path is not None:
        check_vocabulary(tokenizer, load_tokenizer(draft_path, revision=config.revision), config)
    target = load_model(target_path, revision=revision, dtype=dtype, device=device, name=model)
    drafter = None
    if speculative is not False:
        drafter = _make_drafter(config, target, draft_path, max_batch_size, context)
    return Engine(
        target,
        drafter,
        config,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(target_path, revision=revision),
        max_batch_size=max_batch_size,
        max_context=context,
    )


def locate(name: str) -> str | Path:
    """A directory for the zoo's models; any other name as it is."""
    return zoo_path(name) if is_zoo(name) else name


def check_vocabulary(tokenizer: Any, draft_tokenizer: Any, config: SpeculativeConfig) -> None:
    """Refuse a draft whose token ids mean something else than the target's.

    Raises:
        IncompatibleDraftError: naming the first difference.
    """
    ours, theirs = tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        difference = f"{len(theirs)} tokens against the target's {len(ours)}"
    else:
        differing = [token for token, number in ours.items() if theirs.get(token) != number]
        token = min(differing, key=lambda token: ours[token])
        difference = f"token {token!r} is {theirs.get(token)} there and {ours[token]} in the target"
    raise IncompatibleDraftError(
        f"the draft model {config.model} has another vocabulary ({difference}); "
        "choose a draft of the target's family, or method 'ngram'."
    )


def _refuse_itself(
    target: str | Path,
    revision: str | None,
    draft: str | Path,
    draft_revision: str | None,
    name: str,
) -> None:
    same = str(target) == str(draft) and revision == draft_revision
    both_local = Path(target).is_dir() and Path(draft).is_dir()
    if same or (both_local and Path(target).resolve() == Path(draft).resolve()):
        raise ConfigError(
            f"the draft model is the target {name} itself: every token would be accepted, at twice "
            "the work of plain decoding; choose a smaller draft, or method 'ngram'."
        )


def _make_drafter(
    config: SpeculativeConfig, target: CausalLM, draft: str | Path | None, rows: int, capacity: int
) -> Drafter:
    assert config.method is not None

    def load_draft_model() -> CausalLM:
        assert draft is not None
        return load_model(
            draft,
            revision=config.revision,
            dtype=config.draft_dtype,
            device=str(target.device),
            name=config.model,
        )

    setup = DrafterSetup(target, rows, capacity, config.as_dict(), load_draft_model)
    drafter: Drafter = find_drafter(config.method).build(setup)
    return drafter
