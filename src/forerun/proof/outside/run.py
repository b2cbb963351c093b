"""`forerun prove --endpoint`: the parts of a proof from outside, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError
from forerun.progress import say
from forerun.proof.effort import MOST_TOKENS, STATISTICS, Effort
from forerun.proof.outside.client import Endpoint
from forerun.proof.outside.evidence import tokens_needed
from forerun.proof.outside.greedy import DEFECT, GreedyResult, Noise, compare_greedy
from forerun.proof.outside.options import Outside
from forerun.proof.outside.promises import BROKEN, Promise, Promises
from forerun.proof.outside.sampled import (
    Budget,
    OnOffResult,
    RowsResult,
    against_rows,
    body_of,
    on_against_off,
)
from forerun.proof.outside.subject import AskedSubject, ReplyRecord, ServerSubject, served_model
from forerun.proof.outside.two_sample import answers_needed

if TYPE_CHECKING:
    from forerun.params import SamplingParams
    from forerun.proof.outside.reference import Reference
    from forerun.proof.request import ProveRequest
    from forerun.report.result import Result

# Prompts of the greedy part, unless more are asked for, and its share of the time.
GREEDY_PROMPTS, _GREEDY_SHARE = 4, 0.35
# Deviations whose price is said before anything runs.
_STATED = (0.05, 0.02, 0.005)
# Rounding of log probabilities above which a reference's rows are not taken for the server's.
_OTHER_WEIGHTS = 0.05


@dataclass(frozen=True)
class Subjects:
    """A server, and what it is compared with.

    Args:
        on: with speculation.
        off: the server without, if there is one.
        reference: the checkpoint, if it is known.
    """

    on: ServerSubject
    off: ServerSubject | None = None
    reference: Reference | None = None

    @property
    def baseline(self) -> AskedSubject:
        """The subject that answers are compared with."""
        subject: AskedSubject | None = self.off or self.reference
        assert subject is not None
        return subject


@dataclass
class OutsideProof:
    """Result of a proof from outside; parts that did not run are None.

    Args:
        plan: what a deviation costs, said before it began.
        greedy, promises: results of these parts.
        rows: sampled tokens against the reference's rows.
        control: the same tokens of the server without speculation.
        on_off: sampled answers on against off.
        notes: what was not seen, and why.
    """

    plan: list[str]
    greedy: GreedyResult | None = None
    rows: RowsResult | None = None
    control: RowsResult | None = None
    on_off: OnOffResult | None = None
    promises: list[Promise] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rows_are_wrong(self) -> str:
        """Why an alarm against the reference's rows says nothing about speculation; empty if it does."""
        if self.rows is None or not self.rows.alarm:
            return ""
        if self.control is not None and self.control.alarm:
            return (
                "the server's tokens without speculation do not follow the reference's rows either"
            )
        noise = Noise() if self.greedy is None else self.greedy.noise
        if self.control is None and noise.allowed > _OTHER_WEIGHTS:
            return (
                f"the server's log probabilities are up to {noise.allowed:.2g} away from the "
                "reference's, so its weights may be others"
            )
        return ""

    @property
    def defects(self) -> list[str]:
        """Sentences on the defects that were seen."""
        found = []
        if self.greedy is not None:
            wrong = [one for one in self.greedy.divergences if one.verdict == DEFECT]
            found += [f"{len(wrong)} greedy answers differ by more than rounding"] if wrong else []
        if self.rows is not None and self.rows.alarm and not self.rows_are_wrong:
            found.append("sampled tokens do not follow the reference's rows")
        if self.on_off is not None and self.on_off.alarm:
            found.append("sampled answers with speculation are distributed otherwise than without")
        return found + [
            f"promise broken: {one.name}" for one in self.promises if one.verdict == BROKEN
        ]


def prove_server(request: ProveRequest) -> Result:
    """The proof that a request asks for, and the certificate if one is wanted.

    Raises:
        ForerunError: for a server, checkpoint or file that does not fit.
    """
    from forerun.flags import settings_in
    from forerun.proof.outside.report import certificate, result_of
    from forerun.proof.request import texts_of
    from forerun.report.target_file import write_file

    outside = request.outside
    # A text without tokens of its own is cut by characters, about four a token.
    most = 4 * request.prompt_tokens
    prompts = [text[-most:] for text in texts_of(request)]
    subjects = subjects_of(outside, _reference(request), prompts[0])
    proof = prove_outside(subjects, prompts, request.sampling, request.effort)
    # The key stays out of what is written.
    secret = {} if outside.api_key is None else {"api_key": "given"}
    settings = {**settings_in(request), **secret}
    result = replace(result_of(proof, subjects), settings=settings)
    if request.certificate is not None:
        write_file("certificate", request.certificate, certificate(result))
    return result


def _reference(request: ProveRequest) -> Reference | None:
    """The checkpoint that the server runs, to run here; None if it is not known."""
    if request.outside.reference is None:
        return None
    from forerun.proof.outside.reference import Reference

    options = replace(request.model, model=request.outside.reference)
    engine = options.load(options.open(), None, max_context=options.max_context)
    return Reference(engine)


def subjects_of(outside: Outside, reference: Reference | None, prompt: str) -> Subjects:
    """Connect to the servers, and ask which fields and figures they give.

    Raises:
        EndpointError: for a server that is down, too slow, or refuses.
        ConfigError: for a record of another run.
    """
    assert outside.endpoint is not None

    def open_at(url: str, name: str, fields: dict[str, Any]) -> ServerSubject:
        endpoint = Endpoint(url, outside.api_key, outside.request_timeout)
        model = outside.served_model or served_model(endpoint)
        return ServerSubject(name, endpoint, model, record, fields).open(prompt)

    header = {"endpoint": outside.endpoint, "baseline": outside.baseline_endpoint}
    record = ReplyRecord.open(outside.record, {**header, "switch": outside.fields})
    on = open_at(outside.endpoint, "with speculation", {})
    off = None
    if outside.baseline_endpoint is not None:
        off = open_at(outside.baseline_endpoint, "without speculation", {})
    elif outside.switch is not None:
        off = open_at(outside.endpoint, "without speculation", outside.fields)
    if reference is not None:
        reference = replace(reference, chat=on.chat)
    return Subjects(on, off, reference)


def prove_outside(
    subjects: Subjects, prompts: Sequence[str], params: SamplingParams, effort: Effort
) -> OutsideProof:
    """All parts of a proof from outside.

    Raises:
        EndpointError: for a server that is down, too slow, or refuses.
        ConfigError: for parts that it does not have.
    """
    started = perf_counter()
    if set(effort.part) <= {"enumeration"}:
        raise ConfigError(
            "from outside there is nothing to enumerate; ask for equality or statistics."
        )
    proof = OutsideProof(list(plan(subjects, effort)))
    for sentence in proof.plan:
        say(sentence)
    on, baseline = subjects.on, subjects.baseline
    if "equality" in effort.part:
        few = prompts[: effort.equality_prompts or GREEDY_PROMPTS]
        share = _GREEDY_SHARE * effort.seconds
        proof.greedy = compare_greedy(on, baseline, few, effort.output_tokens, share)
    _check_switch(subjects)
    allowed = (Noise() if proof.greedy is None else proof.greedy.noise).allowed
    if "statistics" in effort.part and params.greedy:
        proof.notes.append("At temperature 0 nothing is drawn; sampled answers were not looked at.")
    elif "statistics" in effort.part:
        _sampled(proof, subjects, prompts, params, effort, allowed)
    if "equality" in effort.part:
        # A sampled request where the proof's own is greedy.
        sampled = body_of(params, effort.output_tokens) | (
            {"temperature": 1.0} if params.greedy else {}
        )
        looks = Promises(on, baseline, prompts[0], effort.output_tokens, sampled, allowed)
        proof.promises = list(looks.look())
    _check_switch(subjects)
    proof.notes += _seen_of(on)
    proof.seconds = perf_counter() - started
    return proof


def plan(subjects: Subjects, effort: Effort) -> Iterator[str]:
    """Sentences on how many requests it takes to see given deviations."""
    prices = []
    for deviation in _STATED:
        if subjects.reference is not None:
            count = -(-tokens_needed(deviation, effort.level) // effort.output_tokens)
        else:
            count = 2 * answers_needed(deviation, effort.level)
        prices.append(f"{deviation:g} about {count:,}")
    what = "a token" if subjects.reference is not None else "a whole answer"
    yield (
        f"At level {effort.level:g} a deviation of {what} in total variation takes this many sampled "
        f"requests of {effort.output_tokens} tokens, seen with probability 0.9: {', '.join(prices)}."
    )


def _sampled(
    proof: OutsideProof,
    subjects: Subjects,
    prompts: Sequence[str],
    params: SamplingParams,
    effort: Effort,
    allowed: float,
) -> None:
    """Add the sampled part: against the reference's rows, or on against off."""
    tokens, seconds = effort.num_tokens or MOST_TOKENS, STATISTICS * effort.seconds
    if effort.num_tokens is not None:
        seconds = float("inf")
    budget = Budget(effort.level, effort.output_tokens, tokens, seconds, effort.seed)
    if subjects.reference is not None:
        rows = (prompts, params, budget, allowed)
        proof.rows = against_rows(subjects.on, subjects.reference, *rows)
        if not proof.rows.mismatch and proof.rows.alarm and subjects.off is not None:
            count = max(proof.rows.evidence.count, 1)
            few = (
                prompts,
                params,
                replace(budget, num_tokens=count, seconds=float("inf")),
                allowed,
            )
            proof.control = against_rows(subjects.off, subjects.reference, *few)
        if not proof.rows.mismatch:
            return
        proof.notes.append(f"The reference's rows were not used: {proof.rows.mismatch}.")
    if subjects.off is None:
        proof.notes.append(
            "Sampled answers were not looked at: there is nothing to compare them with."
        )
        return
    proof.on_off = on_against_off(subjects.on, subjects.off, prompts, params, budget)


def _check_switch(subjects: Subjects) -> None:
    """Raise an error if answers without speculation were drafted.

    Raises:
        ConfigError: if they were, so that there is nothing to compare with.
    """
    if subjects.off is not None and subjects.off.drafted:
        raise ConfigError(
            f"{subjects.off.drafted} tokens were drafted in answers without speculation; give a switch that "
            "the server heeds, or the address of one that does not speculate."
        )


def _seen_of(on: ServerSubject) -> Iterator[str]:
    """Notes on waits, broken text, and missing information."""
    if not on.drafted:
        yield (
            "The server does not tell that it drafted: speculation that is off, or a switch that is ignored, "
            "would pass."
        )
    if on.endpoint.waits:
        yield f"The server was full {on.endpoint.waits} times; those requests waited and were repeated."
    if on.endpoint.broken:
        yield f"{on.endpoint.broken} responses were not UTF-8."
    if "logprobs" not in on.extras:
        yield "The server tells no log probabilities: no greedy difference can be called a defect."
    if on.chat:
        yield "The server was asked by chat alone: prompts that go on, and prefill, were not compared."
