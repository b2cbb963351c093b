"""Servers that are down, slow, full, silent or odd: said for what they are, and never called a defect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.errors import EndpointError
from forerun.params import SamplingParams
from forerun.proof.certificate import certificate
from forerun.proof.effort import Effort
from forerun.proof.outside.greedy import GreedyResult, Noise
from forerun.proof.outside.options import Outside
from forerun.proof.outside.reference import Reference
from forerun.proof.outside.report import result_of
from forerun.proof.outside.run import OutsideProof, Subjects, prove_outside, subjects_of
from forerun.proof.outside.sampled import RowsResult
from forerun.proof.outside.subject import ReplyRecord
from tests.helpers.plants import plain_engine
from tests.helpers.scripted_server import WORDS, Script, scripted

PROMPTS = ["w1 w2 w1 w2 w3 w4"]
OFF = '{"speculative": false}'
QUICK = Effort(seconds=600, output_tokens=6, num_tokens=48)


def subjects_at(
    url: str, reference: bool = False, record: str | None = None, **options: Any
) -> Subjects:
    known = Reference(plain_engine()) if reference else None
    outside = Outside(endpoint=url, switch=OFF, **options)
    return subjects_of(
        outside, known, PROMPTS[0], ReplyRecord.open(record, {"subject": "scripted"})
    )


def proved(
    script: Script,
    *,
    part: tuple[str, ...] = ("equality",),
    reference: bool = False,
    **options: Any,
) -> tuple[OutsideProof, Subjects]:
    effort = Effort(**{**vars(QUICK), "part": part})
    with scripted(script) as url:
        subjects = subjects_at(url, reference, **options)
        return prove_outside(subjects, PROMPTS, SamplingParams(), effort), subjects


def verdicts(proof: OutsideProof) -> set[str]:
    assert proof.greedy is not None
    return {found.verdict for found in proof.greedy.divergences}


def test_a_full_server_is_waited_for_and_counted() -> None:
    proof, _ = proved(Script(busy=3))
    assert proof.defects == []
    assert any("full 3 times" in note for note in proof.notes)


def test_a_server_that_is_down_is_said_to_be() -> None:
    with scripted(Script()) as url:
        pass
    with pytest.raises(EndpointError, match="no server answers"):
        subjects_at(url)


def test_a_slow_server_is_said_to_be() -> None:
    with scripted(Script(delay=0.5)) as url, pytest.raises(EndpointError, match="took longer"):
        subjects_at(url, request_timeout=0.1)


@pytest.mark.parametrize(
    ("prefill", "logprob", "verdict"),
    [(None, -0.5, "defect"), ("x ", -2.6, "rounding"), ("x ", -0.5, "defect")],
)
def test_other_tokens_than_plainly_are_a_defect_unless_plain_prefill_gives_them(
    prefill: str | None, logprob: float, verdict: str
) -> None:
    """A draft is checked by prefill, so what plain prefill does is the engine's own, but no far token."""
    proof, _ = proved(Script(wrong="x ", prefill=prefill, logprob=logprob))
    assert verdict in verdicts(proof)
    assert proof.greedy is not None
    plain = proof.greedy.situations[0]
    assert [found.verdict for found in plain.divergences] == [verdict]


def test_without_log_probabilities_a_difference_remains_unclear() -> None:
    proof, subjects = proved(Script(refuses=("logprobs",), wrong="x"))
    assert verdicts(proof) == {"unclear"}
    assert not any("greedy" in defect for defect in proof.defects)
    assert "no log probabilities" in " ".join(subjects.on.limits())
    assert "Rounding was not measured" in certificate(result_of(proof, subjects))


def test_zeros_for_drafted_tokens_are_missing_log_probabilities() -> None:
    """llama.cpp reports 0 and no alternatives."""

    class Drafted(Script):
        def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            status, content = super().answer(path, body)
            if status == 200 and body.get("logprobs") and body.get("speculative", True):
                for entry in content["choices"][0]["logprobs"]["content"][1:]:
                    entry |= {"logprob": 0.0, "top_logprobs": []}
            return status, content

    proof, _ = proved(Drafted())
    assert proof.defects == ["promise broken: log probabilities"]


@pytest.mark.parametrize(
    ("shifts", "control", "counts"),
    [
        ([], None, False),
        ([1e-3], None, True),
        ([0.1], None, False),
        ([], False, True),
        ([1e-3], True, False),
    ],
)
def test_an_alarm_against_the_references_rows_counts_by_a_rule(
    shifts: list[float], control: bool | None, counts: bool
) -> None:
    """Plain answers decide; without them log probabilities near the reference's."""
    proof = OutsideProof(
        greedy=GreedyResult(Noise(shifts)),
        rows=RowsResult("on", 0.01, impossible=9),
        control=None if control is None else RowsResult("off", 0.01, impossible=9 * control),
    )
    assert bool(proof.defects) == counts
    assert bool(proof.rows_are_wrong) != counts


def test_a_server_of_chats_alone_is_asked_by_chat() -> None:
    proof, subjects = proved(Script(chat_only=True))
    assert subjects.on.facts()["asked_by"] == "/v1/chat/completions"
    assert any("chat alone" in note for note in proof.notes)
    assert proof.defects == []


def test_a_stream_of_broken_utf8_is_a_defect() -> None:
    proof, _ = proved(Script(broken=True))
    assert proof.defects == ["promise broken: a stream is the answer"]
    assert proved(Script())[0].defects == []


@pytest.mark.parametrize("refuses", [("response_format",), ()])
def test_a_schema_that_is_refused_was_not_seen(refuses: tuple[str, ...]) -> None:
    proof, _ = proved(Script(refuses=refuses))
    assert proof.greedy is not None
    skipped = {one.name: one.skipped for one in proof.greedy.situations}
    assert skipped["JSON schema"] == ("not served (400)" if refuses else "")


def test_another_template_or_tokenizer_is_said_and_no_defect() -> None:
    """The reference reads the prompt as six tokens."""
    proof, _ = proved(Script(prompt_tokens=9), part=("statistics",), reference=True)
    assert proof.defects == []
    assert any("another tokenizer or template" in note for note in proof.notes)
    assert proof.on_off is not None


def test_an_interrupted_run_goes_on_from_its_record(tmp_path: Path) -> None:
    whole = Script()
    proved(whole)
    record = str(tmp_path / "record.jsonl")
    stopped, rest = Script(most=len(whole.bodies) // 2), Script()
    with scripted(stopped) as url:
        with pytest.raises(EndpointError, match="500"):
            prove_outside(subjects_at(url, record=record), PROMPTS, SamplingParams(), QUICK)
        kept = len(Path(record).read_text().splitlines()) - 1
        assert kept > 0
        stopped.most, before = 10**9, len(stopped.bodies)
        proof = prove_outside(subjects_at(url, record=record), PROMPTS, SamplingParams(), QUICK)
        assert proof.defects == []
        again = len(stopped.bodies) - before
    with scripted(rest) as url:
        prove_outside(subjects_at(url), PROMPTS, SamplingParams(), QUICK)
    # What opens a server is asked anew.
    assert again <= len(rest.bodies) - kept + 2
    moved = Script()
    with scripted(moved) as url:
        prove_outside(subjects_at(url, record=record), PROMPTS, SamplingParams(), QUICK)
    # A server that a proof starts itself has another port each time; streams are not kept.
    assert len(moved.bodies) <= 4


def test_the_certificate_names_what_was_seen_and_not() -> None:
    proof, subjects = proved(Script(refuses=("seed",)), part=("equality", "statistics"))
    result = result_of(proof, subjects)
    text = certificate(result)
    for said in (
        "scripted/1",
        "in total variation",
        "are rounding: at least 0.001",
        "Negative control: with the runner-up",
        "tokens are too few",
        "greedy",
        "a seed repeats its answer",
        "refused with 400",
        "does not tell that it drafted",
        "No defect was found. Nothing shows that it drafted.",
        OFF.strip("{}"),
    ):
        assert said in text, said
    assert result.exit_code == 0
    assert len(WORDS) > QUICK.output_tokens
