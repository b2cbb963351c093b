"""Loading of an engine: load target and draft by name, check that they fit, put them together."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch

from forerun.contracts import CausalLM, Drafter, DrafterSetup, Policy
from forerun.core import MOST_NODES
from forerun.drafters import DRAFTERS
from forerun.drafters.draft_model import DraftModelOptions
from forerun.drafters.translation import Translation
from forerun.engine.engine import Engine
from forerun.engine.options import DEFAULT_MODEL, context_of
from forerun.engine.resolve import (
    LoadOptions,
    Resolved,
    Speculative,
    name_of,
    resolve,
    split_options,
)
from forerun.engine.settings import EngineSettings, check_part
from forerun.errors import ConfigError
from forerun.heads import kind_at
from forerun.heads.files import HeadFiles, open_head
from forerun.models.checkpoint import Checkpoint
from forerun.models.in_memory import LoadedModel, is_model
from forerun.models.memory import MemoryNeed, check_memory, memory_need
from forerun.models.run_config import RunConfig
from forerun.options import Text, check
from forerun.placement import Placement

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def load(
    model: str | os.PathLike[str] | Checkpoint | PreTrainedModel = DEFAULT_MODEL,
    speculative: Speculative = True,
    *,
    drafter: str | Drafter | None = None,
    policy: str | Policy | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    backend: str = "auto",
    kv_dtype: str = "auto",
    tokenizer: Any = None,
    **options: Unpack[LoadOptions],
) -> Engine:
    """Load a model, and a drafter for it, into an engine.

    How to speculate may also be said by name, as on the command line: `load("zoo", method="ngram",
    num_speculative_tokens=3)`, `load(large, draft_model=small)`.

    Args:
        model: `smollm2`, `zoo`, the small model that comes with forerun, a checkpoint's directory,
            a GGUF file, a hub id, an open `Checkpoint`, or a model of transformers (pass its
            tokenizer too). Left out, SmolLM2 if its package is installed, else the zoo.
        speculative: configuration of speculation: a config or a mapping of its fields; True looks
            up (`suffix`), with the known draft model or head behind it; False decodes plainly.
        drafter: a method's name, or a drafter; instead of the config's `method`.
        policy: a policy's name, or a policy; instead of the config's.
        revision: branch, tag or commit on the hub.
        dtype: `auto` (as stored), `fp32`, `bf16`, `fp16`, torch's dtypes and their names, or on the
            kernels `int8` or `int4`.
        device: `auto`, `cpu`, `cuda` or `mps`.
        backend: `kernels`, the compiled ones for the CPU, `torch`, or `auto`.
        kv_dtype: precision of the target's keys and values: `auto` (that of the weights, bf16 for
            quantized ones), `fp32`, `bf16`, `int8` or `int4`. It is part of the model, as the
            precision of weights is: drafts are verified with it.
        tokenizer: used instead of the checkpoint's own.
        options: fields of the config, and settings of the engine: `max_batch_size`, requests that
            run at once (1); `max_context`, most prompt and output tokens of a request (the model's
            own context, 4096 tokens at most); `prefix_reuse`, which runs only the rest of a prompt
            that begins like an earlier request's text (True); `compression` of the target's cache,
            a `Compression` or a mapping of its options: approximate.

    Raises:
        ForerunError: one of its subclasses, saying what is wrong and what to do.
    """
    fields, engine_options = split_options(load, options)
    placement = Placement(dtype, device, backend, kv_dtype)  # type: ignore[arg-type]  # torch's own are named
    settings = EngineSettings(**engine_options)
    check_part("tokenizer", tokenizer)
    revision = check("revision", revision, Text | None)
    asked = resolve(speculative, drafter, policy, name_of(model), fields)
    target = _open(model, revision, tokenizer)
    if asked.note and asked is not speculative:
        logger.warning("%s", asked.note)
    return _assembled(target, asked, placement, settings, tokenizer)


def _assembled(
    target: Checkpoint,
    asked: Resolved,
    placement: Placement,
    settings: EngineSettings,
    tokenizer: Any,
) -> Engine:
    """The engine of a checkpoint, with its drafter; both are loaded here."""
    config = asked.config
    rows, context = settings.max_batch_size, context_of(target, settings.max_context)
    run = replace(target.run_config(placement), context=context)
    pair = _paired(ModelPair(target, run), placement, asked)
    # A chain never extends beyond the context.
    tree_slots = 0 if config.tree is None else MOST_NODES
    check_memory(pair.needs(rows, context + tree_slots), pair.run.device)
    if tokenizer is None and target.has_tokenizer:
        tokenizer = target.tokenizer
    setup = DrafterSetup(
        rows=rows,
        capacity=context,
        options=config.options,
        load_draft_model=pair.load_draft,
        encode=tokenizer and partial(tokenizer.encode, add_special_tokens=False),
        tree_slots=tree_slots,
        translation=pair.translation(tokenizer),
        head=pair.head,
        target=target.load(pair.run),
    )
    settings = replace(
        settings,
        max_context=context,
        eos_token_ids=tuple(target.eos_token_ids),
        sampling_defaults=target.sampling_defaults,
    )
    made = asked.drafter
    if made is None and config.method is not None:
        made = DRAFTERS.find(config.method).build(setup)
        made.origin = config.model or ""
    return Engine(
        setup.target,
        made,
        config,
        policy=asked.policy,
        tokenizer=tokenizer,
        **vars(settings),
    )


@dataclass(frozen=True)
class ModelPair:
    """A target, its draft model or head if it has one, and the settings that they run with."""

    target: Checkpoint
    run: RunConfig
    draft: Checkpoint | None = None
    draft_run: RunConfig | None = None
    head: HeadFiles | None = None

    def with_draft(self, draft: Checkpoint, placement: Placement) -> ModelPair:
        """The pair with a draft model, which runs with a placement's settings but on the target's device.

        Raises:
            ConfigError: for the target itself, or a precision that device or backend lack.
        """
        if draft.is_same(self.target):
            raise ConfigError(
                f"the draft model is the target {self.target.name} itself: every token would be "
                "accepted, at twice the work of plain decoding; choose a smaller draft, or method "
                "'ngram'."
            )
        run = draft.draft_run_config(placement, self.run)
        return replace(self, draft=draft, draft_run=replace(run, context=self.run.context))

    def needs(self, rows: int, capacity: int) -> list[MemoryNeed]:
        """Memory for the models and for their caches of `rows` rows of `capacity` slots."""
        needs = [memory_need("target", self.target.summary, self.run, rows=rows, capacity=capacity)]
        if self.draft is not None and self.draft_run is not None:
            summary = self.draft.summary
            needs.append(
                memory_need("draft", summary, self.draft_run, rows=rows, capacity=capacity)
            )
        if self.head is not None:
            # The head's cache has a layer or two, and its size is not known yet.
            needs.append(MemoryNeed("head", self.head.weight_bytes, 0))
        return needs

    def translation(self, tokenizer: Any) -> Translation | None:
        """The translation for a draft of another vocabulary; None if it is the target's own.

        Raises:
            IncompatibleDraftError: if the two share too little.
        """
        if self.draft is None:
            return None
        sizes = (self.target.summary.vocab_size, self.draft.summary.vocab_size)
        if tokenizer is None or not self.draft.has_tokenizer:
            if sizes[0] == sizes[1]:
                return None
            raise ConfigError(
                f"the target has {sizes[0]} tokens and the draft model {sizes[1]}; without the tokenizers of "
                "both it is unknown which are the same: give the target's as tokenizer=."
            )
        if tokenizer.get_vocab() == self.draft.tokenizer.get_vocab():
            return None
        translation = Translation(tokenizer, self.draft.tokenizer, self.draft.name, *sizes)
        logger.warning(
            "%s has another vocabulary than %s: it proposes the %d tokens that both have",
            self.draft.name,
            self.target.name,
            len(translation.shared.target_ids),
        )
        return translation

    def load_draft(self) -> CausalLM:
        """Load the draft model."""
        assert self.draft is not None
        assert self.draft_run is not None
        return self.draft.load(self.draft_run)


def _paired(pair: ModelPair, placement: Placement, asked: Resolved) -> ModelPair:
    """The pair with the draft model or the head that is asked for, if any.

    Raises:
        ConfigError: for a head with a method that drafts with a model.
        UnsupportedModelError: for a head of another method.
    """
    config = asked.config
    if config.model is None:
        return pair
    if config.head is not None:
        return replace(pair, head=open_head(config.model, config.head, config.revision))
    kind = kind_at(config.model)
    if kind is not None:
        raise ConfigError(
            f"{config.model} is a head, not a model; use method {kind!r} instead of {config.method!r}."
        )
    draft = _open(config.model if asked.draft is None else asked.draft, config.revision)
    return pair.with_draft(
        draft, replace(placement, dtype=config.read(DraftModelOptions).draft_dtype)
    )


def _open(model: Any, revision: str | None, tokenizer: Any = None) -> Checkpoint:
    if not isinstance(model, Checkpoint) and not is_model(model):
        return Checkpoint.open(model, revision)
    if revision is not None:
        raise ConfigError(
            f"revision {revision!r} comes too late for a checkpoint that is open; give it to "
            "Checkpoint.open."
        )
    return model if isinstance(model, Checkpoint) else LoadedModel.of(model, tokenizer)
