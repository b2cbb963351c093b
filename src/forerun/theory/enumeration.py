"""Computes the exact distribution of a rule's outcomes, by following every branch of its tests.

A decision (see forerun.verification.decision) is passed as plain arrays, so this module does not
depend on the code that it checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.theory.inputs import Floats


def end_probabilities(
    accept: NDArray[np.floating],
    on_accept: Sequence[int],
    on_reject: Sequence[int],
    start: int,
    num_nodes: int,
) -> Floats:
    """Probability that the walk ends at each node, [n + 1]; entry 0 is the last committed token."""
    ends = np.zeros(num_nodes + 1)
    open_tests = [(start, 1.0)]
    while open_tests:
        at, probability = open_tests.pop()
        if probability == 0.0:
            continue
        if at < 0:
            ends[~at] += probability
            continue
        open_tests.append((on_accept[at], probability * float(accept[at])))
        open_tests.append((on_reject[at], probability * (1.0 - float(accept[at]))))
    return ends
