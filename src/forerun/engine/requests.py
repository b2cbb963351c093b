"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from forerun.core import FinishReason, Origin, Request, Stats, Verdict
from forerun.engine.text import TextState, TextStream


@dataclass(frozen=True)
class TokenLogprob:
    """The log probability of a token and of the most likely alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenEvent:
    """One emitted token.

    `text` is what became certain with it: the text of a token that ends inside a character or a
    possible stop string comes with a later one.
    """

    request_id: int
    token_id: int
    origin: Origin
    text: str
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Completion:
    """A request that has ended.

    Args:
        request_id: what `Engine.add` returned.
        prompt_ids, token_ids: token ids of prompt and output.
        text: the output without special tokens, cut at a stop string.
        origins: where each output token came from.
        finish_reason: why it ended.
        stats: its counters.
        logprobs: one a token, if asked for.
        error: what ended it, where `finish_reason` is ERROR.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Progress:
    """What of a request is committed: it is replaced as a whole, never changed.

    Args:
        num_tokens: of `Request.token_ids`; an interrupted round may have left more there.
        text: how far its text has come.
        finish_reason: None while it runs.
        error: what ended it, where the reason is ERROR.
    """

    num_tokens: int
    text: TextState
    finish_reason: FinishReason | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Outcome:
    """What a round brings to a request, to be committed as a whole.

    Args:
        verdict: cut where the request ends.
        texts: what each of its tokens makes certain.
        progress: of the request with them.
    """

    verdict: Verdict
    texts: tuple[str, ...]
    progress: Progress


@dataclass(eq=False)
class Running:
    """A request while it waits and runs, and everything that is only for its output."""

    request: Request
    token_limit: int
    stream: TextStream
    stats: Stats = field(default_factory=Stats)
    origins: list[Origin] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    in_rounds: bool = True

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.request), self.stream.state)

    @property
    def finished(self) -> bool:
        return self.progress.finish_reason is not None

    @property
    def started(self) -> bool:
        return self.request.row >= 0 or self.finished

    @property
    def num_output_tokens(self) -> int:
        return self.progress.num_tokens - self.request.num_prompt_tokens

    @property
    def room(self) -> int:
        """Tokens that it may still emit."""
        return self.token_limit - self.num_output_tokens

    def finish(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the request as it stands."""
        self.progress = replace(self.progress, finish_reason=reason, error=error)

    def outcome(self, verdict: Verdict) -> Outcome:
        """What a verdict brings: its tokens up to the first stop token, stop string or limit. Nothing
        changes before `commit`."""
        stops = self.request.stop_token_ids
        token_ids = verdict.token_ids[: self.room]
        reason = FinishReason.LENGTH if len(token_ids) == self.room else None
        for count, token in enumerate(token_ids, start=1):
            if token in stops:
                token_ids, reason = token_ids[:count], FinishReason.STOP
                break
        preview = self.stream.preview(token_ids, final=reason is not None)
        if preview.stopped:
            reason = FinishReason.STOP
        error = verdict.error if reason is None else None
        if reason is not None:
            verdict = verdict.truncate(len(preview.texts))
        elif error is not None:
            reason = FinishReason.ERROR
        total = self.progress.num_tokens + len(verdict.token_ids)
        return Outcome(verdict, preview.texts, Progress(total, preview.state, reason, error))

    def commit(self, outcome: Outcome, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Take an outcome in: until the last line `settle` takes back all of it."""
        self.request.token_ids.extend(outcome.verdict.token_ids)
        self.origins.extend(outcome.verdict.origins)
        self.texts.extend(outcome.texts)
        self.logprobs.extend(logprobs)
        self.stream.state = outcome.progress.text
        self.progress = outcome.progress

    def settle(self) -> None:
        """Forget what an interrupted `commit` has left beyond the progress."""
        del self.request.token_ids[self.progress.num_tokens :]
        for values in (self.origins, self.texts, self.logprobs):
            del values[self.num_output_tokens :]
        self.stream.state = self.progress.text

    def events(self, start: int) -> list[TokenEvent]:
        """The output tokens from `start` on as events."""
        request, progress, total = self.request, self.progress, self.num_output_tokens
        # Not `output_ids`, which copies the whole output every round.
        token_ids, before = request.token_ids, request.num_prompt_tokens
        return [
            TokenEvent(
                request_id=request.request_id,
                token_id=token_ids[before + index],
                origin=self.origins[index],
                text=self.texts[index],
                logprob=self.logprobs[index] if self.logprobs else None,
                finish_reason=progress.finish_reason if index == total - 1 else None,
            )
            for index in range(start, total)
        ]

    def completion(self) -> Completion:
        request, progress = self.request, self.progress
        wants_logprobs = request.params.logprobs is not None
        return Completion(
            request_id=request.request_id,
            prompt_ids=tuple(request.token_ids[: request.num_prompt_tokens]),
            token_ids=tuple(request.output_ids),
            text=self.stream.text,
            origins=tuple(self.origins),
            finish_reason=progress.finish_reason,
            stats=self.stats,
            logprobs=tuple(self.logprobs) if wants_logprobs else None,
            error=progress.error,
        )


def token_logprobs(rows: Tensor, token_ids: Sequence[int], count: int) -> list[TokenLogprob]:
    """Those of `token_ids`, one a row of log probabilities [N, V], with `count` alternatives."""
    top = rows.topk(min(count, rows.shape[-1]), dim=-1)
    return [
        TokenLogprob(
            token, row[token].item(), tuple(zip(ids.tolist(), values.tolist(), strict=True))
        )
        for token, row, ids, values in zip(token_ids, rows, top.indices, top.values, strict=True)
    ]
