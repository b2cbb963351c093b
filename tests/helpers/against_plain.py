"""Speculation beside plain decoding of the same texts."""

from __future__ import annotations

from typing import Any

import forerun
from forerun.params import SamplingParams


def accepted(engine: forerun.Engine, texts: Any, params: SamplingParams) -> float:
    """Assert that every output is plain decoding's; the share of drafted tokens that were accepted.

    Args:
        texts: as `Engine.generate` takes several.
    """
    completions = engine.generate(texts, params)
    for text, completion in zip(texts, completions, strict=True):
        plain = [event.token_id for event in engine.stream_plain(text, params)]
        assert list(completion.token_ids) == plain
    total = forerun.Stats.total(one.stats for one in completions)
    assert total.num_draft_tokens > 0
    return total.num_accepted_tokens / total.num_draft_tokens
