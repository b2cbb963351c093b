"""Findings of a check of a head, and the engines that the checks know."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

VLLM, SGLANG, LLAMA_CPP = "vllm", "sglang", "llama.cpp"
EVERY = "all"
"""Engine of a finding that holds wherever the head is loaded, in forerun too."""

VERSIONS = {VLLM: "0.33", SGLANG: "0.5.23", LLAMA_CPP: "b11434"}
"""Version of each engine whose sources the checks were written from."""
TITLES = {VLLM: "vLLM", SGLANG: "SGLang", LLAMA_CPP: "llama.cpp"}


class Severity(enum.StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The engine does not load the head."""
    WRONG = "wrong"
    """The engine loads the head silently, and drafts badly."""
    NOTE = "note"
    """The finding is worth knowing, but the head drafts as it was trained."""


@dataclass(frozen=True)
class Finding:
    """One problem of a head.

    Args:
        severity: severity of the problem.
        engine: engine that has the problem, or `EVERY`.
        trap: short name of the problem, the same for every engine.
        problem: sentence that says what is wrong, without a full stop.
        remedy: sentence that says what to do, without a full stop.
    """

    severity: Severity
    engine: str
    trap: str
    problem: str
    remedy: str


Engines = str | Sequence[str]
"""One engine, or several; `{engine}` in a problem stands for the title of each."""


def _findings(
    severity: Severity, engines: Engines, trap: str, problem: str, remedy: str
) -> Iterator[Finding]:
    """Findings of one severity, one for each engine."""
    for engine in (engines,) if isinstance(engines, str) else engines:
        named = problem.replace("{engine}", TITLES.get(engine, engine))
        yield Finding(severity, engine, trap, named, remedy)


error = partial(_findings, Severity.ERROR)
wrong = partial(_findings, Severity.WRONG)
note = partial(_findings, Severity.NOTE)


def for_engines(findings: Iterable[Finding], engines: Sequence[str]) -> list[Finding]:
    """The findings that matter to some of the engines, the worst first.

    Of several findings about one trap in one engine, only the worst count: a head that is not loaded
    is not misread.
    """
    order = list(Severity)
    relevant = dict.fromkeys(finding for finding in findings if finding.engine in (EVERY, *engines))
    worst: dict[tuple[str, str], int] = {}
    for finding in relevant:
        key, rank = (finding.engine, finding.trap), order.index(finding.severity)
        worst[key] = min(rank, worst.get(key, rank))
    worst_only = [
        finding
        for finding in relevant
        if order.index(finding.severity) == worst[finding.engine, finding.trap]
    ]
    return sorted(worst_only, key=lambda finding: order.index(finding.severity))


def defects(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that are more than notes."""
    return [finding for finding in findings if finding.severity is not Severity.NOTE]
