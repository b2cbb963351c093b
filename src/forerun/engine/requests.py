"""Requests while they run, and the events and completions that the engine returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from forerun.core import FinishReason, Origin, Request, Stats, Verdict
from forerun.engine.text import TextState, TextStream
from forerun.errors import shown


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of a token and of the most likely alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, repr=False, slots=True)
class TokenEvent:
    """One emitted token.

    `text` is the text that became certain with it: the text of a token that ends inside a character
    or a possible stop string comes with a later one.
    """

    request_id: int
    token_id: int
    origin: Origin
    text: str
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None

    def __repr__(self) -> str:
        end = "" if self.finish_reason is None else f", finish_reason={str(self.finish_reason)!r}"
        return f"TokenEvent({shown(self.text)}, token_id={self.token_id}, origin={str(self.origin)!r}{end})"


@dataclass(frozen=True, repr=False)
class Completion:
    """Result of a request that has ended.

    Args:
        request_id: the id that `Engine.add` returned.
        prompt_ids, token_ids: token ids of prompt and output.
        text: the output without special tokens, cut at a stop string.
        texts: the text of each output token, as streamed; joined they are `text`. If a request is
            cut off, the last one includes the text that was held back.
        origins: origin of each output token.
        finish_reason: reason for its end.
        stats: its counters.
        logprobs: one per token, if asked for.
        prompt_logprobs: one per prompt token but the first, if asked for.
        error: the error that ended it, if `finish_reason` is ERROR.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    texts: tuple[str, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    error: Exception | None = None

    def __repr__(self) -> str:
        reason = None if self.finish_reason is None else str(self.finish_reason)
        return (
            f"Completion({shown(self.text)}, num_tokens={len(self.token_ids)}, "
            f"finish_reason={reason!r})"
        )

    def as_dict(self) -> dict[str, Any]:
        """The completion, ready for JSON."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return content | {
            "stats": self.stats.as_dict(),
            **{
                name: None if content[name] is None else [asdict(own) for own in content[name]]
                for name in ("logprobs", "prompt_logprobs")
            },
            "error": None if self.error is None else str(self.error),
        }


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed state of a request; it is replaced as a whole, never changed.

    Args:
        num_tokens: number of committed `Request.token_ids`; an interrupted round may have added
            more.
        text: state of its text.
        finish_reason: None while it runs.
        error: the error that ended it, if the reason is ERROR.
    """

    num_tokens: int
    text: TextState
    finish_reason: FinishReason | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """Outcome of a round for a request, to be committed as a whole.

    Args:
        verdict: the verdict, cut where the request ends.
        texts: the text that becomes certain with each of its tokens.
        committed: state of the request with them.
    """

    verdict: Verdict
    texts: tuple[str, ...]
    committed: Committed


@dataclass(eq=False)
class Running:
    """A request while it waits and runs, with everything that belongs to its output."""

    request: Request
    token_limit: int
    stream: TextStream
    stats: Stats = field(default_factory=Stats)
    origins: list[Origin] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_prompt_logprobs: int | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    in_rounds: bool = True
    drafter_failures: int = 0

    def __post_init__(self) -> None:
        self.committed = Committed(len(self.request), self.stream.state)

    @property
    def finished(self) -> bool:
        return self.committed.finish_reason is not None

    @property
    def started(self) -> bool:
        return self.request.row >= 0 or self.finished

    @property
    def num_output_tokens(self) -> int:
        return self.committed.num_tokens - self.request.num_prompt_tokens

    @property
    def room(self) -> int:
        """Number of tokens that the request may still emit."""
        return self.token_limit - self.num_output_tokens

    def finish(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the request in its present state."""
        self.committed = replace(self.committed, finish_reason=reason, error=error)

    def _texts(self) -> tuple[str, ...]:
        """The text of each output token; the last one includes text held back at the end."""
        left = self.stream.text[self.stream.state.released :]
        if not self.texts or not left:
            return tuple(self.texts)
        return (*self.texts[:-1], self.texts[-1] + left)

    def outcome(self, verdict: Verdict) -> RoundOutcome:
        """Outcome of a verdict: its tokens up to the first stop token, stop string or limit.

        Nothing changes before `commit`.
        """
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
        total = self.committed.num_tokens + len(verdict.token_ids)
        committed = Committed(total, preview.state, reason, error)
        return RoundOutcome(verdict, preview.texts, committed)

    def commit(self, outcome: RoundOutcome, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Commit an outcome; if interrupted before the last line, `settle` takes back all of it."""
        self.request.token_ids.extend(outcome.verdict.token_ids)
        self.origins.extend(outcome.verdict.origins)
        self.texts.extend(outcome.texts)
        self.logprobs.extend(logprobs)
        self.stream.state = outcome.committed.text
        self.committed = outcome.committed

    def settle(self) -> None:
        """Remove what an interrupted `commit` has left beyond the committed state."""
        del self.request.token_ids[self.committed.num_tokens :]
        total = self.num_output_tokens
        for values in (self.origins, self.texts, self.logprobs):
            del values[total:]
        self.stream.state = self.committed.text

    def events(self, start: int) -> list[TokenEvent]:
        """The output tokens from `start` on as events."""
        request, committed, total = self.request, self.committed, self.num_output_tokens
        # `output_ids` would copy the whole output every round.
        token_ids, before = request.token_ids, request.num_prompt_tokens
        return [
            TokenEvent(
                request_id=request.request_id,
                token_id=token_ids[before + index],
                origin=self.origins[index],
                text=self.texts[index],
                logprob=self.logprobs[index] if self.logprobs else None,
                finish_reason=committed.finish_reason if index == total - 1 else None,
            )
            for index in range(start, total)
        ]

    def completion(self) -> Completion:
        request, committed = self.request, self.committed
        wants_logprobs = request.params.logprobs is not None
        return Completion(
            request_id=request.request_id,
            prompt_ids=tuple(request.token_ids[: request.num_prompt_tokens]),
            token_ids=tuple(request.output_ids),
            text=self.stream.text,
            texts=self._texts(),
            origins=tuple(self.origins),
            finish_reason=committed.finish_reason,
            stats=self.stats,
            logprobs=tuple(self.logprobs) if wants_logprobs else None,
            prompt_logprobs=None
            if self.num_prompt_logprobs is None
            else tuple(self.prompt_logprobs),
            error=committed.error,
        )


def token_logprobs(rows: Tensor, token_ids: Sequence[int], count: int) -> list[TokenLogprob]:
    """Log probabilities of `token_ids` in the rows [N, V], each with `count` alternatives."""
    top = rows.topk(min(count, rows.shape[-1]), dim=-1)
    return [
        TokenLogprob(
            token, row[token].item(), tuple(zip(ids.tolist(), values.tolist(), strict=True))
        )
        for token, row, ids, values in zip(token_ids, rows, top.indices, top.values, strict=True)
    ]
