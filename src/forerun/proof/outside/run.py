"""`forerun prove --endpoint`: the parts of a proof from outside, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError
from forerun.progress import say
from forerun.proof.effort import Effort, ProofOutputs
from forerun.proof.outside.client import Endpoint, RefusedError
from forerun.proof.outside.evidence import tokens_needed
from forerun.proof.outside.greedy import DEFECT, GreedyComparison, GreedyResult
from forerun.proof.outside.options import Outside
from forerun.proof.outside.promises import Promise, Promises
from forerun.proof.outside.sampled import (
    OnOffResult,
    RowsResult,
    against_rows,
    body_of,
    on_against_off,
)
from forerun.proof.outside.subject import ReplyRecord, ServerSubject, Subject, served_model
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
CONTROL = 2
"""Tokens without speculation for each token up to an alarm, which counts where they raise none."""


@dataclass(frozen=True)
class Subjects:
    """A server, and what it is compared with.

    Args:
        on: with speculation.
        off: the server without, if there is one.
        reference: the checkpoint, if it is known.
    """

    on: Subject
    off: Subject | None = None
    reference: Reference | None = None

    @property
    def baseline(self) -> Subject:
        """The subject that answers are compared with."""
        subject = self.off or self.reference
        assert subject is not None
        return subject


@dataclass
class OutsideProof:
    """Result of a proof from outside; parts that did not run are None.

    Args:
        greedy, promises: results of these parts.
        rows: sampled tokens against the reference's rows.
        control: the same tokens of the server without speculation.
        on_off: sampled answers on against off.
        unseen: what was not looked at, and why.
        notes: what a deviation costs, and limits of what was seen.
        drafted: tokens that the subject says it drafted.
    """

    greedy: GreedyResult | None = None
    rows: RowsResult | None = None
    control: RowsResult | None = None
    on_off: OnOffResult | None = None
    promises: list[Promise] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    drafted: int = 0
    seconds: float = 0.0

    @property
    def rows_are_wrong(self) -> str:
        """Why an alarm against the reference's rows says nothing about speculation; empty if it does."""
        if self.rows is None or not self.rows.alarm:
            return ""
        if self.control is not None:
            wrong = (
                "the server's tokens without speculation do not follow the reference's rows either"
            )
            return wrong if self.control.alarm else ""
        if self.greedy is None or not self.greedy.noise.measured:
            return (
                "no log probabilities were compared with the reference's, and there are no answers without "
                "speculation, so the server's weights may be others"
            )
        if (distance := self.greedy.noise.own) > _OTHER_WEIGHTS:
            return (
                f"the server's log probabilities are up to {distance:.2g} away from the reference's, so "
                "its weights may be others"
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
            f"promise broken: {one.name}" for one in self.promises if one.verdict == DEFECT
        ]


def prove_server(request: ProveRequest) -> Result:
    """The result of the proof that a request asks for.

    Raises:
        ForerunError: for a server, checkpoint or file that does not fit.
    """
    from forerun.flags import settings_in
    from forerun.proof.outside.report import result_of
    from forerun.proof.request import texts_of

    outside = request.outside
    # A text without tokens of its own is cut by characters, about four a token.
    most = 4 * request.prompt_tokens
    prompts = [text[-most:] for text in texts_of(request)]
    with _subjects(request, prompts[0]) as subjects:
        proof = prove_outside(subjects, prompts, request.sampling, request.effort)
    # The key stays out of what is written.
    secret = {} if outside.api_key is None else {"api_key": "given"}
    return replace(result_of(proof, subjects), settings={**settings_in(request), **secret})


@contextmanager
def _subjects(request: ProveRequest, prompt: str) -> Iterator[Subjects]:
    """Connections to the servers that are named, or engines that are started and ended."""
    outside = request.outside
    header: dict[str, Any] = {"subject": outside.subject, "model": request.model.model}
    header |= {"revision": request.model.revision, "draft_model": request.speculation.model}
    header |= {"endpoint": outside.endpoint, "subject_python": outside.subject_python}
    header |= {"baseline": outside.baseline_endpoint, "switch": outside.fields}
    if outside.subject is None:
        record = ReplyRecord.open(outside.record, header)
        yield subjects_of(outside, _reference(request, outside.reference), prompt, record)
        return
    from forerun.proof.outside.engines import SERVERS, peers

    reference = _reference(request, request.model.model)
    assert reference is not None
    if outside.subject in SERVERS:
        with SERVERS[outside.subject](request) as (started, facts):
            record = ReplyRecord.open(outside.record, {**header, "engine": facts})
            yield subjects_of(started, reference, prompt, record)
    else:
        with peers(request, reference) as pair:
            record = ReplyRecord.open(outside.record, {**header, "engine": pair[0].facts()})
            for subject in pair:
                subject.record = record
            yield Subjects(*pair, reference)


def _reference(request: ProveRequest, name: str | None) -> Reference | None:
    """The checkpoint of a name, to run here; None if it is not known."""
    if name is None:
        return None
    from forerun.proof.outside.reference import Reference

    options = replace(request.model, model=name)
    engine = options.load(options.open(), None, max_context=options.max_context)
    return Reference(engine)


def subjects_of(
    outside: Outside, reference: Reference | None, prompt: str, record: ReplyRecord
) -> Subjects:
    """Connect to the servers, and ask which fields and figures they give.

    Raises:
        EndpointError: for a server that is down, too slow, or refuses.
    """
    assert outside.endpoint is not None

    def open_at(url: str, name: str, fields: dict[str, Any]) -> ServerSubject:
        endpoint = Endpoint(url, outside.api_key, outside.request_timeout)
        model = outside.served_model or served_model(endpoint)
        return ServerSubject(name, endpoint, model, record, fields).open(prompt)

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
    proof = OutsideProof(notes=[plan(subjects, effort)])
    say(proof.notes[0])
    on, baseline = subjects.on, subjects.baseline
    if "equality" in effort.part:
        few = prompts[: effort.equality_prompts or GREEDY_PROMPTS]
        compared = GreedyComparison(on, baseline, few, effort.output_tokens)
        share = _GREEDY_SHARE if "statistics" in effort.part else 1.0
        proof.greedy = compared.run(share * effort.seconds)
    _check_switch(subjects)
    outputs = effort.outputs(params)
    if "statistics" in effort.part and params.greedy:
        proof.unseen.append("sampled answers (at temperature 0 nothing is drawn)")
    elif "statistics" in effort.part:
        try:
            _sampled(proof, subjects, prompts, outputs)
        except RefusedError as error:
            proof.unseen.append(f"sampled answers ({str(error).rstrip('.')})")
    if "equality" in effort.part:
        # A sampled request where the proof's own is greedy.
        drawn = body_of(outputs) | ({"temperature": 1.0} if params.greedy else {})
        assert proof.greedy is not None
        noise = proof.greedy.noise
        looks = Promises(on, baseline, prompts[0], effort.output_tokens, drawn, noise)
        proof.promises = list(looks.look())
    _check_switch(subjects)
    proof.notes += on.limits()
    proof.drafted = on.drafted
    proof.seconds = perf_counter() - started
    return proof


def plan(subjects: Subjects, effort: Effort) -> str:
    """Sentence on how many requests it takes to see given deviations."""
    prices = []
    for deviation in _STATED:
        if subjects.reference is not None:
            count = -(-tokens_needed(deviation, effort.level) // effort.output_tokens)
        else:
            count = 2 * answers_needed(deviation, effort.level)
        prices.append(f"{deviation:g} about {count:,}")
    what = "a token" if subjects.reference is not None else "a whole answer"
    return (
        f"At level {effort.level:g} a deviation of {what} in total variation takes this many sampled "
        f"requests of {effort.output_tokens} tokens, seen with probability 0.9: {', '.join(prices)}."
    )


def _sampled(
    proof: OutsideProof, subjects: Subjects, prompts: Sequence[str], outputs: ProofOutputs
) -> None:
    """Add the sampled part: against the reference's rows, or on against off."""
    if subjects.reference is not None:
        known = subjects.reference, prompts
        proof.rows = against_rows(subjects.on, *known, outputs)
        if proof.rows.alarm and subjects.off is not None:
            count = CONTROL * max(proof.rows.evidence.count, 1)
            more = replace(outputs, num_tokens=count, seconds=None)
            proof.control = against_rows(subjects.off, *known, more)
        reason = proof.rows.mismatch or proof.rows_are_wrong
        if not reason:
            return
        proof.notes.append(f"The reference's rows do not count: {reason}.")
    if subjects.off is not None:
        proof.on_off = on_against_off(subjects.on, subjects.off, prompts, outputs)
    else:
        proof.unseen.append("sampled answers (there is nothing to compare them with)")


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
