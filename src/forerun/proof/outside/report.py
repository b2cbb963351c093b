"""Report of a proof from outside: the command's result, and the certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from forerun.proof.outside.greedy import (
    DEFECT,
    FARTHEST,
    LEAST_ROUNDING,
    ROUNDING,
    UNCLEAR,
    GreedyResult,
    Noise,
    SituationResult,
)
from forerun.proof.outside.promises import KEPT, Promise
from forerun.proof.outside.run import OutsideProof, Subjects
from forerun.proof.outside.sampled import EDGE, HOTTER, OnOffResult, RowsResult
from forerun.proof.outside.two_sample import answers_needed
from forerun.proof.power import POWER
from forerun.report.result import DEFECT_FOUND, Result, Sentence
from forerun.report.table import Cell, Table

# Tokens below which no share of defective ones is stated.
_FEW_TOKENS = 300
_STYLES = {DEFECT: "red", ROUNDING: "green", KEPT: "green", "ok": "green"}


def result_of(proof: OutsideProof, subjects: Subjects) -> Result:
    """The result of the command."""
    style = "bold red" if proof.defects else "bold green"
    return Result(
        title=f"Speculation of {subjects.on.model}, from outside",
        content=_content(proof, subjects),
        tables=list(_tables(proof)),
        endings=[
            *(f"Note: {note}" for note in proof.notes),
            Sentence(f"{verdict(proof)} ({proof.seconds:.0f} s)", style=style),
        ],
        exit_code=DEFECT_FOUND if proof.defects else 0,
    )


def verdict(proof: OutsideProof) -> str:
    """The outcome in a sentence or two."""
    unseen = f" Not seen: {'; '.join(proof.unseen)}." if proof.unseen else ""
    if proof.defects:
        return f"A defect was found: {'; '.join(proof.defects)}.{unseen}"
    unclear = sum(
        one.verdict == UNCLEAR for one in (proof.greedy.divergences if proof.greedy else ())
    )
    left = f" {unclear} greedy differences remain unclear." if unclear else ""
    blind = "" if proof.drafted else " Nothing shows that it drafted."
    return f"No defect was found.{blind}{left}{unseen}"


def _content(proof: OutsideProof, subjects: Subjects) -> dict[str, Any]:
    greedy, rows, on_off = proof.greedy, proof.rows, proof.on_off
    return {
        "passed": not proof.defects,
        "verdict": verdict(proof),
        "defects": proof.defects,
        "subject": {
            **subjects.on.facts(),
            "baseline": None if subjects.off is None else subjects.off.facts(),
            "reference": subjects.reference and subjects.reference.model,
        },
        "greedy": greedy
        and {
            "rounding": greedy.noise.allowed,
            "rounding_is_measured": greedy.noise.measured,
            "negative_control": greedy.control,
            "repeated_runs": greedy.noise.runs,
            "repeated_runs_that_differed": greedy.noise.differing,
            "situations": [asdict(one) for one in greedy.situations],
        },
        "sampled": [_rows_content(one) for one in (rows, proof.control) if one is not None],
        "on_off": on_off and asdict(on_off),
        "promises": [asdict(one) for one in proof.promises],
        "not_seen": proof.unseen,
        "notes": proof.notes,
        "seconds": proof.seconds,
    }


def _rows_content(rows: RowsResult) -> dict[str, Any]:
    control = rows.control
    return {
        "subject": rows.subject,
        "answers": rows.answers,
        "tokens": rows.evidence.count,
        "log_evidence": rows.evidence.peak,
        "strongest": rows.evidence.strongest,
        "impossible": rows.impossible,
        "deviation_seen": rows.deviation if rows.evidence.count else None,
        "result": "alarm" if rows.alarm else "ok",
        "negative_control": {
            "tokens": control.evidence.count,
            "total_variation": control.distance,
            "caught": control.evidence.alarms(rows.level),
        },
    }


def _tables(proof: OutsideProof) -> Iterator[Table]:
    if proof.greedy is not None:
        yield _greedy(proof.greedy)
    rows = [one for one in (proof.rows, proof.control) if one is not None and one.evidence.count]
    if rows:
        yield _rows(rows)
    if proof.on_off is not None:
        yield _on_off(proof.on_off)
    if proof.promises:
        yield _promises(proof.promises)


def _greedy(greedy: GreedyResult) -> Table:
    lines = []
    for result in greedy.situations:
        for one in result.divergences:
            margin = "unknown" if one.margin is None else f"{one.margin:.3g}"
            lines.append(
                f"- {result.name}, prompt {one.prompt}: token {one.index + 1} is {one.token!r} instead of "
                f"{one.plain_token!r}, {margin} apart in log probability: {one.verdict}."
            )
    counts = ("prompts", "tokens", "identical", "rounding", "unclear", "defects")
    cells = map(_situation, greedy.situations)
    notes = [*greedy_scope(greedy), *lines]
    return Table.of("Greedy answers", ("greedy", *counts, "result"), cells, notes=notes)


def greedy_scope(greedy: GreedyResult) -> Iterator[str]:
    """Sentences on the rounding that is allowed for, and on what would be seen."""
    yield from _rounding(greedy.noise)
    tokens = min((one.distinct_tokens for one in greedy.situations if not one.skipped), default=0)
    yield (
        f"A difference of up to {FARTHEST:g}, an assumption, is rounding too where plain decoding gives that "
        "token after the same text as a prompt."
    )
    # 95 % by the rule of three.
    yield (
        f"A defect of one situation in fewer than one token in {-(-tokens // 3)} would be missed more often "
        f"than 1 time in 20, as the situation with the fewest has {tokens} distinct tokens."
        if tokens >= _FEW_TOKENS
        else f"In the situation with the fewest, {tokens} distinct tokens are too few to exclude anything "
        "but defects of most answers; give more by --equality-prompts and --output-tokens."
    )
    if greedy.control["tokens"]:
        yield (
            f"Negative control: with the runner-up in place of {greedy.control['tokens']} plain tokens, each "
            f"alone, {greedy.control['defects']} would be called defects."
        )


def _rounding(noise: Noise) -> Iterator[str]:
    """Sentences on the differences that plain decoding explains."""
    repeated = f"{noise.differing} of {noise.runs} repeated answers without speculation differed"
    if noise.flips:
        repeated += f", in tokens up to {max(noise.flips):.2g} apart"
    if not noise.measured:
        assumed = "" if noise.flips else ", an assumption,"
        yield (
            f"Rounding was not measured, as no log probabilities were told; {repeated}. Differences of more "
            f"than {noise.allowed:.2g}{assumed} remain unclear."
        )
        return
    yield (
        f"Differences of up to {noise.allowed:.2g} in log probability are rounding: at least "
        f"{LEAST_ROUNDING:g}, and three times the largest shift ({max(noise.shifts):.2g}) measured on "
        f"{len(noise.shifts)} tokens given again without speculation, alone, among others or after "
        f"prefill; {repeated}{', which is allowed for too' if noise.flips else ''}."
    )
    if noise.own > noise.allowed:
        yield (
            f"More than {FARTHEST:g}, an assumption, is never called rounding; by these measures plain "
            f"decoding itself reaches {noise.own:.2g}, so differences of up to that remain unclear."
        )


def _situation(result: SituationResult) -> list[Cell | str]:
    if result.skipped:
        return [result.name, *[""] * 6, f"not seen: {result.skipped}"]
    verdicts = [one.verdict for one in result.divergences]
    counts = [verdicts.count(name) for name in (ROUNDING, UNCLEAR, DEFECT)]
    numbers = (result.prompts, result.tokens, result.prompts - len(verdicts), *counts)
    outcome = DEFECT if counts[2] else UNCLEAR if counts[1] else "ok"
    return [result.name, *map(str, numbers), Cell(outcome, style=_STYLES.get(outcome, ""))]


def _rows(results: list[RowsResult]) -> Table:
    contents = [_rows_content(one) for one in results]
    control = contents[0]["negative_control"]
    cells = [
        [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values]
        for *values, _ in (content.values() for content in contents)
    ]
    header = [name.replace("_", " ") for name in list(contents[0])[:-1]]
    notes = [
        f"The deviation is one in total variation that would be seen with probability {POWER}.",
        f"Tokens are impossible beyond {EDGE:g}, an assumption, in log probability behind the edge of top-k, "
        "top-p or min-p.",
        f"Negative control: {control['tokens']} tokens drawn from these rows at {HOTTER:.3g} times the "
        f"temperature, {control['total_variation']:.2g} in total variation, are "
        + ("caught." if control["caught"] else "not caught: this budget is too small for that."),
    ]
    if results[0].tells_origins:
        notes.append(
            "First tokens of rounds and bonus tokens, which the server tells, have bets of their own."
        )
    return Table.of("Sampled tokens against the reference's rows", header, cells, notes=notes)


def _on_off(result: OnOffResult) -> Table:
    cells = [
        (name, *(f"{look[name]:.3g}" for look in result.p_values)) for name in result.p_values[0]
    ]
    titles = [f"p (Holm), {2 * count} answers" for count in result.answers]
    seen = (answers_needed(1.0, result.level) / result.answers[0]) ** 0.5
    limit = (
        f"A deviation of {seen:.2g} in total variation between whole answers would have been seen with "
        f"probability {POWER}."
    )
    caught = "caught" if result.control < result.level else "not caught: this budget is too small"
    control = (
        f"Negative control, one answer in place of every fifth: p {result.control:.2g}, {caught}."
    )
    return Table.of("Sampled answers on and off", ("test", *titles), cells, notes=[limit, control])


def _promises(promises: list[Promise]) -> Table:
    cells = [
        (one.name, one.detail, Cell(one.verdict, style=_STYLES.get(one.verdict, "")))
        for one in promises
    ]
    return Table.of("Promises", ("promise", "seen", "result"), cells, "lll")
