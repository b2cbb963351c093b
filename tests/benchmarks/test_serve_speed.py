"""Times of streams count the tokens that a server reports, whatever chunks they come in."""

from __future__ import annotations

from benchmarks.serve_speed import Times


def test_time_per_token_divides_by_the_reported_tokens() -> None:
    times = Times()
    # Four chunks with text of nine tokens, and as many tokens each in a chunk of its own.
    times.add(0.0, [(1.0, 1), (2.0, 1), (3.0, 1), (5.0, 1)], 9)
    times.add(0.0, [(1.0 + place / 2, 1) for place in range(9)])
    assert times.tokens == 18
    assert times.each == [0.5, 0.5]
