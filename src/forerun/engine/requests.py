"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from forerun.core import FinishReason, Origin, Sequence, Verdict
from forerun.engine.text import TextStream
from forerun.stats import Stats


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


@dataclass(eq=False)
class Running:
    """A request while it runs: its sequence and everything that is only for its output."""

    sequence: Sequence
    token_limit: int
    stream: TextStream
    stats: Stats = field(default_factory=Stats)
    origins: list[Origin] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    error: Exception | None = None
    num_handed_out: int = 0

    @property
    def finished(self) -> bool:
        return self.sequence.finish_reason is not None

    def fail(self, error: Exception) -> None:
        """End the request with what has gone wrong in it."""
        self.error = error
        self.sequence.finish_reason = FinishReason.ERROR

    def cut(self, verdict: Verdict) -> Verdict:
        """End the verdict, and the request, at the first stop token, stop string or limit."""
        room = self.token_limit - self.sequence.num_output_tokens
        for count, token in enumerate(verdict.token_ids, start=1):
            stopped = token in self.sequence.stop_token_ids
            # The end-of-text token itself is no text, whatever stop strings say.
            if self.stream.push(token) or stopped:
                self.sequence.finish_reason = FinishReason.STOP
            elif count >= room:
                self.sequence.finish_reason = FinishReason.LENGTH
            ended = self.sequence.finish_reason is not None
            self.texts.append(self.stream.release(finished=ended))
            if ended:
                return verdict.truncate(count)
        return verdict

    def events(self, start: int) -> list[TokenEvent]:
        """The output tokens from `start` on as events."""
        sequence = self.sequence
        # Not `output_ids`, which copies the whole output every round.
        token_ids, before = sequence.token_ids, sequence.num_prompt_tokens
        total = sequence.num_output_tokens
        return [
            TokenEvent(
                request_id=sequence.request_id,
                token_id=token_ids[before + index],
                origin=self.origins[index],
                text=self.texts[index],
                logprob=self.logprobs[index] if self.logprobs else None,
                finish_reason=sequence.finish_reason if index == total - 1 else None,
            )
            for index in range(start, total)
        ]

    def hand_out(self) -> list[TokenEvent]:
        """The tokens that `Engine.step` has not returned yet."""
        events = self.events(self.num_handed_out)
        self.num_handed_out += len(events)
        return events

    def completion(self) -> Completion:
        sequence = self.sequence
        wants_logprobs = sequence.params.logprobs is not None
        return Completion(
            request_id=sequence.request_id,
            prompt_ids=tuple(sequence.token_ids[: sequence.num_prompt_tokens]),
            token_ids=tuple(sequence.output_ids),
            text=self.stream.text,
            origins=tuple(self.origins),
            finish_reason=sequence.finish_reason,
            stats=self.stats,
            logprobs=tuple(self.logprobs) if wants_logprobs else None,
            error=self.error,
        )


def token_logprobs(rows: Tensor, token_ids: tuple[int, ...], count: int) -> list[TokenLogprob]:
    """Those of `token_ids`, one a row of log probabilities [N, V], with `count` alternatives."""
    top = rows.topk(min(count, rows.shape[-1]), dim=-1)
    return [
        TokenLogprob(
            token, row[token].item(), tuple(zip(ids.tolist(), values.tolist(), strict=True))
        )
        for token, row, ids, values in zip(token_ids, rows, top.indices, top.values, strict=True)
    ]
