"""Training adapters behind an early exit: a decoder layer that begins as the plain exit.

It learns like a draft model (see `training.draft`), from the exit's states in place of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.heads.layer_skip import LayerSkipConfig
from forerun.training.published import PublishedModule


class LayerSkipModule(PublishedModule):
    """An adapter as it is trained.

    Args:
        config: of the adapter.
        rows: of the target's output head, those that are drafted from, [Vd, hidden_size]; they are not
            trained, and not the adapter's own.
        norm: the weights [hidden_size] that its norm begins with.
    """

    output: Tensor

    def __init__(self, config: LayerSkipConfig, rows: Tensor, norm: Tensor) -> None:
        shapes = {name: shape for name, shape in config.shapes().items() if name != "d2t"}
        super().__init__(config.layers, shapes)
        self.register_buffer("output", rows.detach().clone().float(), persistent=False)
        with torch.no_grad():
            self.weight("norm").copy_(norm)
            for layer in range(config.layers.num_layers):
                # The layer adds nothing yet.
                self.weight(f"layers.{layer}.self_attn.o_proj").zero_()
                self.weight(f"layers.{layer}.mlp.down_proj").zero_()

    def forward(self, states: Tensor) -> Tensor:
        """What the output head reads after each token of texts, from the exit's states of all of them,
        both [B, S, hidden_size]."""
        return self.normed(self.over_text(states.float()), "norm")


def norm_of(target: CausalLM) -> Tensor:
    """The weights [hidden_size] of a target's final norm, read off from what it makes of signs; of a layer
    norm without its bias."""
    signs = torch.ones(1, 1, target.hidden_size, dtype=target.dtype, device=target.device)
    signs[..., 1::2] = -1
    spread = target.final_norm(signs) - target.final_norm(-signs)
    weights: Tensor = (spread * signs)[0, 0].float() / 2
    return weights
