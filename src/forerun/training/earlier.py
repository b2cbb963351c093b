"""Starting points of a run: the weights of an earlier drafter, and the files of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import TrainingError
from forerun.files import atomic_path
from forerun.heads.files import HeadFiles
from forerun.heads.layers import draft_ids
from forerun.training.recipes import Untrained


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


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of an earlier run.

    Raises:
        TrainingError: for a broken file.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise broken(path) from error
    if not isinstance(content, dict):
        raise broken(path)
    return content


def broken(path: Path) -> TrainingError:
    """The error for a broken file of an earlier run."""
    return TrainingError(f"{path} is corrupt; delete {path.parent} to start again.")


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that a later run continues from.

    Raises:
        TrainingError: if it cannot be written; the earlier file then stays.
    """
    try:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content), "utf-8")
    except OSError as error:
        raise TrainingError(
            f"{path} cannot be written ({error}); give another directory."
        ) from error
