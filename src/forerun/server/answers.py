"""Answers in the making, without a wire format: pieces of text as rounds bring them, and their counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from forerun.core import FinishReason, Stats
from forerun.engine.requests import Completion, TokenEvent
from forerun.server.service import AnswerJob, Update

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class AnswerPart:
    """New characters of one kind in an answer.

    Args:
        kind: reasoning, text or call.
        text: the characters; those of a call belong to its arguments, JSON.
        index: the call's place among those of the message.
        call_id, name: of the call, in its first part.
    """

    kind: Kind
    text: str = ""
    index: int = 0
    call_id: str | None = None
    name: str | None = None


Splitter = Callable[[str, bool], Sequence[AnswerPart]]
"""Takes more text of an answer, and True with the last of it; returns what became certain, in order."""


class Thinking:
    """Separates what stands between `<think>` and `</think>` at the start of an answer.

    Args:
        opened: the prompt ends with `<think>`.
    """

    START, END = "<think>", "</think>"

    def __init__(self, opened: bool) -> None:
        self._thinks: bool | None = True if opened else None
        self._held, self._trim = "", opened

    def __call__(self, text: str, final: bool) -> Sequence[AnswerPart]:
        """Parts of more text; one of reasoning, even if it is empty, while the thought goes on."""
        self._held += text
        if self._thinks is None:
            begun = self._held.lstrip()
            if begun.startswith(self.START):
                self._held, self._thinks, self._trim = begun[len(self.START) :], True, True
            elif not final and self.START.startswith(begun):
                return ()
            else:
                self._thinks = False
        reasoning = self._reasoning(final) if self._thinks else ""
        if self._thinks:
            return (AnswerPart("reasoning", reasoning),)
        parts = (AnswerPart("reasoning", reasoning), AnswerPart("text", self._trimmed(self._held)))
        self._held = ""
        return [part for part in parts if part.text]

    def _reasoning(self, final: bool) -> str:
        certain, after = before_mark(self._held, self.END, final)
        reasoning = self._trimmed(certain)
        if after is None:
            self._held = self._held[len(certain) :]
        else:
            self._thinks, self._held, self._trim = False, after, True
        return reasoning

    def _trimmed(self, text: str) -> str:
        """Text without the line breaks behind a mark."""
        if self._trim:
            text = text.lstrip("\n")
            self._trim = not text
        return text


def before_mark(text: str, mark: str, final: bool) -> tuple[str, str | None]:
    """The certain text before a mark, without spaces at its end, and the rest after the mark.

    The rest is None while no mark has come; the beginning of one at the end is not certain then.
    """
    before, found, after = text.partition(mark)
    if found:
        return before.rstrip(), after
    begun = next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
    return (text if final else text[: len(text) - begun].rstrip()), None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one choice.

    Args:
        reason: stop, length or tool_calls.
        completion: what the engine says of it.
        predicted_seconds: time from its first round to its last.
    """

    reason: str
    completion: Completion
    predicted_seconds: float


@dataclass(slots=True)
class Piece:
    """New text and tokens of one choice, from one round."""

    index: int
    parts: Sequence[AnswerPart]
    events: Sequence[TokenEvent]
    end: Ending | None = None


@dataclass
class Counts:
    """Tokens of an answer, as `usage` reports them.

    Args:
        prompt: of all prompts, each counted once however many choices it has.
        cached: prompt tokens that were in the cache.
        reasoning: tokens of rounds that brought reasoning.
        accepted_prediction, rejected_prediction: tokens of the client's own prediction.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    accepted_prediction: int = 0
    rejected_prediction: int = 0


class Answer:
    """An answer in the making: iterate over its pieces, then read its counts and endings.

    Args:
        job: the requests in the engine.
        new_splitter: makes the splitter of a choice.
        per_prompt: choices of each prompt.
        prediction_only: drafts come from the client's prediction alone.
        paced: the tokens of a round come one by one, over the time that it took.
    """

    def __init__(
        self,
        job: AnswerJob,
        new_splitter: Callable[[], Splitter] = lambda: lambda text, _: (AnswerPart("text", text),),
        per_prompt: int = 1,
        prediction_only: bool = False,
        paced: bool = False,
    ) -> None:
        self._job, self._prediction_only, self._paced = job, prediction_only, paced
        self._splitters = [new_splitter() for _ in job.requests]
        self.counts = Counts(prompt=sum(len(r.prompt) for r in job.requests[::per_prompt]))
        self._per_prompt, self._called = per_prompt, set[int]()
        self.endings: list[Ending] = []

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for update in self._job:
            for part in _single(update) if self._paced else (update,):
                yield self._piece(part)
                # What is late is not delayed further.
                if part is not update and part.completion is None and self._job.updates.empty():
                    await asyncio.sleep(update.round_seconds / len(update.events))

    async def gathered(self) -> list[AnswerChoice]:
        """All choices, once they have ended."""
        choices = [AnswerChoice() for _ in self._job.requests]
        async for piece in self:
            list(choices[piece.index].add(piece))
        return choices

    def _piece(self, update: Update) -> Piece:
        text = "".join(event.text for event in update.events)
        parts = self._splitters[update.index](text, update.completion is not None)
        kinds = {part.kind for part in parts}
        if "call" in kinds:
            self._called.add(update.index)
        self.counts.completion += len(update.events)
        if kinds == {"reasoning"}:
            self.counts.reasoning += len(update.events)
        end = None
        if update.completion is not None:
            end = self._end(update, update.completion)
        return Piece(update.index, parts, update.events, end)

    def _end(self, update: Update, completion: Completion) -> Ending:
        counts, stats = self.counts, completion.stats
        if update.index % self._per_prompt == 0:
            counts.cached += stats.num_cached_tokens
        predicted = len(self._job.requests[update.index].hints.prediction)
        predicts = predicted and self._prediction_only
        accepted = stats.num_accepted_tokens - update.forced if predicts else 0
        counts.accepted_prediction += accepted
        counts.rejected_prediction += max(0, predicted - accepted)
        reason = "length" if completion.finish_reason is FinishReason.LENGTH else "stop"
        if reason == "stop" and update.index in self._called:
            reason = "tool_calls"
        self.endings.append(Ending(reason, completion, update.predicted_seconds))
        return self.endings[-1]


def _single(update: Update) -> Sequence[Update]:
    """Updates of one token each."""
    if len(update.events) < 2:
        return (update,)
    firsts = [replace(update, events=(event,), completion=None) for event in update.events[:-1]]
    return [*firsts, replace(update, events=update.events[-1:])]


@dataclass
class Block:
    """A run of one kind in an answer.

    Args:
        place: its index among the blocks of the answer.
        first: its first part.
        text: its text, or the arguments of its call.
        cut: the answer reached its limit in it.
    """

    place: int
    first: AnswerPart
    text: str = ""
    cut: bool = False


@dataclass
class AnswerChoice:
    """A choice as blocks, which begin, grow and end one after the other, its tokens and its end."""

    blocks: list[Block] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    end: Ending | None = None

    def text(self, kind: Kind) -> str:
        """Text of all blocks of a kind."""
        return "".join(block.text for block in self.blocks if block.first.kind == kind)

    def add(self, piece: Piece) -> Iterator[tuple[str, Block, str]]:
        """Take in a new piece; returns the changes by it: `begin`, `more` with the new text, `end`."""
        self.events += piece.events
        self.end = piece.end
        last = self.blocks[-1] if self.blocks else None
        for part in piece.parts:
            if not part.text and part.name is None:
                continue
            if last is None or (last.first.kind, last.first.index) != (part.kind, part.index):
                if last is not None:
                    yield "end", last, ""
                last = Block(len(self.blocks), part)
                self.blocks.append(last)
                yield "begin", last, ""
            if part.text:
                last.text += part.text
                yield "more", last, part.text
        if piece.end is not None and last is not None:
            last.cut = piece.end.reason == "length"
            yield "end", last, ""


def timings(endings: Sequence[Ending]) -> dict[str, Any]:
    """Counts and times as llama.cpp's `timings` of one or several choices."""
    stats = Stats.total([ending.completion.stats for ending in endings])
    prompt, cached = stats.prompt_tokens - stats.num_cached_tokens, stats.num_cached_tokens
    prompt_ms = 1000.0 * stats.prefill_seconds
    predicted = sum(len(ending.completion.token_ids) for ending in endings)
    predicted_ms = 1000.0 * max((ending.predicted_seconds for ending in endings), default=0.0)
    return {
        "cache_n": cached,
        **_speeds("prompt", prompt, prompt_ms),
        **_speeds("predicted", predicted, predicted_ms),
        "draft_n": stats.num_draft_tokens,
        "draft_n_accepted": stats.num_accepted_tokens,
    }


def _speeds(name: str, count: int, milliseconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": count,
        f"{name}_ms": milliseconds,
        f"{name}_per_token_ms": milliseconds / count if count else 0.0,
        f"{name}_per_second": 1000.0 * count / milliseconds if milliseconds else 0.0,
    }


def speculation(endings: Sequence[Ending], most: int | None) -> dict[str, Any] | None:
    """Counters as vLLM's `metrics.speculative_decoding`, which AIPerf reads; None if nothing was drafted."""
    stats = Stats.total([ending.completion.stats for ending in endings])
    if not stats.num_drafts:
        return None
    reached = [stats.num_drafts, *stats.num_accepted_tokens_per_pos, 0]
    return {
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.acceptance_rate,
        "acceptance_histogram": [more - fewer for more, fewer in pairwise(reached)],
        "num_spec_steps": stats.num_drafts,
        "num_accepted_draft_tokens": stats.num_accepted_tokens,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_spec_tokens": most,
    }
