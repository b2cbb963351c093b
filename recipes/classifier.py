"""A small digit classifier, and measures of samples in its feature space.

Every mean over samples comes with a bootstrap interval.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from forerun.errors import CheckpointError, ConfigError
from forerun.files import atomic_path, is_regular, printable
from forerun.measure.intervals import Interval, mean

Array = NDArray[np.float64]

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


def frechet_distance(first: Array, second: Array) -> float:
    """Fréchet distance of the Gaussians with the means and covariances of two sets `[B, n]`.

    With features of Inception it is known as FID. Here the features are a small classifier's, so values
    can be compared with each other only.
    """
    means = first.mean(0), second.mean(0)
    covariances = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    # The trace of the root of a product is the sum of the roots of its eigenvalues, which are real and not
    # negative apart from rounding.
    eigenvalues = np.linalg.eigvals(covariances[0] @ covariances[1]).real.clip(0.0)
    gap = float(np.square(means[0] - means[1]).sum())
    traces = float(np.trace(covariances[0]) + np.trace(covariances[1]))
    return gap + traces - 2.0 * float(np.sqrt(eigenvalues).sum())


def feature_distance(
    classifier: Classifier, samples: Tensor, real: Tensor, *, rounds: int = 100
) -> Interval:
    """Fréchet distance of samples from real images, both `[B, 1, 32, 32]` in [0, 1].

    Samples and real images are resampled for the interval. Resampling repeats some, which increases the
    distance, so the interval is shifted until its median is the value. Use many more samples than the 32
    features.
    """
    sets = [in_batches(classifier, images)[0].double().numpy() for images in (samples, real)]
    draws = np.random.default_rng(0)
    found = []
    for _ in range(rounds):
        drawn = [one[draws.integers(0, len(one), len(one))] for one in sets]
        found.append(frechet_distance(drawn[0], drawn[1]))
    value = frechet_distance(sets[0], sets[1])
    low, middle, high = np.quantile(found, (0.025, 0.5, 0.975))
    return Interval(value, float(value + low - middle), float(value + high - middle))


def label_accuracy(classifier: Classifier, samples: Tensor, labels: Sequence[int]) -> Interval:
    """Share of samples `[B, 1, 32, 32]` in [0, 1] that the classifier assigns to their label."""
    right = (in_batches(classifier, samples)[1] == torch.as_tensor(labels)).double().numpy()
    return mean(right)


def temporal_consistency(classifier: Classifier, clips: Tensor) -> Interval:
    """Similarity of neighbouring frames: the mean cosine of their features.

    Args:
        classifier: classifier whose features are compared; they depend on the digit more than on its place.
        clips: clips `[B, F, 1, 32, 32]` in [0, 1], of at least 2 frames.

    Raises:
        ConfigError: for clips of a single frame.
    """
    count, frames = clips.shape[:2]
    if frames < 2:
        raise ConfigError("consistency over time needs clips of at least 2 frames.")
    features = in_batches(classifier, clips.flatten(0, 1))[0].view(count, frames, -1)
    cosines = torch.nn.functional.cosine_similarity(features[:, 1:], features[:, :-1], dim=-1)
    return mean(cosines.mean(1).double().numpy())
