"""Promises around an answer: seeds, choices, log probabilities, counters, streams and cancelled requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forerun.errors import EndpointError, shown
from forerun.proof.outside.greedy import GREEDY
from forerun.proof.outside.reply import Reply, first_index
from forerun.proof.outside.subject import AskedSubject, Body, ServerSubject, is_refusal

KEPT, BROKEN, OPEN = "kept", "defect", "not seen"
_SEEDS, _CHOICES, _READ = (7, 8, 9), 3, 3
_DONE = "[DONE]"


@dataclass(frozen=True)
class Promise:
    """A promise, and whether it was kept.

    Args:
        verdict: kept, defect or not seen.
        detail: what was seen.
    """

    name: str
    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Promises:
    """Requests that look at the promises of a server.

    Args:
        on, off: with speculation, and what it is compared with.
        prompt: the prompt.
        max_tokens: length of answers.
        sampled: fields of a sampled request.
        allowed: difference of log probabilities that rounding explains.
    """

    on: ServerSubject
    off: AskedSubject
    prompt: str
    max_tokens: int
    sampled: Body
    allowed: float

    def look(self) -> Iterator[Promise]:
        """Each promise. One whose request is refused was not seen."""
        looks: dict[str, Callable[[], Promise]] = {
            "a seed repeats its answer": self._seed,
            "n answers": self._choices,
            "log probabilities": self._logprobs,
            "usage and timings": self._counters,
            "a stream is the answer": self._stream,
            "after a cancelled request": self._cancelled,
        }
        for name, look in looks.items():
            try:
                found = look()
            except EndpointError as error:
                if not is_refusal(error):
                    raise
                found = Promise("", OPEN, f"refused with {error.status}")
            yield Promise(name, found.verdict, found.detail)

    def _ask(self, subject: AskedSubject, body: Body) -> Reply:
        return subject.ask([self.prompt], {"max_tokens": self.max_tokens, **body})[0]

    def _greedy(self, subject: AskedSubject) -> Reply:
        return self._ask(subject, GREEDY)

    def _seed(self) -> Promise:
        lost, same = 0, 0
        for seed in _SEEDS:
            body = {**self.sampled, "seed": seed}
            first, again = (self._ask(self.on, body).first.tokens for _ in range(2))
            if self.off.is_reference:
                lost += first != again
                continue
            plain, plain_again = (self._ask(self.off, body).first.tokens for _ in range(2))
            if plain != plain_again:
                return Promise("", OPEN, "the server keeps no seeds without speculation either")
            lost, same = lost + (first != again), same + (first == plain)
        if lost:
            # One of several may be a near-tie that the engine rounds by itself.
            sure = lost == len(_SEEDS) and not self.off.is_reference
            return Promise(
                "", BROKEN if sure else OPEN, f"{lost} of {len(_SEEDS)} seeds did not repeat"
            )
        if self.off.is_reference:
            return Promise("", KEPT)
        detail = f"{same} of {len(_SEEDS)} seeds give the text without speculation"
        return Promise("", KEPT, detail)

    def _choices(self) -> Promise:
        found = self._ask(self.on, {**self.sampled, "n": _CHOICES})
        detail = f"{len(found.spoken)} of {_CHOICES}"
        return Promise("", KEPT if len(found.spoken) == _CHOICES else BROKEN, detail)

    def _logprobs(self) -> Promise:
        on, off = self._greedy(self.on).first, self._greedy(self.off).first
        if not off.logprobs or not on.logprobs:
            gone = bool(off.logprobs) and not self.off.is_reference
            return Promise("", BROKEN if gone else OPEN, "the server tells none")
        index = first_index(on.tokens, off.tokens)
        shared = slice(len(off.tokens) if index is None else index)
        pairs = list(zip(on.logprobs[shared], off.logprobs[shared], strict=False))
        missing = sum(one is None and other is not None for one, other in pairs)
        shifts = [abs(one - other) for one, other in pairs if one is not None and other is not None]
        largest = max(shifts, default=0.0)
        detail = f"largest difference {largest:.2g}, rounding {self.allowed:.2g}"
        if missing:
            return Promise("", BROKEN, f"{missing} missing with speculation")
        if self.off.is_reference and largest > self.allowed:
            return Promise("", OPEN, f"{detail}; the reference may round otherwise")
        return Promise("", KEPT if largest <= self.allowed else BROKEN, detail)

    def _counters(self) -> Promise:
        reply = self._greedy(self.on)
        wrong = list(_miscounts(reply, self.max_tokens))
        if not reply.usage:
            return Promise("", OPEN, "the server tells no usage")
        return Promise("", BROKEN if wrong else KEPT, "; ".join(wrong))

    def _stream(self) -> Promise:
        body = {**GREEDY, "max_tokens": self.max_tokens, "stream": True}
        broken = self.on.endpoint.broken
        text = "".join(self._chunks(body))
        if self.on.endpoint.broken > broken:
            return Promise("", BROKEN, "the stream is not UTF-8")
        whole = self._greedy(self.on).first.text
        if text == whole:
            return Promise("", KEPT)
        # Rounding may tell a stream from a whole answer where it tells two whole answers apart.
        return Promise("", OPEN, f"it differs at character {_first_character(text, whole)}")

    def _chunks(self, body: Body) -> Iterator[str]:
        lines = self.on.endpoint.lines(self.on.path, self.on.body(self.prompt, body))
        for line in lines:
            name, _, content = line.strip().partition(":")
            if name == "data" and content.strip() != _DONE:
                choices = _event(content).get("choices") or [{}]
                delta = choices[0].get("delta") or {}
                yield choices[0].get("text") or delta.get("content") or ""

    def _cancelled(self) -> Promise:
        before = self._greedy(self.on).first
        chunks = self._chunks({**GREEDY, "max_tokens": self.max_tokens, "stream": True})
        for _, _ in zip(range(_READ), chunks, strict=False):
            pass
        chunks.close()  # type: ignore[attr-defined]
        after = self._greedy(self.on).first
        index = first_index(before.tokens, after.tokens)
        if index is None:
            return Promise("", KEPT)
        margin = self.on.margin(self.prompt, before, after, index, GREEDY)
        detail = f"the answer differs from token {index + 1} on"
        sure = margin is not None and margin > self.allowed
        return Promise("", BROKEN if sure else OPEN, detail)


def _miscounts(reply: Reply, most: int) -> Iterator[str]:
    """Contradictions in the counters of a greedy answer."""
    usage, timings, said = reply.usage, reply.timings, reply.first
    prompt, completion = (usage.get(f"{kind}_tokens", 0) for kind in ("prompt", "completion"))
    if usage.get("total_tokens", prompt + completion) != prompt + completion:
        yield f"total_tokens is {usage['total_tokens']}, not {prompt} + {completion}"
    if completion > most or (said.finish_reason == "length" and completion != most):
        yield f"completion_tokens is {completion} of max_tokens {most}"
    # The token that ends a text may be left out of the lists.
    if said.texts and not 0 <= completion - len(said.texts) <= 1:
        yield f"completion_tokens is {completion}, {len(said.texts)} have log probabilities"
    counts = [timings.get(name) for name in ("draft_n", "draft_n_accepted")]
    known = [count for count in (*counts, None) if count is not None]
    if any(more < fewer for more, fewer in pairwise(known)):
        yield f"draft_n_accepted is {counts[1]} of draft_n {counts[0]}"
    predicted = timings.get("predicted_n")
    if predicted is not None and abs(predicted - completion) > 1:
        yield f"predicted_n is {predicted}, completion_tokens {completion}"


def _first_character(left: str, right: str) -> int:
    found = first_index(left, right)
    return 0 if found is None else found + 1


def _event(content: str) -> dict[str, Any]:
    """An event of a stream.

    Raises:
        EndpointError: for another form than OpenAI's, or an error of the server.
    """
    try:
        event = json.loads(content)
    except ValueError:
        event = None
    if isinstance(event, dict) and "error" not in event:
        return event
    refusal = EndpointError(f"a stream holds {shown(content)}, which is no event of OpenAI's form.")
    refusal.status = 400
    raise refusal
