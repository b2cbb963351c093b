"""What the tests of the theory draw their cases from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


@st.composite
def row_pairs(draw: st.DrawFn, largest: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Two rows over one vocabulary; zeros and equal rows are likely, one token possible."""
    size = draw(st.integers(1, largest))
    weights = st.lists(st.just(0.0) | st.floats(1e-3, 1.0), min_size=size, max_size=size)
    p = np.array(draw(weights.filter(any)))
    q = p if draw(st.booleans()) else np.array(draw(weights.filter(any)))
    return p / p.sum(), q / q.sum()
