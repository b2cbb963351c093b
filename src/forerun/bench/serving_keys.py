"""Acceptance under the names that serving benchmarks use: `vllm bench serve`, AIPerf."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from forerun.core import Stats


def serving_keys(stats: Stats) -> dict[str, Any]:
    """Counters of a run as vLLM's `bench serve` and AIPerf's acceptance record name them.

    vLLM gives the acceptance rate in per cent, and its acceptance length is 1 + accepted / drafts, the bonus
    token always counted. AIPerf's histogram counts rounds by how many drafted tokens they accepted, without
    empty entries.
    """
    drafts, drafted, accepted = (
        stats.num_drafts,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    )
    if not drafts:
        return {"spec_decode_num_drafts": 0}
    positions = stats.num_accepted_tokens_per_pos
    return {
        "spec_decode_acceptance_rate": 100 * accepted / drafted,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [count / drafts for count in positions],
        "speculative_decoding": {
            "engine": "forerun",
            "mean_acceptance_length": 1 + accepted / drafts,
            "draft_acceptance_rate": accepted / drafted,
            "acceptance_histogram": acceptance_histogram(stats),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_steps": drafts,
            "num_spec_tokens": len(positions),
        },
    }


def acceptance_histogram(stats: Stats) -> dict[str, int]:
    """Rounds that drafted, by the number of drafted tokens that they accepted."""
    reached = [stats.num_drafts, *stats.num_accepted_tokens_per_pos, 0]
    counts = [here - beyond for here, beyond in pairwise(reached)]
    return {str(accepted): count for accepted, count in enumerate(counts) if count}
