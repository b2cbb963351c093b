"""Outcome of `forerun generate`, and its JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from forerun.cli.prompt import SentPrompt
from forerun.core import Draft, FinishReason, Verdict
from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.engine.requests import TokenLogprob
from forerun.measure.paired import Comparison, Run
from forerun.options import changes
from forerun.params import MODELS_OWN, SamplingParams


@dataclass(frozen=True)
class Round:
    """One round of a run: its draft and the verdict.

    Args:
        draft: the draft without its rows of probability, which are large.
        drawn: its tokens were drawn, not determined by the text.
        verdict: the verdict, cut at the end of the output.
    """

    draft: Draft
    drawn: bool
    verdict: Verdict

    @classmethod
    def of(cls, done: TimedRound) -> Round:
        """A round of a single request."""
        [draft], [verdict] = done.drafts, done.verdicts
        return cls(replace(draft, probs=None, hidden=None), draft.probs is not None, verdict)

    @property
    def accepted(self) -> tuple[int, ...]:
        """The nodes whose tokens were emitted, from the root down."""
        return self.verdict.path[: self.verdict.num_accepted]


@dataclass(frozen=True)
class SingleRequest:
    """A request of the command, ready to run.

    Args:
        model: as the user named it.
        engine: with room for this request and no more.
        prompt: as it is sent.
        params: sampling parameters.
        origins: origin of those that were not given, by name.
        shown: text that stands before the answer.
    """

    model: str
    engine: Engine
    prompt: SentPrompt
    params: SamplingParams
    origins: Mapping[str, str]
    shown: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of the command, complete or interrupted.

    Args:
        request: the request.
        run: the run whose text is shown.
        comparison: comparison with plain decoding; None if not asked for, or interrupted.
        rounds: rounds of the run; None if not asked for.
    """

    request: SingleRequest
    run: Run
    comparison: Comparison | None = None
    rounds: list[Round] | None = None

    @property
    def finish_reason(self) -> str:
        return self.run.completion.finish_reason or FinishReason.CANCELLED


def report(outcome: Outcome) -> dict[str, Any]:
    """The JSON object; a comparison adds `plain`, `speedup` and their details."""
    request, completion = outcome.request, outcome.run.completion
    engine = request.engine
    content = {
        "model": request.model,
        "draft_model": engine.config.model,
        "method": engine.config.method,
        "exactness": engine.exactness,
        "dtype": engine.target.precision,
        "kv_dtype": getattr(engine.target, "kv_dtype", "auto"),
        "draft_dtype": _draft_dtype(engine),
        "template": request.prompt.template,
        "prompt": request.prompt.text,
        "prompt_tokens": len(completion.prompt_ids),
        **_of_sampling(request.params, request.origins),
        **_of_run(outcome.run),
        "origins": list(completion.origins),
        "finish_reason": outcome.finish_reason,
    }
    if engine.compression.is_on:
        content["compression"] = changes(engine.compression)
    if engine.policy is not None:
        content |= {
            "policy": engine.policy.name,
            "decisions": outcome.run.decisions,
            "given_up": engine.policy.given_up(),
        }
    if completion.logprobs is not None:
        content["logprobs"] = [_of_logprob(entry) for entry in completion.logprobs]
    if outcome.rounds is not None:
        content["rounds"] = [_of_round(entry) for entry in outcome.rounds]
    if outcome.comparison is not None:
        content |= _of_comparison(outcome.comparison)
    return content


def _of_sampling(params: SamplingParams, origins: Mapping[str, str]) -> dict[str, Any]:
    values = params.warp._asdict() | changes(params)
    values.pop("mask", None)
    from_model = [name for name, origin in origins.items() if origin == MODELS_OWN]
    return {"sampling": values, "sampling_from_model": from_model}


def _draft_dtype(engine: Engine) -> str | None:
    model = getattr(engine.drafter, "model", None)
    return None if model is None else str(model.precision)


def _of_run(run: Run) -> dict[str, Any]:
    completion = run.completion
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "seconds": run.seconds,
        "tokens_per_second": run.tokens_per_second,
        "stats": completion.stats.as_dict(),
    }


def _of_round(entry: Round) -> dict[str, Any]:
    draft = entry.draft
    return {
        "token_ids": list(draft.token_ids),
        "parents": list(draft.tree.parents),
        "drawn": entry.drawn,
        "accepted": list(entry.accepted),
        "emitted": list(entry.verdict.token_ids),
    }


def _of_comparison(comparison: Comparison) -> dict[str, Any]:
    content: dict[str, Any] = {
        "plain": _of_run(comparison.shown.plain),
        "compare_rounds": len(comparison.pairs),
        "speedup": comparison.speedup,
        "speedup_range": list(comparison.spread),
        "decode_speedup": comparison.decode_speedup,
        "identical": comparison.identical,
    }
    if comparison.difference is not None:
        content["first_difference"] = asdict(comparison.difference)
    return content


def _of_logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "logprob": _finite(entry.logprob),
        "top": [{"token_id": token, "logprob": _finite(value)} for token, value in entry.top],
    }


def _finite(value: float) -> float | None:
    # JSON has no infinity; a token that could not be drawn has no log probability.
    return value if math.isfinite(value) else None
