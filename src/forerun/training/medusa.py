"""Training of Medusa's heads: their objective on a target's own answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.errors import TrainingError
from forerun.heads.medusa import MedusaConfig
from forerun.models.checkpoint import Checkpoint
from forerun.training.compiled import in_bf16
from forerun.training.objective import Drafts, Objective
from forerun.training.published import NamedModule
from forerun.training.settings import MedusaSettings
from forerun.training.target import Lesson, Teacher
from forerun.training.untrained import Untrained, output_rows


class MedusaModule(NamedModule):
    """Medusa's heads in training; the parameters have the names of vLLM's layout.

    Args:
        config: config of the heads.
        output_rows: initial output matrices of heads that have their own, [Vd, hidden_size]; usually the
            target's.
    """

    def __init__(self, config: MedusaConfig, output_rows: Tensor | None = None) -> None:
        # As in Medusa's own code, heads are initialized as copies of the output head.
        rows = {} if output_rows is None else dict.fromkeys(config.output_names(), output_rows)
        super().__init__({**new_tensors(config), **rows})
        self.config = config

    def forward(self, normed: Tensor) -> Tensor:
        """States that the output matrices read, [..., num_heads, hidden_size].

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


def new_tensors(config: MedusaConfig, *, spread: float = 0.0, seed: int = 0) -> dict[str, Tensor]:
    """Weights of untrained heads.

    With a spread of 0 each head gives the logits of the output matrix for the state itself, the
    starting point of Medusa's training.

    Args:
        config: architecture of the heads.
        spread: scale of a block's contribution; weights have a standard deviation of spread /
            sqrt(hidden_size).
        seed: seed of the weights.
    """
    generator = torch.Generator().manual_seed(seed)
    deviation = config.hidden_size**-0.5
    tensors = {}
    for name, shape in config.shapes().items():
        scale = deviation if name.startswith("lm_heads") else spread * deviation
        tensors[name] = torch.randn(shape, generator=generator) * scale
        if name.endswith("bias"):
            tensors[name].zero_()
    return tensors


@dataclass(frozen=True)
class _Tokens:
    """Tokens that heads predict.

    Args:
        there: True for tokens after each anchor that the target wrote, along with all before them,
            [A, heads].
        anchors: row and position of the states that are read, each [A].
        rows: index of the target's row for each token, [N].
        heads: index of the head that predicts each token, [N].
    """

    there: Tensor
    anchors: tuple[Tensor, Tensor]
    rows: Tensor
    heads: Tensor

    @classmethod
    def drawn(cls, lesson: Lesson, heads: int, density: float, seed: int) -> _Tokens:
        """Tokens of drafts that begin at a random share of the possible states.

        A draft begins at a state two places before a token of an answer. The target itself predicts the
        token between.
        """
        size, device = lesson.rows.shape[1], lesson.rows.device
        head_ids = torch.arange(heads, device=device)
        places = torch.arange(size, device=device)[:, None] + 2 + head_ids
        padded = functional.pad(lesson.rows, (0, heads + 2), value=-1)
        own = padded[:, places]
        generator = torch.Generator().manual_seed(seed * 1_000_003 + int(lesson.rows.max()))
        # Drawn on the CPU, so that drafts begin at the same tokens on every device.
        drawn = (torch.rand(lesson.rows.shape, generator=generator) < density).to(device)
        row, place = ((own[..., 0] >= 0) & drawn).nonzero(as_tuple=True)
        own = own[row, place]
        there = (own >= 0).int().cumprod(-1).bool()
        return cls(there, (row, place), own[there], head_ids.expand(own.shape)[there])


class MedusaObjective(Objective):
    """Training objective of Medusa's heads: the target's rows two or more places ahead.

    Args:
        module: heads to train.
        teacher: the target, over the draft's vocabulary; it must show the states after its last layer.
        output_rows: rows of the target's output head, over the draft's vocabulary, [Vd, hidden_size].
        density: share of the answers' tokens at which drafts begin.
        decay: see `Objective`.
        seed: seed of the choice of those tokens.

    Raises:
        TrainingError: for a teacher that does not show those states.
    """

    def __init__(
        self,
        module: MedusaModule,
        teacher: Teacher,
        output_rows: Tensor,
        *,
        density: float = 0.5,
        decay: float = 0.8,
        seed: int = 0,
    ) -> None:
        if teacher.model.num_layers not in teacher.hidden_layers:
            raise TrainingError(
                f"Medusa's heads read hidden layer {teacher.model.num_layers} of {teacher.model.name}, and "
                f"the teacher shows {list(teacher.hidden_layers)}; add it."
            )
        super().__init__(teacher, decay)
        self.module, self._output = module, output_rows
        self._density, self._seed = density, seed

    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts of the heads on a batch: in training after some tokens, otherwise after all."""
        density = self._density if training else 1.0
        tokens = _Tokens.drawn(lesson, self.module.config.num_heads, density, self._seed)
        rows, places = tokens.anchors
        factors = [
            (some, [(states, matrix)]) for some, states, matrix in self._factors(lesson, tokens)
        ]
        return Drafts(rows, places + 2, tokens.there, tokens.rows, factors)

    def _factors(self, lesson: Lesson, tokens: _Tokens) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each output matrix, with a mask of its tokens (bool [N]) and the states that it reads.

        Returns:
            Triples of mask, states and matrix.
        """
        last = lesson.hidden[self.teacher.model.num_layers][tokens.anchors]
        normed = self.teacher.model.final_norm(last[None])[0]
        with in_bf16(normed.device):
            states = self.module(normed)[tokens.there].bfloat16()
        if not self.module.config.own_outputs:
            every = torch.ones(len(states), dtype=torch.bool, device=states.device)
            return [(every, states, self._output.bfloat16())]
        factors = []
        for head, name in enumerate(self.module.config.output_names()):
            some = tokens.heads == head
            factors.append((some, states[some], self.module.get_parameter(name).bfloat16()))
        return factors


def medusa(
    target: CausalLM,
    ids: Tensor,
    own: MedusaSettings,
    checkpoint: Checkpoint,  # noqa: ARG001
) -> Untrained:
    """Medusa's heads in vLLM's layout, with the target's output head."""
    read = MedusaConfig(target.hidden_size, target.vocab_size, own.heads, own.layers, len(ids))
    module = MedusaModule(read)
    teacher = Teacher(target, (target.num_layers,), ids)
    objective = MedusaObjective(module, teacher, output_rows(target, ids), density=own.density)
    return Untrained.head(module, objective, read.published(), ids)
