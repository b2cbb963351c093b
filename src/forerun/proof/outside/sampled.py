"""Sampled answers: every token against a reference's rows, or speculation on against off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np

from forerun.params import SamplingParams
from forerun.progress import report
from forerun.proof.effort import ProofOutputs
from forerun.proof.outside.evidence import AnswerScores, Evidence, deviation_seen
from forerun.proof.outside.reference import Reference
from forerun.proof.outside.reply import Spoken
from forerun.proof.outside.subject import Body, Subject
from forerun.proof.outside.two_sample import SampledAnswer, permutation_tests
from forerun.theory.goodness_of_fit import mean_total_variation, sharpened
from forerun.theory.inputs import Floats, Ints

# Requests at a time, and tokens that no row allows before they count as a defect: one may be an edge.
AT_ONCE, _FEW = 4, 2
HOTTER = 4.0 / 3.0
"""Temperature of the negative control."""
EDGE = 0.25
"""Log probability by which a token may lie behind the last one that top-k, top-p or min-p leave: assumed.

A step of bfloat16 between logits of 32 and more.
"""
# Fields of a body that sampling parameters have too.
_FIELDS = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


@dataclass
class Control:
    """Negative control: tokens drawn here in place of an answer's, at HOTTER times the temperature.

    Args:
        evidence: evidence against the rows.
        moved: total variation of all tokens.
    """

    evidence: Evidence = field(default_factory=Evidence)
    moved: float = 0.0

    @property
    def distance(self) -> float:
        """Mean total variation of a token."""
        return self.moved / max(self.evidence.count, 1)

    def draw(self, rows: Floats, random: np.random.Generator) -> Ints:
        """Tokens [N] in place of those that rows [N, V] gave."""
        hotter = sharpened(rows, 1.0 / HOTTER - 1.0)
        self.moved += mean_total_variation(rows, hotter) * len(rows)
        bounds = hotter.cumsum(1)
        drawn = random.random((len(rows), 1)) * bounds[:, -1:]
        chosen: Ints = (bounds <= drawn).sum(1)
        return chosen


@dataclass
class RowsResult:
    """Tokens of a subject against the reference's rows.

    Args:
        subject: name of the subject.
        evidence: always-valid evidence against the rows.
        control: tokens that do not follow the rows.
        impossible: tokens that the rows exclude.
        level: probability of a false alarm.
        mismatch: why the reference's rows are not the server's; empty if they are.
        answers: number of answers.
        tells_origins: the subject tells accepted from recovered and bonus tokens.
    """

    subject: str
    level: float
    evidence: Evidence = field(default_factory=Evidence)
    control: Control = field(default_factory=Control)
    impossible: int = 0
    answers: int = 0
    mismatch: str = ""
    tells_origins: bool = False

    @property
    def alarm(self) -> bool:
        return self.impossible >= _FEW or self.evidence.alarms(self.level)

    @property
    def deviation(self) -> float:
        """Smallest total variation that the test would have detected."""
        return deviation_seen(self.evidence.count, self.level)


def body_of(outputs: ProofOutputs) -> dict[str, Any]:
    """The body that asks a server for these sampling parameters."""
    usual, params = SamplingParams(), outputs.params
    values = {name: getattr(params, name) for name in _FIELDS}
    changed = {name: value for name, value in values.items() if value != getattr(usual, name)}
    return {"temperature": params.temperature, **changed, "max_tokens": outputs.output_tokens}


def against_rows(
    subject: Subject, reference: Reference, prompts: Sequence[str], outputs: ProofOutputs
) -> RowsResult:
    """Test a subject's tokens against the reference's rows until an alarm, or the budget is used up.

    Args:
        outputs: amount, and sampling parameters; no seeds, which would select another rule in some engines.
    """
    started, result = perf_counter(), RowsResult(subject.name, outputs.level)
    random, own_random = (
        np.random.default_rng([0x6F7574 + own, outputs.seed % 2**64]) for own in range(2)
    )
    body, count = body_of(outputs), 0
    while not result.alarm and result.evidence.count < outputs.num_tokens:
        if count and outputs.seconds is not None and perf_counter() - started > outputs.seconds:
            break
        places = [(count + place) % len(prompts) for place in range(AT_ONCE)]
        count += AT_ONCE
        replies = subject.ask([prompts[place] for place in places], body, AT_ONCE)
        for place, reply in zip(places, replies, strict=True):
            prompt, spoken = prompts[place], reply.first
            result.mismatch = mismatch(reference, prompt, spoken, reply.usage)
            if result.mismatch:
                return result
            ids = [token for token in spoken.tokens if isinstance(token, int)]
            if not ids:
                continue
            scores = AnswerScores(random, result.evidence.memory, place, spoken.origins)
            spoilt = AnswerScores(own_random, result.control.evidence.memory, place)
            caught = result.control.evidence.alarms(outputs.level)
            for rows, chosen, excluded in reference.rows(prompt, ids, outputs.params, EDGE):
                scores.add(rows, chosen)
                result.impossible += excluded
                if not caught:
                    spoilt.add(rows, result.control.draw(rows, own_random))
            result.evidence.add(scores.scores())
            result.answers += 1
            result.tells_origins |= bool(spoken.origins)
            if not caught:
                result.control.evidence.add(spoilt.scores())
        if not result.evidence.count:
            result.mismatch = "its answers are empty"
            return result
        report("sampled", min(result.evidence.count, outputs.num_tokens), outputs.num_tokens)
    report("sampled", 1, 1)
    return result


def mismatch(reference: Reference, prompt: str, spoken: Spoken, usage: Mapping[str, Any]) -> str:
    """Difference between a server's tokens and the reference's; empty if there is none."""
    here, there = len(reference.encode(prompt)), usage.get("prompt_tokens", 0)
    if there and here != there:
        return (
            f"the server reads a prompt as {there} tokens, the reference as {here}: another "
            "tokenizer or template, or a prompt that was cut"
        )
    ids = [token for token in spoken.tokens if isinstance(token, int)]
    if len(ids) < len(spoken.tokens):
        return "the server tells no token ids"
    if ids and max(ids) >= reference.engine.target.vocab_size:
        return f"the server emits token {max(ids)}, which the reference does not have"
    return ""


@dataclass
class OnOffResult:
    """Sampled answers with speculation against those without.

    Args:
        level: probability of a false alarm in each look.
        answers: answers on each side, in the first look and in a second one after an alarm.
        p_values: by test, after Holm's correction, of each look.
        control: least p-value of the first look with a fifth of the answers on replaced, see `_repeated`.
    """

    level: float
    answers: list[int] = field(default_factory=list)
    p_values: list[dict[str, float]] = field(default_factory=list)
    control: float = 1.0

    @property
    def alarm(self) -> bool:
        """True if both looks raised an alarm."""
        return len(self.p_values) == 2 and all(min(p.values()) < self.level for p in self.p_values)


def on_against_off(
    on: Subject, off: Subject, prompts: Sequence[str], outputs: ProofOutputs
) -> OnOffResult:
    """Test whether answers with and without speculation have one distribution.

    An alarm counts once a second look, at twice as many new answers, raises one too.
    """
    result = OnOffResult(outputs.level)
    most = math.ceil(outputs.num_tokens / outputs.output_tokens / 2)
    for look in (1, 2):
        count = most if look == 1 else 2 * result.answers[0]
        # An alarm is looked into however long it takes.
        seconds = outputs.seconds if look == 1 else None
        pairs, answers = _draw((on, off), prompts, body_of(outputs), count, seconds)
        result.answers.append(answers)
        result.p_values.append(permutation_tests(pairs, outputs.seed + look))
        if look == 1:
            spoilt = [(_repeated(on), off) for on, off in pairs]
            result.control = min(permutation_tests(spoilt, outputs.seed).values())
        if min(result.p_values[-1].values()) >= outputs.level:
            break
    return result


def _repeated(answers: Sequence[SampledAnswer]) -> list[SampledAnswer]:
    """Negative control: answers of which the first one stands in place of every fifth."""
    return [answers[0] if number % 5 == 1 else answer for number, answer in enumerate(answers)]


def _draw(
    subjects: tuple[Subject, Subject],
    prompts: Sequence[str],
    body: Body,
    count: int,
    seconds: float | None,
) -> tuple[list[tuple[list[SampledAnswer], list[SampledAnswer]]], int]:
    """Sampled answers by prompt, on and off in turn, and their number on each side."""
    started, done = perf_counter(), 0
    few = prompts[: max(count // AT_ONCE, 1)]
    pairs: list[tuple[list[SampledAnswer], list[SampledAnswer]]] = [([], []) for _ in few]
    for prompt, pair in cycle(zip(few, pairs, strict=True)):
        for subject, answers in zip(subjects, pair, strict=True):
            replies = subject.ask([prompt] * AT_ONCE, body, AT_ONCE)
            answers += [_answer(reply.first) for reply in replies]
        done += AT_ONCE
        report("sampled", min(done, count), count)
        if done >= count or (seconds is not None and perf_counter() - started > seconds):
            break
    report("sampled", 1, 1)
    return [pair for pair in pairs if pair[0]], done


def _answer(spoken: Spoken) -> SampledAnswer:
    # A mean over a part says nothing: some servers tell none of accepted drafts, the likelier tokens.
    known = [value for value in spoken.logprobs if value is not None]
    is_whole = bool(known) and len(known) == len(spoken.logprobs)
    return SampledAnswer(spoken.tokens, sum(known) / len(known) if is_whole else math.nan)
