"""Training of adapters behind an early exit: a decoder layer that at first changes nothing.

An adapter learns like a draft model (see `training.draft`), but from the exit's states instead of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.heads.layer_skip import LayerSkipConfig
from forerun.training.published import PublishedModule


class LayerSkipModule(PublishedModule):
    """An adapter in training.

    Args:
        config: config of the adapter.
        rows: rows of the target's output head over the draft's vocabulary, [Vd, hidden_size]. They are
            neither trained nor stored with the adapter.
        norm: initial weights of the adapter's norm, [hidden_size].
    """

    output: Tensor

    def __init__(self, config: LayerSkipConfig, rows: Tensor, norm: Tensor) -> None:
        shapes = {name: shape for name, shape in config.shapes().items() if name != "d2t"}
        super().__init__(config.layers, shapes)
        self.register_buffer("output", rows.detach().clone().float(), persistent=False)
        with torch.no_grad():
            self.weight("norm").copy_(norm)
            for layer in range(config.layers.num_layers):
                # At first the layer adds nothing.
                self.weight(f"layers.{layer}.self_attn.o_proj").zero_()
                self.weight(f"layers.{layer}.mlp.down_proj").zero_()

    def forward(self, states: Tensor) -> Tensor:
        """Input of the output head after each token, from the exit's states, both [B, S, hidden_size]."""
        return self.normed(self.over_text(states.float()), "norm")


def norm_of(target: CausalLM) -> Tensor:
    """Weights of a target's final norm, [hidden_size], found by applying the norm to signs.

    The bias of a layer norm is left out.
    """
    signs = torch.ones(1, 1, target.hidden_size, dtype=target.dtype, device=target.device)
    signs[..., 1::2] = -1
    spread = target.final_norm(signs) - target.final_norm(-signs)
    weights: Tensor = (spread * signs)[0, 0].float() / 2
    return weights
