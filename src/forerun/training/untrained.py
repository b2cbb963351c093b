"""An untrained drafter, parts that all recipes share, and beginnings with the weights of an earlier head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forerun.contracts import CausalLM
from forerun.errors import TrainingError
from forerun.heads.files import HeadFiles
from forerun.heads.layers import borrowed_rows, draft_ids
from forerun.models.checkpoint import Checkpoint
from forerun.training.objective import Objective
from forerun.training.published import NamedModule


@dataclass(frozen=True)
class Untrained:
    """A drafter before its training.

    Args:
        module: module with the parameters.
        objective: objective that trains the module.
        config: content of the drafter's config.json.
        hidden_layers: hidden layers of the target that the drafter reads, numbered as in
            `ForwardOutput.hidden`.
        tensors: function that returns the module's current tensors by published name.
        files: further files of the drafter's directory, by name.
    """

    module: nn.Module
    objective: Objective
    config: Mapping[str, Any]
    hidden_layers: tuple[int, ...]
    tensors: Callable[[], Mapping[str, Tensor]]
    files: Mapping[str, bytes] = field(default_factory=dict)

    def stored(self) -> dict[str, Tensor]:
        """The drafter's tensors as they are written: in bf16, and integers as they are."""
        return {
            name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            for name, tensor in self.tensors().items()
        }

    def weight_bytes(self) -> tuple[int, int]:
        """Bytes of the drafter's tensors, and of the trained ones among them."""
        sizes = {name: tensor.nbytes for name, tensor in self.stored().items()}
        trained = {name for name, own in self.module.named_parameters() if own.requires_grad}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if name in trained)

    @classmethod
    def head(
        cls, module: NamedModule, objective: Objective, config: Mapping[str, Any], ids: Tensor
    ) -> Untrained:
        """A head that can draft the target's tokens `ids`."""
        teacher = objective.teacher
        drafted = None if len(ids) == teacher.model.vocab_size else ids
        return cls(
            module, objective, config, teacher.hidden_layers, lambda: module.published(drafted)
        )


def output_rows(target: CausalLM, ids: Tensor) -> Tensor:
    """Rows of the target's output head, [Vd, hidden_size].

    Raises:
        TrainingError: for a target whose head is more than one product.
    """
    rows = borrowed_rows(target, ids)
    if rows is None:
        raise TrainingError(
            f"the output head of {target.name} is more than a product with a matrix (its logits are "
            "capped, or have a bias); heads that borrow it cannot be trained."
        )
    return rows


def layer_config(
    target: CausalLM, checkpoint: Checkpoint, size: int | None = None
) -> dict[str, Any]:
    """Config of a decoder layer for a hidden size, by default the target's.

    Heads have size 64 if that divides the hidden size. The base of the rotation is the target's.
    """
    size = size or target.hidden_size
    rope = getattr(checkpoint.config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    dim = next(d for d in (64, 32, 16, 8, 4, 2) if size % d == 0)
    heads = size // dim
    groups = next(n for n in (3, 4, 2, 1) if heads % n == 0)
    return {
        "hidden_size": size,
        "intermediate_size": max(64, round(size * 8 / 3 / 64) * 64),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // groups,
        "head_dim": dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": target.max_context,
        "vocab_size": target.vocab_size,
        "dtype": "bfloat16",
        "rope_theta": float(theta or 10000.0),
    }


def frequent_ids(counts: Tensor, size: int, always: Iterable[int]) -> Tensor:
    """Ids of the tokens that a head can draft, ascending: the most frequent ones, and stop tokens.

    Of equally frequent tokens, the lower ids come first.

    Args:
        counts: count of each token in the answers, [V].
        size: size of the draft's vocabulary.
        always: stop tokens, which are always included.
    """
    ranked = counts.double() - torch.arange(len(counts)) / (2 * len(counts))
    ranked[list(always)] = torch.inf
    return ranked.topk(min(size, len(counts))).indices.sort().values


def ids_of(head: HeadFiles, target: CausalLM) -> Tensor:
    """Ids of the target's tokens that a head can draft."""
    if "d2t" not in head.tensors:
        return torch.arange(target.vocab_size)
    return draft_ids(head.tensors["d2t"], target.vocab_size, head.name)


def tokens_of(head: HeadFiles) -> int:
    """Number of tokens that a head and its predecessors were trained on; 0 if its files do not say."""
    parts = (("report", "tokens"), ("recipe", "begun_with_tokens"))
    found = [dict(head.own.get(part) or {}).get(name) for part, name in parts]
    return sum(tokens for tokens in found if isinstance(tokens, int))


def take_weights(made: Untrained, head: HeadFiles) -> None:
    """Load an earlier drafter's weights into a new one, which keeps untrained weights that it lacks.

    Raises:
        TrainingError: for weights of another shape.
    """
    wanted = made.module.state_dict()
    lent = {name: p.detach() for name, p in made.module.named_parameters() if not p.requires_grad}
    own = {name: tensor.float() for name, tensor in head.tensors.items() if name in wanted}
    given = {**lent, **own}
    differ = [
        name for name in wanted if getattr(given.get(name), "shape", None) != wanted[name].shape
    ]
    if differ:
        raise TrainingError(
            f"{head.name} is of another shape ({differ[0]} differs); give the settings that it was "
            "made with, as its forerun.json has them."
        )
    made.module.load_state_dict(given)
