"""Families of deviations that a lossy method may cause; the power of tests is stated against them.

A family changes rows by a strength. For small strengths, the total variation and the mean score are
proportional to the strength, so one strength describes the whole family.
"""

from __future__ import annotations

import numpy as np

from forerun.theory.inputs import Floats, Ints

# Strength at which a family is evaluated: small against 1, large against rounding.
SMALL = 0.01


def sharpened(rows: Floats, strength: float = SMALL) -> Floats:
    """Rows [N, V] raised to the power 1 + strength, as if tokens were drawn at another temperature."""
    logs = np.log(rows, out=np.full_like(rows, -np.inf), where=rows > 0)
    powers = np.exp((1.0 + strength) * (logs - logs.max(1, keepdims=True)))
    moved: Floats = powers / powers.sum(1, keepdims=True)
    return moved


def drawn_to(rows: Floats, draft_rows: Floats, strength: float = SMALL) -> Floats:
    """Rows [N, V] mixed with the draft's, as if drafted tokens were accepted too easily.

    Tokens with probability 0 keep it.
    """
    possible = np.where(rows > 0, draft_rows, 0.0)
    total = possible.sum(1, keepdims=True)
    pull = np.divide(possible, total, out=rows.copy(), where=total > 0)
    mixed: Floats = rows + strength * (pull - rows)
    return mixed


def favoured(rows: Floats, groups: Ints, group: int, strength: float = SMALL) -> Floats:
    """Rows [N, V] with raised odds for one group of tokens, as from a wrong mask or bias."""
    member = (groups == group).astype(np.float64)
    mass = rows @ member
    raised: Floats = rows * (1.0 + strength * (member[None] - mass[:, None]))
    return raised


def mean_total_variation(rows: Floats, others: Floats) -> float:
    """Mean total variation between rows [N, V]."""
    return float(np.abs(rows - others).sum(1).mean() / 2.0)
