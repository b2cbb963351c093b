"""The `custom_generate` callable: runs a batch of prompts through the engine of their model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import Drafter, Policy
from forerun.core import FinishReason
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.options import DEFAULT_CONTEXT
from forerun.engine.resolve import Speculative
from forerun.errors import ConfigError, PromptError, shown
from forerun.hf.settings import (
    drafting_of,
    ends_of,
    mask_of,
    pad_token,
    refuse_unsupported,
    sampling_of,
)
from forerun.models.in_memory import LoadedModel, is_model
from forerun.params import SamplingParams
from forerun.randomness import fresh_seed

# Attribute of a model that holds its engine.
_NAME = "_forerun"


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    generation_config: Any = None,
    synced_gpus: bool = False,
    streamer: Any = None,
    speculative: Speculative = True,
    drafter: str | Drafter | None = None,
    policy: str | Policy | None = None,
    assistant_model: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode a batch speculatively: a `custom_generate` callable for transformers.

    The output is the model's own. The engine is kept with the model from call to call, and built
    anew when the model's weights change.

    Args:
        model: a model of transformers.
        input_ids: prompts, [B, n].
        logits_processor, stopping_criteria, generation_config, synced_gpus, streamer: prepared by
            transformers.
        speculative, drafter, policy: arguments of `forerun.load`, given to `model.generate`. The
            default drafter is `suffix`.
        assistant_model: a draft model of transformers; it drafts `num_assistant_tokens` at most, as
            a lookup does `prompt_lookup_num_tokens`.
        model_kwargs: other arguments that transformers prepares; only `attention_mask` is used.

    Returns:
        Token ids of prompts and outputs, [B, n + new], or a `GenerateDecoderOnlyOutput` with them.

    Raises:
        ForerunError: for a model that cannot be run speculatively, and for settings that forerun does
            not support, such as beams, other logits processors or scores as output.
    """
    _check_model(model)
    input_ids = _as_rows(input_ids)
    settings = model.generation_config if generation_config is None else generation_config
    caller = sys._getframe(1)
    # transformers 5 passes neither of the two to a callable, although `generate` takes them.
    streamer = _argument(caller, "streamer") if streamer is None else streamer
    assistant = assistant_model or _argument(caller, "assistant_model")
    refuse_unsupported(settings, synced_gpus, streamer, len(input_ids), model_kwargs)
    prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
    limit, ends, criteria = ends_of(settings, stopping_criteria or (), input_ids.shape[1])
    rows = [
        _Row(prompt, padded, limit, ends, criteria, input_ids.device)
        for prompt, padded in zip(prompts, input_ids.tolist(), strict=True)
    ]
    arguments = {"speculative": speculative, "drafter": drafter, "policy": policy}
    kept = _kept_with(model, _with_drafting(arguments, settings, assistant))
    with kept.lock:
        engine = kept.engine_for(len(rows), limit + max(map(len, prompts)))
        engine.use_seeds(_torch_seed if settings.do_sample else fresh_seed)
        _set_params(rows, settings, logits_processor or (), engine.target.vocab_size)
        _run(engine, rows, streamer)
    sequences = _padded_together(input_ids, [row.output for row in rows], pad_token(settings, ends))
    return _as_asked(sequences, settings)


def _with_drafting(arguments: dict[str, Any], settings: Any, assistant: Any) -> dict[str, Any]:
    """The arguments of `forerun.load`, with those of transformers for drafting, or looking up without any."""
    drafting = drafting_of(settings, assistant)
    if arguments["speculative"] is True and not drafting:
        arguments = arguments | {"drafter": arguments["drafter"] or "suffix"}
    return arguments | drafting


def _as_asked(sequences: Tensor, settings: Any) -> Any:
    """The token ids, or transformers' own output object if the settings ask for it."""
    if not settings.return_dict_in_generate:
        return sequences
    from transformers.generation import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=sequences)


def _check_model(model: Any) -> None:
    if not is_model(model):
        raise ConfigError(
            f"model is {shown(model)}; call model.generate(..., custom_generate=forerun.hf.generate)."
        )


@dataclass
class _Row:
    """One prompt of the batch and its output so far.

    Args:
        prompt: token ids without padding.
        padded: token ids with padding, as logits processors and stopping criteria expect them.
        limit: maximum number of new tokens.
        ends: token ids that end the text.
        criteria: stopping criteria, called after each token.
        device: device of the token ids that the criteria are called with.
    """

    prompt: list[int]
    padded: list[int]
    limit: int
    ends: tuple[int, ...]
    criteria: list[Any]
    device: torch.device
    params: SamplingParams | None = None
    output: list[int] = field(default_factory=list)
    stopped: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        """Sampling parameters that say when the text ends."""
        return {"max_tokens": self.limit, "stop_token_ids": self.ends, "ignore_eos": True}

    def take(self, token: int) -> bool:
        """Append a token to the output; True if a stopping criterion says to stop."""
        self.output.append(token)
        if self.criteria:
            ids = torch.tensor([self.padded + self.output], device=self.device)
            answers = [torch.as_tensor(criterion(ids, None)) for criterion in self.criteria]
            self.stopped = any(bool(answer.any()) for answer in answers)
        return self.stopped


def _set_params(
    rows: list[_Row], settings: Any, processors: Sequence[Any], vocab_size: int
) -> None:
    options, masks = sampling_of(settings, processors, len(rows))
    for row in rows:
        if masks:
            options["mask"] = mask_of(masks, row.padded, row.prompt, vocab_size, row.device)
        row.params = SamplingParams(**options, **row.limits)


def _run(engine: Engine, rows: list[_Row], streamer: Any) -> None:
    """Run all rows to their ends, and cancel the rows that a criterion stops."""
    numbers = {engine.add(row.prompt, row.params): row for row in rows}
    try:
        while engine.has_work:
            for event in engine.step():
                row = numbers[event.request_id]
                if row.stopped:
                    continue
                if row.take(event.token_id):
                    engine.cancel(event.request_id)
                if streamer is not None:
                    streamer.put(torch.tensor([event.token_id]))
    finally:
        for number in numbers:
            engine.cancel(number)
        ended = [engine.completion(number) for number in numbers]
    for completion in ended:
        if completion.finish_reason is FinishReason.ERROR and completion.error is not None:
            raise completion.error
    if streamer is not None:
        streamer.end()


def _as_rows(input_ids: Any) -> Tensor:
    try:
        ids = torch.as_tensor(input_ids)
    except Exception as error:
        raise PromptError(f"input_ids are {shown(input_ids)}; give a tensor [B, n].") from error
    if ids.dim() != 2 or ids.is_floating_point() or not len(ids):
        raise PromptError(
            f"input_ids have the shape {list(ids.shape)} and dtype {ids.dtype}; give whole numbers [B, n]."
        )
    return ids


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The prompts without their padding."""
    if mask is None:
        rows: list[list[int]] = input_ids.tolist()
        return rows
    return [row[used.bool()].tolist() for row, used in zip(input_ids, mask, strict=True)]


def _padded_together(input_ids: Tensor, outputs: list[list[int]], pad: int) -> Tensor:
    longest = max(map(len, outputs))
    rows = [output + [pad] * (longest - len(output)) for output in outputs]
    return torch.cat([input_ids, torch.tensor(rows, device=input_ids.device)], dim=1)


def _argument(caller: FrameType | None, name: str) -> Any:
    """An argument of `model.generate`, read from the caller's frame; None elsewhere.

    `generate` does not pass on all its arguments. Without the streamer, its reader would wait forever.
    """
    is_generate = caller is not None and caller.f_code.co_name == "generate"
    return caller.f_locals.get(name) if caller is not None and is_generate else None


def _torch_seed() -> int:
    """A seed from torch's generator, so that `torch.manual_seed` repeats an output."""
    return int(torch.randint(2**62, (1,)))


@dataclass(eq=False)
class KeptEngine:
    """A model's engine, stored as an attribute of the model so that both are freed together."""

    model: Any = None
    fingerprint: Any = None
    asked: dict[str, Any] = field(default_factory=dict)
    engine: Engine | None = None
    checkpoint: LoadedModel | None = None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model, or a model read from a file, starts without an engine.
        return KeptEngine, ()

    def engine_for(self, rows: int, length: int) -> Engine:
        """An engine for `rows` rows of `length` tokens: the kept one if it is large enough."""
        if self.checkpoint is None:
            self.checkpoint = LoadedModel.of(self.model)
        longest = self.checkpoint.summary.max_context
        engine, needed = self.engine, min(length, longest)
        if engine is None or engine.max_batch_size < rows or engine.max_context < needed:
            self.engine = None
            engine = self.engine = load(
                self.checkpoint,
                **self.asked,
                max_batch_size=rows,
                max_context=min(max(length, DEFAULT_CONTEXT), longest),
            )
        return engine


def _kept_with(model: Any, asked: dict[str, Any]) -> KeptEngine:
    """The kept engine of a model, made anew if its weights, its assistant's or the arguments have changed."""
    kept: KeptEngine | None = vars(model).get(_NAME)
    fingerprint = _fingerprint(model) + _fingerprint(asked.get("draft_model"))
    if kept is None or kept.fingerprint != fingerprint or kept.asked != asked:
        kept = KeptEngine(model, fingerprint, asked)
        vars(model)[_NAME] = kept
    return kept


def _fingerprint(model: Any) -> list[tuple[int, int]]:
    """Address and version of every weight and buffer of a model, to notice changes; none for a name."""
    if not is_model(model):
        return []
    tensors = [*model.parameters(), *model.buffers()]
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
