"""Acceptance as a function of the agreement between two models' logits.

Agreement is defined as in the NumPy tutorial on speculative decoding (machinelearningplus.com): the target
has random logits, one of them raised, and the draft blends them with noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forerun.options import check
from forerun.theory.inputs import Floats, softmax


class AgreementAcceptance(NamedTuple):
    """Measured acceptance of drawn tokens, and the expected one, which is the rows' mean overlap."""

    measured: float
    expected: float


def acceptance_of_agreement(
    agreement: float, trials: int = 1000, vocab_size: int = 10
) -> AgreementAcceptance:
    """Measure acceptance by drawing and testing one token in each of many pairs of rows.

    Trial i seeds NumPy's legacy generator with i, which reproduces the tutorial's figures. Agreement is a
    weight of logits, not a probability: at agreement 0 the draft is independent of the target, and the
    acceptance is the overlap of two random rows.

    Raises:
        ConfigError: for an agreement outside [0, 1], or less than 1 trial or token.
    """
    agreement = check("agreement", agreement, float, ge=0.0, le=1.0)
    vocab_size = check("vocab_size", vocab_size, int, ge=1, le=1 << 24)
    trials = check("trials", trials, int, ge=1, le=1 << 24)
    accepted, overlap = 0, 0.0
    for trial in range(trials):
        rng = np.random.RandomState(trial)
        p, q = _pair(rng, agreement, trial % vocab_size, vocab_size)
        token = rng.choice(vocab_size, p=q)
        accepted += bool(rng.random() < min(1.0, p[token] / q[token]))
        overlap += float(np.minimum(p, q).sum())
    return AgreementAcceptance(accepted / trials, overlap / trials)


def _pair(
    rng: np.random.RandomState, agreement: float, raised: int, vocab_size: int
) -> tuple[Floats, Floats]:
    """A random target row, and a draft row with the given agreement."""
    target = rng.randn(vocab_size)
    target[raised] += 2.0
    noise = rng.randn(vocab_size) * 0.5
    return softmax(target), softmax(agreement * target + (1.0 - agreement) * noise)
