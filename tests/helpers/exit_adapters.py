"""Random exit adapters."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.drafters.exits.exit_adapter import ExitAdapter


def adapter_for(target: CausalLM, exit_layer: int, seed: int = 0) -> ExitAdapter:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    width = target.hidden_size
    return ExitAdapter(
        exit_layer, "tiny", some(width) + 1, some(8, width), some(8, width), some(width, 8)
    )
