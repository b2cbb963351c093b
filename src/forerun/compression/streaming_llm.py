"""Eviction of all but sinks and a sliding window (StreamingLLM: Xiao et al., arXiv 2309.17453)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.compression.base import Held, Method

if TYPE_CHECKING:
    from torch import Tensor


class StreamingLLM(Method):
    """Keeps the newest tokens, beside the sinks."""

    name = "streaming_llm"

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        import torch

        heads, size, _ = held.shape
        return torch.arange(size, device=held.queries.slots.device).float().expand(heads, size)
