"""`forerun check`: finds everything that is wrong with a head, for forerun and for other engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from forerun.export.dspark_rules import dspark_rules
from forerun.export.eagle3_rules import eagle3_rules
from forerun.export.findings import VERSIONS, Finding, for_engines
from forerun.export.head import DSPARK, EAGLE3, MEDUSA, PublishedHead
from forerun.export.medusa_rules import medusa_rules
from forerun.export.target import Target

RULES: Mapping[str, Callable[[PublishedHead, Target], Iterator[Finding]]] = {
    EAGLE3: eagle3_rules,
    DSPARK: dspark_rules,
    MEDUSA: medusa_rules,
}


def check_head(
    head: PublishedHead, target: Target, engines: Sequence[str] = tuple(VERSIONS)
) -> list[Finding]:
    """Find everything that is wrong with a head for some engines, the worst first; nothing is run.

    Raises:
        UnsupportedModelError: for a head of an unknown kind.
    """
    return for_engines(RULES[head.kind](head, target), engines)
