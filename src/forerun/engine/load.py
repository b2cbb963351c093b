"""From names to a running engine: load target and draft, check that they fit, put them together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forerun.contracts import CausalLM, Drafter, DrafterSetup
from forerun.drafters import find_drafter
from forerun.drafters.retokenizer import Translation
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.pairs import choose, refuse_unread
from forerun.errors import ConfigError
from forerun.models import Storage, load_config, load_model, load_tokenizer, native
from forerun.models.loading import eos_token_ids
from forerun.models.memory import check_memory, describe, draft_storage_of, storage_of
from forerun.models.zoo import is_zoo, zoo_path
from forerun.trees import MOST_NODES

logger = logging.getLogger(__name__)

# Tokens of prompt and output a request may have unless asked otherwise: caches are allocated at once.
DEFAULT_CONTEXT = 4096


def load(
    model: str = "zoo",
    speculative: SpeculativeConfig | bool = True,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    backend: str = "auto",
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
        dtype: `auto` (as stored), `fp32`, `bf16`, `fp16`, or on the kernels `int8` or `int4`.
        device: `auto`, `cpu`, `cuda` or `mps`.
        backend: `kernels`, the compiled ones for the CPU, `torch`, or `auto`.
        max_batch_size: requests that run at once.
        max_context: prompt and output tokens of a request at most; by default the model's own
            context, 4096 tokens at most.
        tokenizer: the model's own, from `load_tokenizer`, where it was needed before.

    Raises:
        ForerunError: one of its kinds, saying what is wrong and what to do.
    """
    config = _chosen(speculative, model)
    target = Checkpoint.of(model, revision)
    draft = None if config is None else _draft_of(config, target)
    context = _context(target, max_context)
    # A chain never reaches past the context.
    tree_slots = 0 if config is None or config.tree is None else MOST_NODES
    check_memory(
        target.config,
        draft and draft.config,
        dtype=dtype,
        draft_dtype="auto" if config is None else config.draft_dtype,
        device=device,
        backend=backend,
        rows=max_batch_size,
        capacity=context + tree_slots,
    )
    tokenizer = tokenizer or target.tokenizer()
    translation = None if draft is None else translation_for(tokenizer, target, draft)
    loaded = target.load(dtype, device, backend)
    kept = storage_of(target.config, loaded.device, dtype, backend)
    pair = Pair(draft, kept, backend, tokenizer, translation)
    return Engine(
        loaded,
        None if config is None else pair.drafter(config, loaded, max_batch_size, context),
        config,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(target.path, revision=revision),
        max_batch_size=max_batch_size,
        max_context=context,
    )


def _chosen(speculative: SpeculativeConfig | bool, model: str) -> SpeculativeConfig | None:
    if speculative is False:
        return None
    choice = choose(SpeculativeConfig() if speculative is True else speculative, model)
    refuse_unread(choice.config)
    if choice.note:
        logger.warning("%s", choice.note)
    return choice.config


@dataclass(frozen=True)
class Checkpoint:
    """A model by name: where it is and how to read its parts."""

    name: str
    path: str | Path
    revision: str | None
    config: Any

    @classmethod
    def of(cls, name: str, revision: str | None) -> Checkpoint:
        path = locate(name)
        return cls(name, path, revision, load_config(path, revision=revision))

    def tokenizer(self) -> Any:
        return load_tokenizer(self.path, revision=self.revision)

    def load(self, dtype: str, device: str, backend: str) -> CausalLM:
        return load_model(
            self.path,
            revision=self.revision,
            dtype=dtype,
            device=device,
            backend=backend,
            name=self.name,
        )

    def is_same(self, other: Checkpoint) -> bool:
        if Path(self.path).is_dir() and Path(other.path).is_dir():
            return Path(self.path).resolve() == Path(other.path).resolve()
        return (str(self.path), self.revision) == (str(other.path), other.revision)


def locate(name: str) -> str | Path:
    """A directory for the zoo's models; any other name as it is."""
    return zoo_path(name) if is_zoo(name) else name


def translation_for(tokenizer: Any, target: Checkpoint, draft: Checkpoint) -> Translation | None:
    """What a draft of another vocabulary needs; None for the target's own.

    Raises:
        IncompatibleDraftError: where the two share too little.
    """
    theirs = draft.tokenizer()
    if tokenizer.get_vocab() == theirs.get_vocab():
        return None
    sizes = (describe(one.config).vocab_size for one in (target, draft))
    found = Translation.of(tokenizer, theirs, draft.name, *sizes)
    logger.warning(
        "%s has another vocabulary than %s: it proposes the %d tokens that both have",
        draft.name,
        target.name,
        len(found.shared.target_ids),
    )
    return found


def _draft_of(config: SpeculativeConfig, target: Checkpoint) -> Checkpoint | None:
    if config.model is None:
        return None
    draft = Checkpoint.of(config.model, config.revision)
    if draft.is_same(target):
        raise ConfigError(
            f"the draft model is the target {target.name} itself: every token would be accepted, at "
            "twice the work of plain decoding; choose a smaller draft, or method 'ngram'."
        )
    return draft


def _context(target: Checkpoint, max_context: int | None) -> int:
    longest = describe(target.config).max_context
    if max_context is None:
        return min(DEFAULT_CONTEXT, longest)
    if not 2 <= max_context <= longest:
        raise ConfigError(
            f"max_context is {max_context}; {target.name} takes 2 to {longest} tokens."
        )
    return max_context


@dataclass(frozen=True)
class Pair:
    """A draft model for a target: how the target is kept says how the draft will be."""

    draft: Checkpoint | None
    target: Storage
    backend: str
    tokenizer: Any = None
    translation: Translation | None = None

    def load_draft(self, dtype: str, device: torch.device) -> CausalLM:
        assert self.draft is not None
        kept = draft_storage_of(self.draft.config, device, self.target, dtype, self.backend)
        # Elsewhere than on the kernels `auto` is for the checkpoint to say.
        precision = kept.precision if kept.backend == "kernels" else dtype
        backend = kept.backend if native(self.draft.config) else self.backend
        return self.draft.load(precision, str(device), backend)

    def drafter(
        self, config: SpeculativeConfig, target: CausalLM, rows: int, capacity: int
    ) -> Drafter:
        def load_draft_model() -> CausalLM:
            return self.load_draft(config.draft_dtype, target.device)

        assert config.method is not None
        setup = DrafterSetup(
            target,
            rows,
            capacity,
            config.as_dict(),
            load_draft_model,
            encode=partial(self.tokenizer.encode, add_special_tokens=False),
            translation=self.translation,
        )
        drafter: Drafter = find_drafter(config.method).build(setup)
        return drafter
