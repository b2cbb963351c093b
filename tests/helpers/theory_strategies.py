"""What the tests of the theory draw their cases from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from forerun.simulation.simulator import Context


@st.composite
def row_pairs(draw: st.DrawFn, largest: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Two rows over one vocabulary; zeros and equal rows are likely, one token possible."""
    size = draw(st.integers(1, largest))
    weights = st.lists(st.just(0.0) | st.floats(1e-3, 1.0), min_size=size, max_size=size)
    p = np.array(draw(weights.filter(any)))
    q = p if draw(st.booleans()) else np.array(draw(weights.filter(any)))
    return p / p.sum(), q / q.sum()


class RandomRows:
    """Random rows for every context, a fifth of their entries zero."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size, self.seed = vocab_size, seed

    def __call__(self, context: Context, /) -> np.ndarray:
        random = np.random.default_rng([self.seed, *context])
        row = random.dirichlet(np.ones(self.vocab_size))
        kept = np.where(random.random(self.vocab_size) < 0.2, 0.0, row)
        return kept / kept.sum() if kept.any() else row
