"""Random trees."""

from __future__ import annotations

from hypothesis import strategies as st

from forerun.core import Tree


@st.composite
def shapes(draw: st.DrawFn, most: int = 12) -> Tree:
    count = draw(st.integers(1, most))
    return Tree(tuple(draw(st.integers(-1, node - 1)) for node in range(count)))
