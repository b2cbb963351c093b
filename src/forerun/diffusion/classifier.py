"""A small digit classifier, in whose feature space samples are compared, and its file."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from forerun.errors import CheckpointError
from forerun.files import atomic_path, is_regular, printable

FEATURES = 32
"""Width of the features."""
NUM_CLASSES = 10
_CHANNELS = (8, 16, 32)


class Classifier(nn.Module):
    """A digit classifier: three levels of convolutions, a feature layer, and a linear head.

    Images are `[B, 1, 32, 32]` in [0, 1], features `[B, 32]`, logits `[B, 10]`.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for channels in _CHANNELS:
            layers += [
                nn.Conv2d(before, channels, 3, padding=1),
                nn.GroupNorm(4, channels),
                nn.SiLU(),
                nn.Conv2d(channels, channels, 3, stride=2, padding=1),
                nn.SiLU(),
            ]
            before = channels
        self.layers = nn.Sequential(*layers)
        self.to_features = nn.Linear(before * 16, FEATURES)
        self.head = nn.Linear(FEATURES, NUM_CLASSES)

    def features(self, images: Tensor) -> Tensor:
        """Features `[B, 32]` of images `[B, 1, 32, 32]` in [0, 1]."""
        hidden: Tensor = self.layers(images * 2.0 - 1.0).flatten(1)
        return nn.functional.silu(self.to_features(hidden))

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, 10]` of images `[B, 1, 32, 32]` in [0, 1]."""
        logits: Tensor = self.head(self.features(images))
        return logits


def save_classifier(classifier: Classifier, path: Path) -> None:
    """Write a classifier's weights in half precision, atomically."""
    weights = {name: t.detach().half().contiguous() for name, t in classifier.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file(weights, temporary)


def load_classifier(path: str | os.PathLike[str]) -> Classifier:
    """Read a classifier from its file.

    Raises:
        CheckpointError: for a missing file, or one that is not a classifier.
    """
    if not is_regular(path):
        raise CheckpointError(f"there is no classifier at {printable(path)}.")
    classifier = Classifier()
    try:
        weights = {name: tensor.float() for name, tensor in load_file(path).items()}
        classifier.load_state_dict(weights)
    except Exception as problem:  # safetensors raises its own error, torch a RuntimeError.
        raise CheckpointError(f"{printable(path)} is not a digit classifier.") from problem
    return classifier.eval().requires_grad_(False)


@torch.no_grad()
def in_batches(classifier: Classifier, images: Tensor, size: int = 256) -> tuple[Tensor, Tensor]:
    """Features `[B, 32]` and predicted labels `[B]` of images `[B, 1, 32, 32]` in [0, 1]."""
    features = torch.cat([classifier.features(part) for part in torch.split(images, size)])
    return features, classifier.head(features).argmax(-1)
