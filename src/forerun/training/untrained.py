"""Drafters before their training: modules with published names, and the parts that all recipes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.errors import TrainingError
from forerun.heads.files import HeadFiles
from forerun.heads.layers import borrowed_rows, draft_ids
from forerun.models.checkpoint import Checkpoint
from forerun.training.objective import Objective


class NamedModule(nn.Module):
    """A module whose parameters have the names of a published layout.

    Args:
        tensors: initial values by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            hang(self, name, tensor.detach().clone().float())

    def weight(self, name: str) -> Tensor:
        """The weight parameter of a submodule."""
        return self.get_parameter(f"{name}.weight")

    def linear(self, hidden: Tensor, name: str) -> Tensor:
        """Apply a linear submodule, with its bias if it has one."""
        own = dict(self.get_submodule(name).named_parameters(recurse=False))
        return functional.linear(hidden, own["weight"], own.get("bias"))


def hang(owner: nn.Module, name: str, tensor: Tensor) -> nn.Parameter:
    """Register a tensor as a parameter under a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    parameter = nn.Parameter(tensor)
    owner.register_parameter(last, parameter)
    return parameter


@dataclass(frozen=True)
class Untrained:
    """A drafter before its training.

    Args:
        module: module whose parameters have the published names.
        objective: objective that trains the module.
        config: content of the drafter's config.json.
        vocabulary: tensors that map the draft's vocabulary to the target's, by published name.
        files: further files of the drafter's directory, by name.
    """

    module: nn.Module
    objective: Objective
    config: Mapping[str, Any]
    vocabulary: Mapping[str, Tensor] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def stored(self) -> dict[str, Tensor]:
        """The drafter's tensors as they are written: in bf16, and those of the vocabulary as they are."""
        # Tied matrices are one parameter.
        weights = self.module.named_parameters()
        return {**{name: own.detach().bfloat16() for name, own in weights}, **self.vocabulary}

    def weight_bytes(self) -> tuple[int, int]:
        """Bytes of the drafter's tensors, and of the trained ones among them."""
        sizes = {name: tensor.nbytes for name, tensor in self.stored().items()}
        trained = {name for name, own in self.module.named_parameters() if own.requires_grad}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if name in trained)


def draft_offsets(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """Tensor d2t of the target's tokens `ids` that can be drafted; nothing if they are all."""
    return {} if len(ids) == vocab_size else {"d2t": ids - torch.arange(len(ids))}


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


def take_weights(made: Untrained, head: HeadFiles) -> None:
    """Load an earlier drafter's weights into a new one, which keeps untrained weights that it lacks.

    Raises:
        TrainingError: for weights of another shape.
    """
    parameters = dict(made.module.named_parameters())
    lent = {name: own for name, own in parameters.items() if not own.requires_grad}
    given = {**lent, **{name: own for name, own in head.tensors.items() if name in parameters}}
    differ = [
        name
        for name, own in parameters.items()
        if name not in given or given[name].shape != own.shape
    ]
    if differ:
        raise TrainingError(
            f"{head.name} is of another shape ({differ[0]} differs); give the settings that it was "
            "made with, as its forerun.json has them."
        )
    with torch.no_grad():
        for name, own in parameters.items():
            own.copy_(given[name])
