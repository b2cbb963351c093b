"""Promises around an answer: seeds, choices, log probabilities, counters, streams and cancelled requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise

from forerun.proof.outside.client import RefusedError
from forerun.proof.outside.greedy import DEFECT, GREEDY, Noise
from forerun.proof.outside.reply import Reply, Spoken, first_index
from forerun.proof.outside.subject import Body, Subject

KEPT, OPEN = "kept", "not seen"
_SEEDS, _CHOICES, _READ = (7, 8, 9), 3, 3
Finding = tuple[str, str]
"""KEPT, DEFECT or OPEN, and what was seen."""


@dataclass(frozen=True)
class Promise:
    """A promise, and whether it was kept.

    Args:
        verdict: kept, defect or not seen.
        detail: what was seen.
    """

    name: str
    verdict: str
    detail: str


@dataclass(frozen=True)
class Promises:
    """Requests that look at the promises of a server.

    Args:
        on, off: with speculation, and what it is compared with.
        prompt: the prompt.
        max_tokens: length of answers.
        sampled: fields of a sampled request.
        noise: rounding that the engine has by itself.
    """

    on: Subject
    off: Subject
    prompt: str
    max_tokens: int
    sampled: Body
    noise: Noise

    def look(self) -> Iterator[Promise]:
        """Each promise. One whose request is refused was not seen."""
        looks: dict[str, Callable[[], Finding]] = {
            "a seed repeats its answer": self._seed,
            "n answers": self._choices,
            "log probabilities": self._logprobs,
            "usage and timings": self._counters,
            "a stream is the answer": self._stream,
            "after a cancelled request": self._cancelled,
        }
        for name, look in looks.items():
            try:
                yield Promise(name, *look())
            except RefusedError as error:
                yield Promise(name, OPEN, f"refused with {error.status}")

    def _ask(self, subject: Subject, body: Body) -> Reply:
        return subject.ask([self.prompt], {"max_tokens": self.max_tokens, **body})[0]

    def _greedy(self, subject: Subject) -> Spoken:
        return self._ask(subject, GREEDY).first

    def _seed(self) -> Finding:
        lost, same = 0, 0
        for seed in _SEEDS:
            body = {**self.sampled, "seed": seed}
            first, again = (self._ask(self.on, body).first.tokens for _ in range(2))
            lost += first != again
            if self.off.is_reference:
                continue
            plain, plain_again = (self._ask(self.off, body).first.tokens for _ in range(2))
            if plain != plain_again:
                return OPEN, "the server keeps no seeds without speculation"
            same += first == plain
        if lost:
            # One of several may be a near-tie that the engine rounds by itself.
            sure = lost == len(_SEEDS) and not self.off.is_reference
            return DEFECT if sure else OPEN, f"{lost} of {len(_SEEDS)} seeds did not repeat"
        if self.off.is_reference:
            return KEPT, ""
        return KEPT, f"{same} of {len(_SEEDS)} seeds give the text without speculation"

    def _choices(self) -> Finding:
        count = len(self._ask(self.on, {**self.sampled, "n": _CHOICES}).spoken)
        return KEPT if count == _CHOICES else DEFECT, f"{count} of {_CHOICES}"

    def _logprobs(self) -> Finding:
        on, off = self._greedy(self.on), self._greedy(self.off)
        if not off.logprobs or not on.logprobs:
            gone = bool(off.logprobs) and not self.off.is_reference
            return DEFECT if gone else OPEN, "the server tells none"
        index = first_index(on.tokens, off.tokens)
        pairs = list(zip(on.logprobs[:index], off.logprobs[:index], strict=False))
        missing = sum(one is None and other is not None for one, other in pairs)
        if missing:
            return DEFECT, f"{missing} missing with speculation"
        shifts = [abs(one - other) for one, other in pairs if one is not None and other is not None]
        largest = max(shifts, default=0.0)
        detail = f"largest difference {largest:.2g}, rounding {self.noise.allowed:.2g}"
        if largest <= self.noise.allowed:
            return KEPT, detail
        if self.off.is_reference:
            return OPEN, f"{detail}; the reference may round otherwise"
        return DEFECT, detail

    def _counters(self) -> Finding:
        reply = self._ask(self.on, GREEDY)
        if "completion_tokens" not in reply.usage:
            return OPEN, "the server tells no usage"
        wrong = list(_miscounts(reply, self.max_tokens))
        return DEFECT if wrong else KEPT, "; ".join(wrong)

    def _stream(self) -> Finding:
        text, whole = "".join(self._chunks()), self._greedy(self.on).text
        # Broken UTF-8 is decoded to this mark.
        if "\ufffd" in text and "\ufffd" not in whole:
            return DEFECT, "the stream is not UTF-8"
        index = first_index(text, whole)
        if index is None:
            return KEPT, ""
        # Rounding may tell a stream from a whole answer where it tells two whole answers apart.
        return OPEN, f"it differs at character {index + 1}"

    def _chunks(self) -> Iterator[str]:
        return self.on.stream(self.prompt, {**GREEDY, "max_tokens": self.max_tokens})

    def _cancelled(self) -> Finding:
        before = self._greedy(self.on)
        with closing(self._chunks()) as chunks:  # type: ignore[type-var]
            for _ in islice(chunks, _READ):
                pass
        after = self._greedy(self.on)
        index = first_index(before.tokens, after.tokens)
        if index is None:
            return KEPT, ""
        margin = self.on.margin(self.prompt, before, after, index, GREEDY)
        sure = self.noise.judge(margin) == DEFECT
        return DEFECT if sure else OPEN, f"the answer differs from token {index + 1} on"


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
    known = [count for count in counts if count is not None]
    if any(more < fewer for more, fewer in pairwise(known)):
        yield f"draft_n_accepted is {counts[1]} of draft_n {counts[0]}"
    predicted = timings.get("predicted_n")
    if predicted is not None and abs(predicted - completion) > 1:
        yield f"predicted_n is {predicted}, completion_tokens {completion}"
