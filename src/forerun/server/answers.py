"""Answers in the making, without a wire format: pieces of text as rounds bring them, and their counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from forerun.core import FinishReason, Stats
from forerun.engine.requests import Completion, TokenEvent
from forerun.server.service import AnswerJob, EngineRequest, Update


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """Part of a tool call; the first part of a call has its id and name.

    Args:
        index: the call's place among those of the message.
        arguments: further characters of its arguments, JSON.
    """

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Text of a round, by its place in a message; `thinks` if it ends in the reasoning."""

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCallPart] = ()
    thinks: bool = False


NO_MARKS: Mapping[int, str] = MappingProxyType({})
Splitter = Callable[[str, bool], Split]
"""Takes more text of an answer, and True with the last of it; returns the parts that became certain."""


class Thinking:
    """Separates what stands between `<think>` and `</think>` at the start of an answer.

    Args:
        opened: the prompt ends with `<think>`.
    """

    START, END = "<think>", "</think>"

    def __init__(self, opened: bool) -> None:
        self._thinks: bool | None = True if opened else None
        self._held, self._trim = "", opened

    def __call__(self, text: str, final: bool) -> Split:
        self._held += text
        if self._thinks is None:
            begun = self._held.lstrip()
            if begun.startswith(self.START):
                self._held, self._thinks, self._trim = begun[len(self.START) :], True, True
            elif not final and self.START.startswith(begun):
                return Split()
            else:
                self._thinks = False
        reasoning = self._reasoning(final) if self._thinks else ""
        if self._thinks:
            return Split(reasoning=reasoning, thinks=True)
        return Split(self._taken(self._held), reasoning)

    def _reasoning(self, final: bool) -> str:
        before, end, after = self._held.partition(self.END)
        if end:
            self._thinks, self._held = False, after
            taken = self._trimmed(before).rstrip()
            self._trim = True
            return taken
        # The end of the mark may come with the next round; spaces before it are no reasoning.
        certain = before if final else before[: len(before) - overlap(before, self.END)].rstrip()
        self._held = before[len(certain) :]
        return self._trimmed(certain)

    def _taken(self, text: str) -> str:
        self._held = ""
        return self._trimmed(text)

    def _trimmed(self, text: str) -> str:
        """Text without the line breaks behind a mark."""
        if self._trim:
            text = text.lstrip("\n")
            self._trim = not text
        return text


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of a text that begins `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


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


@dataclass(frozen=True, slots=True)
class Piece:
    """New text and tokens of one choice, from one round."""

    index: int
    split: Split
    events: Sequence[TokenEvent]
    end: Ending | None = None


@dataclass
class AnswerChoice:
    """A choice, gathered from its pieces."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPart] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    end: Ending | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.split.text
        self.reasoning += piece.split.reasoning
        self.events += piece.events
        self.end = piece.end
        for part in piece.split.tool_calls:
            if part.index == len(self.tool_calls):
                self.tool_calls.append(part)
            else:
                begun = self.tool_calls[part.index]
                joined = begun.arguments + part.arguments
                self.tool_calls[part.index] = ToolCallPart(
                    part.index, joined, begun.call_id, begun.name
                )


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
        marks: texts of special tokens that splitters read, which are no text otherwise.
        per_prompt: choices of each prompt.
        prediction_only: drafts come from the client's prediction alone.
    """

    def __init__(
        self,
        job: AnswerJob,
        new_splitter: Callable[[], Splitter] = lambda: lambda text, _: Split(text),
        marks: Mapping[int, str] = NO_MARKS,
        per_prompt: int = 1,
        prediction_only: bool = False,
    ) -> None:
        self._job, self._prediction_only, self._marks = job, prediction_only, marks
        self._splitters = [new_splitter() for _ in job.requests]
        self.counts = Counts(prompt=sum(len(r.token_ids) for r in job.requests[::per_prompt]))
        self._per_prompt, self._called = per_prompt, set[int]()
        self.endings: list[Ending] = []

    @property
    def requests(self) -> Sequence[EngineRequest]:
        return self._job.requests

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for update in self._job:
            yield self._piece(update)

    async def gathered(self) -> list[AnswerChoice]:
        """All choices, once they have ended."""
        choices = [AnswerChoice() for _ in self._job.requests]
        async for piece in self:
            choices[piece.index].add(piece)
        return choices

    def _piece(self, update: Update) -> Piece:
        text = "".join(e.text + self._marks.get(e.token_id, "") for e in update.events)
        final = update.completion is not None
        split = self._splitters[update.index](text, final)
        if split.tool_calls:
            self._called.add(update.index)
        if split.thinks or (split.reasoning and not split.text):
            self.counts.reasoning += len(update.events)
        end = None
        if update.completion is not None:
            end = self._end(update, update.completion)
        return Piece(update.index, split, update.events, end)

    def _end(self, update: Update, completion: Completion) -> Ending:
        counts, stats = self.counts, completion.stats
        counts.completion += len(completion.token_ids)
        if update.index % self._per_prompt == 0:
            counts.cached += stats.num_cached_tokens
        predicted = len(self.requests[update.index].hints.prediction)
        accepted = stats.num_accepted_tokens if predicted and self._prediction_only else 0
        counts.accepted_prediction += accepted
        counts.rejected_prediction += max(0, predicted - accepted)
        reason = "length" if completion.finish_reason is FinishReason.LENGTH else "stop"
        if reason == "stop" and update.index in self._called:
            reason = "tool_calls"
        self.endings.append(Ending(reason, completion, update.predicted_seconds))
        return self.endings[-1]


@dataclass
class Block:
    """A run of one kind in an answer.

    Args:
        kind: reasoning, text or call.
        place: its index among the blocks of the answer.
        text: its text, or the arguments of its call.
        call: the call's id and name.
    """

    kind: str
    place: int
    text: str = ""
    call: ToolCallPart | None = None


class Blocks:
    """An answer of one choice as blocks, which begin, grow and end one after the other."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._key: str | None = None

    def add(self, split: Split) -> Iterator[tuple[str, Block, str]]:
        """Changes by new parts: `begin`, `more` with the new text, `end`."""
        texts = [("reasoning", split.reasoning, None), ("text", split.text, None)]
        calls = [("call", part.arguments, part) for part in split.tool_calls]
        # Text that arrives together with the end of a call came behind it.
        going = [run for run in calls if f"call {run[2].index}" == self._key]
        for kind, text, call in [*going, *texts, *(run for run in calls if run not in going)]:
            if not text and call is None:
                continue
            key = kind if call is None else f"call {call.index}"
            if key != self._key:
                yield from self.close()
                self._key = key
                self.all.append(Block(kind, len(self.all), call=call))
                yield "begin", self.all[-1], ""
            if text:
                self.all[-1].text += text
                yield "more", self.all[-1], text

    def close(self) -> Iterator[tuple[str, Block, str]]:
        """The end of the last block."""
        if self._key is not None:
            self._key = None
            yield "end", self.all[-1], ""

    async def follow(self, answer: Answer) -> AsyncIterator[tuple[str, Block, str]]:
        """Yield the changes of an answer until its end."""
        async for piece in answer:
            for change in self.add(piece.split):
                yield change
        for change in self.close():
            yield change


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
