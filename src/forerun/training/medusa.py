"""Training of Medusa's heads: their objective on a target's own answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.heads.medusa import MedusaConfig
from forerun.models.checkpoint import Checkpoint
from forerun.training.objective import Drafts, Objective, at
from forerun.training.settings import MedusaSettings
from forerun.training.target import Lesson, Teacher
from forerun.training.untrained import NamedModule, Untrained, draft_offsets, output_rows


class MedusaModule(NamedModule):
    """Medusa's heads in training; the parameters have the names of vLLM's layout.

    At first all weights are zero, so that each head gives the target's logits for the state itself.

    Args:
        config: config of the heads.
        rows: the target's output matrix over the draft's vocabulary, [Vd, hidden_size], which they share.
    """

    def __init__(self, config: MedusaConfig, rows: Tensor) -> None:
        super().__init__({name: torch.zeros(shape) for name, shape in config.shapes().items()})
        self.config = config
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, normed: Tensor) -> Tensor:
        """States that the output matrix reads, [..., num_heads, hidden_size].

        Args:
            normed: states of the target after its final norm, [..., hidden_size].
        """
        states = []
        for names in self.config.block_names():
            state = normed
            for name in names:
                state = state + functional.silu(self.linear(state, name.removesuffix(".weight")))
            states.append(state)
        return torch.stack(states, -2)


class MedusaObjective(Objective):
    """Training objective of Medusa's heads: the target's rows two or more places ahead."""

    decay = 0.8

    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts of the heads on a batch: in training after some tokens, otherwise after all."""
        density = self.density if training else 1.0
        # The target itself predicts the token between an anchor and the first drafted token.
        following = self.drawn(lesson, 2, self.module.config.num_heads, density)
        last = at(lesson.hidden[self.teacher.model.num_layers], following.anchors)
        normed = self.teacher.model.final_norm(last)
        with torch.autocast(normed.device.type, torch.bfloat16):
            states = self.module(normed)[following.there].bfloat16()
        return Drafts(following, states, self.module.rows.bfloat16())


def medusa(
    target: CausalLM,
    ids: Tensor,
    own: MedusaSettings,
    checkpoint: Checkpoint,  # noqa: ARG001
) -> Untrained:
    """Medusa's heads in vLLM's layout, with the target's output head."""
    read = MedusaConfig(target.hidden_size, target.vocab_size, own.heads, own.layers, len(ids))
    module = MedusaModule(read, output_rows(target, ids))
    teacher = Teacher(target, (target.num_layers,), ids)
    objective = MedusaObjective(module, teacher, density=own.density)
    return Untrained(module, objective, read.published(), draft_offsets(ids, target.vocab_size))
