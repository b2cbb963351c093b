"""Translates transformers' settings for decoding into forerun's, or raises a typed error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.engine.options import DEFAULT_CONTEXT
from forerun.errors import ConfigError
from forerun.params import TokenMask

_WITHOUT = "leave it out, or call generate without custom_generate"
# Transformers' processors: our sampling parameter and their attribute, in the order of application.
_WARPERS = {
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "penalty"),
    "TemperatureLogitsWarper": ("temperature", "temperature"),
    "TopKLogitsWarper": ("top_k", "top_k"),
    "TopPLogitsWarper": ("top_p", "top_p"),
    "MinPLogitsWarper": ("min_p", "min_p"),
}
# Processors that only rule tokens out.
_MASKS = frozenset(
    {
        *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
        *("NoRepeatNGramLogitsProcessor", "NoBadWordsLogitsProcessor"),
        *("SuppressTokensLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor"),
        *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
    }
)
# Processors that change no probability.
_NEUTRAL = frozenset({"LogitNormalization", "InfNanRemoveLogitsProcessor"})
_MODES = ("greedy_search", "sample", "assisted_generation")
_OTHER_INPUTS = ("inputs_embeds", "pixel_values", "input_features", "encoder_outputs")
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def refuse_unsupported(
    settings: Any, synced_gpus: bool, streamer: Any, rows: int, model_kwargs: Mapping[str, Any]
) -> None:
    """Raise a ConfigError for settings and arguments that forerun would otherwise ignore."""
    mode = str(settings.get_generation_mode().value)
    if mode not in _MODES or settings.guidance_scale not in (None, 1):
        kind = mode if mode not in _MODES else "guidance"
        raise ConfigError(
            f"these settings ask for {kind}, which forerun does not have; {_WITHOUT}."
        )
    if settings.return_dict_in_generate:
        for name in _OUTPUTS:
            if getattr(settings, name, None):
                raise ConfigError(f"{name} is set, which forerun does not return; {_WITHOUT}.")
    if synced_gpus:
        raise ConfigError(f"synced_gpus is set: forerun runs on one device; {_WITHOUT}.")
    if streamer is not None and rows > 1:
        raise ConfigError(f"a streamer takes one prompt, not {rows}; leave it out.")
    for name in model_kwargs:
        if name != "use_cache" and hasattr(settings, name):
            raise ConfigError(f"{name} is a setting of generation; give it to model.generate.")
    for name in _OTHER_INPUTS:
        if model_kwargs.get(name) is not None:
            raise ConfigError(f"{name} is given, and forerun reads token ids alone; {_WITHOUT}.")
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise ConfigError(
            "past_key_values holds tokens; leave it out: forerun keeps what prompts have in common."
        )


def drafting_of(settings: Any, assistant: Any) -> dict[str, Any]:
    """Arguments of `forerun.load` that say what transformers' own settings say about drafts.

    Args:
        settings: transformers' generation config.
        assistant: a draft model, or None.

    Raises:
        ConfigError: for two drafters, and for those of transformers that have no counterpart.
    """
    for name in ("assistant_early_exit", "use_mtp"):
        if getattr(settings, name, None):
            raise ConfigError(f"{name} is set; give a drafter instead, such as drafter='suffix'.")
    looked_up = settings.prompt_lookup_num_tokens
    if assistant is not None:
        if looked_up is not None:
            raise ConfigError(
                "assistant_model and prompt_lookup_num_tokens are two drafters; leave one of them out."
            )
        # transformers' own default, 20, is a limit like any other: how far to draft is measured.
        return {"draft_model": assistant, "num_speculative_tokens": settings.num_assistant_tokens}
    if looked_up is None:
        return {}
    longest = settings.max_matching_ngram_size
    more = {} if longest is None else {"prompt_lookup_max": longest}
    return {"method": "ngram", "num_speculative_tokens": looked_up, **more}


def ends_of(
    settings: Any, stopping_criteria: Iterable[Any], length: int
) -> tuple[int, tuple[int, ...], list[Any]]:
    """Maximum number of new tokens, tokens that end a text, and criteria to call after each token."""
    limit, ends, criteria = settings.max_length, [], []
    for criterion in stopping_criteria:
        kind = type(criterion).__name__
        if kind == "MaxLengthCriteria":
            limit = criterion.max_length
        elif kind == "EosTokenCriteria":
            ends += criterion.eos_token_id.flatten().tolist()
        else:
            criteria.append(criterion)
    if limit is None:
        limit = length + (settings.max_new_tokens or DEFAULT_CONTEXT)
    return max(limit - length, 1), tuple(dict.fromkeys(ends)), criteria


def sampling_of(
    settings: Any, processors: Sequence[Any], rows: int
) -> tuple[dict[str, Any], list[Any]]:
    """Sampling parameters for transformers' processors, and the processors that only rule tokens out.

    Args:
        rows: rows of the batch.

    Raises:
        ConfigError: for a processor without a counterpart in forerun.
    """
    options: dict[str, Any] = {} if settings.do_sample else {"temperature": 0.0}
    masks, order, names = [], -1, list(_WARPERS)
    for processor in processors:
        kind = type(processor).__name__
        if kind in _MASKS or (kind == "PrefixConstrainedLogitsProcessor" and rows == 1):
            masks.append(processor)
        elif kind in _WARPERS:
            option, attribute = _WARPERS[kind]
            place = names.index(kind)
            # A tensor holds the lengths of padding, and requests have no padding.
            ignores = isinstance(getattr(processor, "prompt_ignore_length", None), int)
            if place <= order or ignores:
                raise ConfigError(
                    f"{kind} is applied in another order, or to other tokens, than forerun does; "
                    f"{_WITHOUT}."
                )
            order = place
            if place == 0 or settings.do_sample:
                options[option] = getattr(processor, attribute)
        elif kind not in _NEUTRAL:
            raise ConfigError(f"forerun cannot apply the logits processor {kind}; {_WITHOUT}.")
    return options, masks


def mask_of(
    processors: Sequence[Callable[..., Tensor]],
    padded: list[int],
    prompt: list[int],
    size: int,
    device: torch.device,
) -> TokenMask:
    """A token mask of the tokens that the processors leave.

    Args:
        padded, prompt: the prompt with padding, as the processors expect it, and without.
        size: vocabulary size.
        device: device that the processors run on.
    """

    def mask(committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        after = committed[len(prompt) :]
        ids = torch.tensor([[*padded, *after, *drafted]], device=device)
        scores = torch.zeros(1, size, device=device)
        for processor in processors:
            scores = processor(ids, scores)
        return scores[0] > -torch.inf

    return mask


def pad_token(settings: Any, ends: tuple[int, ...]) -> int:
    """Token id that fills the rows shorter than the longest."""
    prepared = getattr(settings, "_pad_token_tensor", None)
    pad = settings.pad_token_id if prepared is None else int(prepared)
    return int(pad if pad is not None else (*ends, 0)[0])
