"""Greedy answers with speculation against answers without: rounding of a near-tie, or a defect.

Every engine rounds: the same prompt alone, among others, or run again up to some token gives slightly other
log probabilities. That is measured on the subject without speculation, and a difference is only called a
defect where the two tokens lie further apart than that; where nothing could be measured, never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter

from forerun.progress import report
from forerun.proof.outside.client import RefusedError
from forerun.proof.outside.reply import Reply, Spoken, first_index
from forerun.proof.outside.subject import Body, Subject

ROUNDING, DEFECT, UNCLEAR = "rounding", "defect", "unclear"
# Log probabilities nearer than this are a tie whatever was measured: float32 rounds logits of 100 to 1e-5.
LEAST_ROUNDING = 1e-3
# Two tokens may be rounded in opposite directions, and further than in the runs that were looked at.
_ALLOWANCE = 3.0
FARTHEST = 1.0
"""Difference of log probabilities above which nothing is rounding: assumed."""
GREEDY: Body = {"temperature": 0.0}
AT_ONCE = (4, 16)
_LONG = 6
# As strong as OpenAI's interface allows: the stronger, the more often forgetting them shows.
_PENALTIES = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
Question = tuple[str, Body]
"""A prompt, and the fields of the body beside it."""
_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
_JSON = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}


@dataclass(frozen=True)
class Situation:
    """Circumstances under which an engine may go wrong.

    Args:
        fields: returns the fields of the body, from the plain answer; None where it cannot be set up.
        prompt: returns the prompt.
        at_once: requests with speculation at a time.
    """

    fields: Callable[[Spoken], Body | None] = lambda _: {}
    prompt: Callable[[str, Spoken], str] = lambda prompt, _: prompt
    at_once: int = 1


def _stop(plain: Spoken) -> Body | None:
    """A stop string out of the middle of the plain answer."""
    middle = plain.text[len(plain.text) // 2 :][:6].rstrip()
    return {"stop": [middle]} if middle.strip() else None


def _bias(plain: Spoken) -> Body | None:
    """A ban of the plain answer's first token, which only ids can name."""
    token = plain.tokens[0] if plain.tokens else None
    return {"logit_bias": {str(token): -100.0}} if isinstance(token, int) else None


SITUATIONS: Mapping[str, Situation] = {
    "plain": Situation(),
    "the same prompt again": Situation(),
    "a prompt that goes on": Situation(prompt=lambda prompt, plain: prompt + plain.text),
    "stop string": Situation(_stop),
    "limit of 7 tokens": Situation(lambda _: {"max_tokens": 7}),
    "penalties": Situation(lambda _: _PENALTIES),
    "logit bias": Situation(_bias),
    "long prompt": Situation(prompt=lambda prompt, _: "\n".join([prompt] * _LONG)),
    **{f"{count} at once": Situation(at_once=count) for count in AT_ONCE},
    "JSON schema": Situation(lambda _: {"response_format": _JSON}),
}


@dataclass(frozen=True)
class Divergence:
    """The first difference between an answer with speculation and one without.

    Args:
        prompt: number of the prompt, from 1.
        index: index of the token.
        token, plain_token: texts (or ids) of the two tokens; None where an answer had ended.
        margin: distance of the two tokens in log probability; None if it is unknown.
        verdict: rounding, defect or unclear.
    """

    prompt: int
    index: int
    token: str | None
    plain_token: str | None
    margin: float | None
    verdict: str


@dataclass
class SituationResult:
    """Answers of one situation compared.

    Args:
        prompts, tokens: number of prompts, and of tokens compared, up to first differences.
        distinct_tokens: tokens without those of prompts that were given before.
        divergences: first differences.
        skipped: why it was not looked at; empty if it was.
    """

    name: str
    prompts: int = 0
    tokens: int = 0
    distinct_tokens: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    skipped: str = ""


@dataclass
class Noise:
    """Rounding that an engine has by itself.

    Args:
        shifts: differences of a token's log probability between runs of the same tokens.
        flips: distances of the two tokens where plain answers differed.
        runs, differing: number of repeated answers, and of those that differed.
    """

    shifts: list[float] = field(default_factory=list)
    flips: list[float] = field(default_factory=list)
    runs: int = 0
    differing: int = 0

    @property
    def measured(self) -> bool:
        """True if log probabilities of the same tokens were compared."""
        return bool(self.shifts)

    @property
    def own(self) -> float:
        """Margin up to which plain decoding differs by itself."""
        shift = _ALLOWANCE * max(self.shifts, default=0.0)
        return max(shift, max(self.flips, default=0.0), LEAST_ROUNDING)

    @property
    def allowed(self) -> float:
        """Margin up to which a difference is rounding."""
        return min(self.own, FARTHEST)

    def judge(self, margin: float | None) -> str:
        """The verdict on a difference of two tokens."""
        if margin is not None and margin <= self.allowed:
            return ROUNDING
        # Plain decoding that differs as far by itself neither excuses nor proves anything.
        return UNCLEAR if margin is None or not self.measured or margin <= self.own else DEFECT


@dataclass
class GreedyResult:
    """Result of the greedy part."""

    noise: Noise = field(default_factory=Noise)
    situations: list[SituationResult] = field(default_factory=list)
    control: dict[str, int] = field(default_factory=dict)
    """Plain tokens whose runner-up is known, and those where it would be called a defect."""

    @property
    def divergences(self) -> list[Divergence]:
        return [found for result in self.situations for found in result.divergences]


@dataclass
class GreedyComparison:
    """Greedy answers of all situations with speculation and without.

    Args:
        on, off: the subject with speculation, and what it is compared with.
        max_tokens: length of answers.
    """

    on: Subject
    off: Subject
    prompts: Sequence[str]
    max_tokens: int
    _result: GreedyResult = field(default_factory=GreedyResult, init=False)

    def __post_init__(self) -> None:
        self._base = {**GREEDY, "max_tokens": self.max_tokens}

    @cached_property
    def _replies(self) -> list[Reply]:
        """Plain answers without speculation."""
        return self.off.ask(self.prompts, self._base)

    @property
    def _plain(self) -> list[Spoken]:
        return [reply.first for reply in self._replies]

    def _crowd(self, at_once: int) -> list[tuple[str, Spoken]]:
        """Prompts and their plain answers, as often as so many requests at a time take."""
        return list(zip(self.prompts, self._plain, strict=True)) * -(-at_once // len(self.prompts))

    def run(self, seconds: float) -> GreedyResult:
        """Compare the answers.

        Args:
            seconds: time after which no further situation is begun.

        Raises:
            EndpointError: if a server is down or too slow.
        """
        started = perf_counter()
        self._measure_noise()
        gaps = [gap for plain in self._plain for row in plain.top if (gap := _gap(row)) is not None]
        found = [self._result.noise.judge(gap) for gap in gaps]
        self._result.control = {"tokens": len(found), "defects": found.count(DEFECT)}
        for number, (name, situation) in enumerate(SITUATIONS.items(), start=1):
            result = SituationResult(name)
            self._result.situations.append(result)
            if number > 1 and perf_counter() - started > seconds:
                result.skipped = "no time was left (--seconds)"
                continue
            if situation.at_once > 1 and self.on.one_at_a_time:
                result.skipped = "it answers one request at a time"
                continue
            try:
                self._compare(situation, result)
            except RefusedError as error:
                result.skipped = f"not served ({error.status})"
            report("greedy", number, len(SITUATIONS))
        return self._result

    def _measure_noise(self) -> None:
        """Measure rounding without speculation: repeated, several at once, and by prefill.

        The server that runs beginnings of answers as prompts may be the one that speculates: an answer of
        one token is never drafted.
        """
        crowds = () if self.off.one_at_a_time else AT_ONCE
        for at_once in () if self.off.is_reference else (1, *crowds):
            crowd = self._crowd(at_once)
            replies = self.off.ask([prompt for prompt, _ in crowd], self._base, at_once)
            for (prompt, plain), again in zip(crowd, replies, strict=True):
                self._add_repetition(prompt, plain, again.first)
        for prompt, reply in zip(self.prompts, self._replies, strict=True):
            self._result.noise.shifts += self._prefill_shifts(prompt, reply)

    def _add_repetition(self, prompt: str, plain: Spoken, again: Spoken) -> None:
        noise, index = self._result.noise, first_index(plain.tokens, again.tokens)
        scored = zip(plain.logprobs[:index], again.logprobs[:index], strict=False)
        noise.shifts += [abs(a - b) for a, b in scored if a is not None and b is not None]
        noise.runs += 1
        if index is not None:
            noise.differing += 1
            margin = self.off.margin(prompt, plain, again, index, GREEDY)
            # Repeated answers of one engine can be no defect of its speculation, however far apart.
            noise.flips += [] if margin is None else [margin]

    def _prefill_shifts(self, prompt: str, reply: Reply) -> Iterator[float]:
        """Differences between log probabilities in an answer and after the same text as a prompt."""
        plain, before = reply.first, reply.usage.get("prompt_tokens")
        if "".join(plain.texts) != plain.text or before is None:
            # Some tokenizers' tokens do not join to the text.
            return
        probed = self.on if self.off.is_reference else self.off
        for index in {len(plain.texts) // 2, len(plain.texts) - 1} - {0, -1}:
            text = prompt + "".join(plain.texts[:index])
            again = probed.ask([text], {**GREEDY, "max_tokens": 1})[0]
            # The text may be cut into other tokens than the answer's.
            same = again.first.tokens[:1] == plain.tokens[index : index + 1]
            if same and again.usage.get("prompt_tokens") == before + index:
                for there, here in zip(again.first.logprobs, plain.logprobs[index:], strict=False):
                    if there is not None and here is not None:
                        yield abs(there - here)

    def _compare(self, situation: Situation, result: SituationResult) -> None:
        asked = [
            (situation.prompt(prompt, one), {**self._base, **fields})
            for prompt, one in zip(self.prompts, self._plain, strict=True)
            if (fields := situation.fields(one)) is not None
        ]
        if not asked:
            result.skipped = "the server does not tell what it needs"
        seen = set[str]()
        for number, (on, off, question) in enumerate(self._pairs(situation, asked), start=1):
            result.prompts += 1
            found = _divergence(number, self.off, question, on, off, self._result.noise)
            tokens = len(off.tokens) if found is None else found.index
            result.tokens += tokens
            # A prompt given again tells nothing new of a rare defect.
            result.distinct_tokens += 0 if question[0] in seen else tokens
            seen.add(question[0])
            if found is None:
                continue
            # No rounding reaches further, whatever prefill says: it may read what a defect left in a cache.
            is_near = found.margin is not None and found.margin <= FARTHEST
            if is_near and self._prefill_agrees(question, off, on, found.index):
                found = replace(found, verdict=ROUNDING)
            result.divergences.append(found)

    def _prefill_agrees(self, question: Question, off: Spoken, on: Spoken, index: int) -> bool:
        """True if the engine without speculation gives the token of `on` once it reads the beginning."""
        prompt, body = question
        if body.keys() != self._base.keys() or self.off.is_reference:
            return False
        if "".join(off.texts) != off.text:
            return False
        beginning = prompt + "".join(off.texts[:index])
        again = self.off.ask([beginning], {**GREEDY, "max_tokens": 1})[0].first
        return again.tokens[:1] == on.tokens[index : index + 1]

    def _pairs(
        self, situation: Situation, asked: Sequence[Question]
    ) -> Iterator[tuple[Spoken, Spoken, Question]]:
        """Answers with and without speculation, and the prompt and body that both were asked with."""
        if situation.at_once > 1:
            crowd = self._crowd(situation.at_once)
            prompts = [prompt for prompt, _ in crowd]
            replies = self.on.ask(prompts, self._base, situation.at_once)
            for (prompt, plain), reply in zip(crowd, replies, strict=True):
                yield reply.first, plain, (prompt, self._base)
            return
        for prompt, body in asked:
            (without,), (speculative,) = self.off.ask([prompt], body), self.on.ask([prompt], body)
            yield speculative.first, without.first, (prompt, body)


def _divergence(
    number: int, subject: Subject, question: Question, on: Spoken, off: Spoken, noise: Noise
) -> Divergence | None:
    """The first difference of two answers to one question; None if there is none.

    Args:
        subject: the one that gave the answer without speculation.
        question: prompt and body.
        noise: rounding that the engine has by itself.
    """
    prompt, body = question
    index, margin = first_index(on.tokens, off.tokens), None
    if index is None:
        if subject.is_reference or on.text == off.text:
            return None
        # The same tokens as another text: no rounding does that.
        return Divergence(number, len(on.tokens), on.text[-40:], off.text[-40:], None, DEFECT)
    if index == min(len(on.tokens), len(off.tokens)):
        verdict = DEFECT if _ends_wrongly(on, off, body) else UNCLEAR
    else:
        margin = subject.margin(prompt, off, on, index, body)
        verdict = noise.judge(margin)
    return Divergence(number, index, _name(on, index), _name(off, index), margin, verdict)


def _gap(row: Mapping[str, float]) -> float | None:
    """Distance of the two likeliest tokens."""
    best = sorted(row.values(), reverse=True)[:2]
    return best[0] - best[1] if len(best) == 2 else None


def _ends_wrongly(on: Spoken, off: Spoken, body: Body) -> bool:
    """True if the end of an answer that goes on otherwise contradicts a limit or a stop string."""
    shorter, longer = sorted((on, off), key=lambda one: len(one.tokens))
    stops = any(text in on.text for text in body.get("stop", ()))
    # Where a server tells no tokens they are characters, which no limit counts.
    counted = bool(longer.texts) or isinstance(longer.tokens[-1], int)
    return stops or (shorter.finish_reason == "length" and counted)


def _name(spoken: Spoken, index: int) -> str | None:
    """Text of a token, or its id where the server tells no texts."""
    if index < len(spoken.texts):
        return spoken.texts[index]
    return str(spoken.tokens[index]) if index < len(spoken.tokens) else None
