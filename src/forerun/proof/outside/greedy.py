"""Greedy answers with speculation against answers without: rounding of a near-tie, or a defect.

Every engine rounds: the same prompt alone, among others, or run again up to some token gives slightly other
log probabilities. That is measured on the subject without speculation, and a difference is only called a
defect where the two tokens lie further apart than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from forerun.errors import EndpointError
from forerun.progress import report
from forerun.proof.outside.reply import Spoken, first_index, margin_at
from forerun.proof.outside.subject import AskedSubject, Body, is_refusal

ROUNDING, DEFECT, UNCLEAR = "rounding", "defect", "unclear"
# Log probabilities nearer than this are a tie whatever was measured: float32 rounds logits of 100 to 1e-5.
LEAST_ROUNDING = 1e-3
# Two tokens may be rounded in opposite directions, and further than in the runs that were looked at.
_ALLOWANCE = 3.0
GREEDY: Body = {"temperature": 0.0}
AT_ONCE = (4, 16)
_LONG = 6
_PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.4}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
            "required": ["answer", "sure"],
            "additionalProperties": False,
        },
    },
}


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
    "JSON schema": Situation(lambda _: {"response_format": _SCHEMA}),
}


@dataclass(frozen=True)
class Divergence:
    """The first difference between an answer with speculation and one without.

    Args:
        prompt: number of the prompt, from 1.
        index: index of the token.
        token, plain_token: texts (or ids) of the two tokens; None where an answer had ended.
        margin: distance of the two tokens in log probability; None if the server tells none.
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
        prompts, tokens: number of prompts, and of tokens without speculation.
        divergences: first differences.
        skipped: why it was not looked at; empty if it was.
    """

    name: str
    prompts: int = 0
    tokens: int = 0
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
    def allowed(self) -> float:
        """Margin up to which a difference is rounding."""
        observed = max(_ALLOWANCE * max(self.shifts, default=0.0), max(self.flips, default=0.0))
        return max(observed, LEAST_ROUNDING)

    def compare(self, plain: Spoken, again: Spoken) -> None:
        """Take in a repeated answer to the same prompt."""
        index = first_index(plain.tokens, again.tokens)
        shared = len(plain.tokens) if index is None else index
        scored = zip(plain.logprobs[:shared], again.logprobs[:shared], strict=False)
        self.shifts += [abs(a - b) for a, b in scored if a is not None and b is not None]
        self.runs += 1
        if index is not None:
            self.differing += 1
            margin = margin_at(plain, again, index, GREEDY)
            # Repeated answers of one engine can be no defect of its speculation, however far apart.
            self.flips += [] if margin is None else [margin]


@dataclass
class GreedyResult:
    """Result of the greedy part."""

    noise: Noise
    situations: list[SituationResult]

    @property
    def divergences(self) -> list[Divergence]:
        return [found for result in self.situations for found in result.divergences]


def compare_greedy(
    on: AskedSubject, off: AskedSubject, prompts: Sequence[str], max_tokens: int, seconds: float
) -> GreedyResult:
    """Greedy answers of all situations with speculation and without.

    Args:
        on, off: the subject with speculation, and what it is compared with.
        seconds: time after which no further situation is begun.

    Raises:
        EndpointError: if a server is down or too slow.
    """
    started, base = perf_counter(), {**GREEDY, "max_tokens": max_tokens}
    plain = [reply.first for reply in off.ask(prompts, base)]
    noise = measure_noise(off, on if off.is_reference else off, prompts, plain, base)
    results = []
    for number, (name, situation) in enumerate(SITUATIONS.items(), start=1):
        if number > 1 and perf_counter() - started > seconds:
            results.append(SituationResult(name, skipped="no time was left (--seconds)"))
            continue
        results.append(_situation(name, situation, on, off, prompts, plain, base, noise))
        report("greedy", number, len(SITUATIONS))
    return GreedyResult(noise, results)


def measure_noise(
    off: AskedSubject,
    probed: AskedSubject,
    prompts: Sequence[str],
    plain: Sequence[Spoken],
    base: Body,
) -> Noise:
    """Rounding of a subject without speculation: repeated, several at once, and by prefill.

    Args:
        probed: the server that runs beginnings of answers as prompts. It may be the one that speculates:
            an answer of one token is never drafted.
    """
    noise = Noise()
    for at_once in () if off.is_reference else (1, *AT_ONCE):
        for one, again in zip(plain, off.ask(prompts, base, at_once), strict=True):
            noise.compare(one, again.first)
    for prompt, one in zip(prompts, plain, strict=True):
        noise.shifts += _prefill_shifts(probed, prompt, one, base)
    return noise


def _prefill_shifts(
    probed: AskedSubject, prompt: str, plain: Spoken, base: Body
) -> Iterator[float]:
    """Differences between log probabilities in an answer and after the same text as a prompt."""
    if "".join(plain.texts) != plain.text:
        # Some tokenizers' tokens do not join to the text.
        return
    for index in {len(plain.texts) // 2, len(plain.texts) - 1} - {0, -1}:
        text = prompt + "".join(plain.texts[:index])
        first = probed.ask([text], {**base, "max_tokens": 1})[0].first
        # The text may be cut into other tokens than the answer's.
        if first.tokens[:1] == plain.tokens[index : index + 1] and first.logprobs:
            values = first.logprobs[0], plain.logprobs[index]
            if values[0] is not None and values[1] is not None:
                yield abs(values[0] - values[1])


def _situation(
    name: str,
    situation: Situation,
    on: AskedSubject,
    off: AskedSubject,
    prompts: Sequence[str],
    plain: Sequence[Spoken],
    base: Body,
    noise: Noise,
) -> SituationResult:
    result = SituationResult(name)
    asked = [
        (situation.prompt(prompt, one), {**base, **fields})
        for prompt, one in zip(prompts, plain, strict=True)
        if (fields := situation.fields(one)) is not None
    ]
    if not asked:
        result.skipped = "the server does not tell what it needs"
    try:
        pairs = list(_pairs(situation, on, off, asked, plain))
    except EndpointError as error:
        if not is_refusal(error):
            raise
        result.skipped = f"not served ({error.status})"
        return result
    for number, (speculative, without, question) in enumerate(pairs, start=1):
        result.prompts += 1
        result.tokens += len(without.tokens)
        found = _divergence(number, off, question, speculative, without, noise.allowed)
        result.divergences += [] if found is None else [found]
    return result


def _pairs(
    situation: Situation,
    on: AskedSubject,
    off: AskedSubject,
    asked: Sequence[tuple[str, Body]],
    plain: Sequence[Spoken],
) -> Iterator[tuple[Spoken, Spoken, tuple[str, Body]]]:
    """Answers with and without speculation, and the prompt and body that both were asked with."""
    if situation.at_once > 1:
        replies = on.ask([prompt for prompt, _ in asked], asked[0][1], situation.at_once)
        for reply, one, question in zip(replies, plain, asked, strict=True):
            yield reply.first, one, question
        return
    for prompt, body in asked:
        (without,), (speculative,) = off.ask([prompt], body), on.ask([prompt], body)
        yield speculative.first, without.first, (prompt, body)


def _divergence(
    number: int,
    subject: AskedSubject,
    question: tuple[str, Body],
    on: Spoken,
    off: Spoken,
    allowed: float,
) -> Divergence | None:
    """The first difference of two answers to one question; None if there is none.

    Args:
        subject: the one that gave the answer without speculation.
        question: prompt and body.
        allowed: margin that rounding explains.
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
        verdict = UNCLEAR if margin is None else ROUNDING if margin <= allowed else DEFECT
    return Divergence(number, index, _name(on, index), _name(off, index), margin, verdict)


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
