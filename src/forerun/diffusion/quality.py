"""Quality of samples, compared with the full sampler's from the same noise and by themselves.

Every mean over samples comes with a bootstrap interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.diffusion.classifier import Classifier, in_batches
from forerun.errors import ConfigError
from forerun.measure.intervals import Interval, mean

Array = NDArray[np.float64]


def squared_errors(samples: Tensor, reference: Tensor) -> Array:
    """Mean squared error of each sample against its reference from the same noise, `[B]`.

    Raises:
        ConfigError: for samples of another shape, such as clips with another number of frames.
    """
    if samples.shape != reference.shape:
        raise ConfigError(
            f"samples of shape {tuple(samples.shape)} cannot be compared with a reference of "
            f"{tuple(reference.shape)}."
        )
    return (samples - reference).double().square().flatten(1).mean(1).numpy()


def mean_squared_error(samples: Tensor, reference: Tensor) -> Interval:
    """Mean squared error of samples `[B, ...]` in [0, 1] against their references."""
    return mean(squared_errors(samples, reference))


def psnr(samples: Tensor, reference: Tensor) -> Interval:
    """Peak signal-to-noise ratio in dB of samples in [0, 1], from their mean squared error."""
    error = mean_squared_error(samples, reference)
    bounds = (error.value, error.high, error.low)
    return Interval(*(-10.0 * math.log10(max(bound, 1e-12)) for bound in bounds))


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
