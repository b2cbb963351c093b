"""A gated MLP on the compiled kernels, for what stands between an early exit and the output head."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun import _native
from forerun.models.cpu.threads import shared_runtime


class GatedMlp:
    """From hidden states [..., h] to `hidden` + down(silu(gate(x)) * up(x)), x the normed ones.

    What a token becomes depends on that token alone, bit for bit.

    Args:
        norm: [h].
        gate, up: [i, h].
        down: [h, i].
        norm_eps: of the norm.
        precision: of the weights: `fp32`, `bf16`, `int8` or `int4`.
        level: the instruction set; empty takes the best there is.
    """

    def __init__(
        self,
        norm: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        norm_eps: float,
        precision: str,
        level: str = "",
    ) -> None:
        arrays = [one.detach().float().contiguous().numpy() for one in (norm, gate, up, down)]
        self._native = _native.kernels.GatedMlp(
            arrays[0], arrays[1], arrays[2], arrays[3], norm_eps, precision, level
        )
        self._runtime = shared_runtime()

    def __call__(self, hidden: Tensor) -> Tensor:
        """Hidden states of the same shape, float32."""
        states = hidden.detach().float().reshape(-1, hidden.shape[-1]).contiguous()
        out = torch.empty_like(states)
        self._native.run(self._runtime, states.numpy(), out.numpy())
        return out.view(hidden.shape)
