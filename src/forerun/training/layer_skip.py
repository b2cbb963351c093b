"""Training of adapters behind an early exit: a decoder layer that at first changes nothing.

An adapter learns like a draft model (see `training.draft`), but from the exit's states instead of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.drafters.own_layers import check_runs_apart
from forerun.errors import TrainingError
from forerun.heads.layer_skip import ARCHITECTURE, LayerSkipConfig
from forerun.models.checkpoint import Checkpoint
from forerun.training.draft import TextObjective
from forerun.training.settings import LayerSkipSettings
from forerun.training.target import Teacher
from forerun.training.untrained import PublishedModule, Untrained, layer_config, output_rows


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


def layer_skip(
    target: CausalLM, ids: Tensor, own: LayerSkipSettings, checkpoint: Checkpoint
) -> Untrained:
    """An adapter behind an early exit, in forerun's own layout: one decoder layer.

    Raises:
        TrainingError: for an exit that is not inside the target.
        UnsupportedModelError: for a target whose layers do not run apart.
    """
    check_runs_apart(target)
    below = own.exit_layer or max(1, round(target.num_layers / 10))
    if below >= target.num_layers:
        raise TrainingError(
            f"the exit is after layer {below} and {target.name} has {target.num_layers}; give an "
            "exit_layer below its last layer."
        )
    config = {
        **layer_config(target, checkpoint),
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "exit_layer": below,
        "num_target_layers": target.num_layers,
        "draft_vocab_size": len(ids),
    }
    read = LayerSkipConfig.read(config, "the config of a new head")
    module = LayerSkipModule(read, output_rows(target, ids), norm_of(target))
    teacher = Teacher(target, (below,), ids)
    objective = TextObjective(module, teacher, steps=own.steps, layer=below)
    return Untrained.head(module, objective, config, ids)
