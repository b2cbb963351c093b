"""The classifier reads as it was saved, and measures in its features have known values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.errors import CheckpointError, ConfigError
from recipes.classifier import (
    Classifier,
    feature_distance,
    frechet_distance,
    label_accuracy,
    load_classifier,
    save_classifier,
    temporal_consistency,
)


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier().eval().requires_grad_(False)


def test_the_frechet_distance_of_known_gaussians() -> None:
    draws = np.random.default_rng(0)
    first = draws.normal(size=(200_000, 2)) * [1.0, 2.0]
    second = draws.normal(size=(200_000, 2)) * [3.0, 2.0] + [1.0, 0.0]
    # The means are 1 apart; one standard deviation is 1 and 3.
    assert frechet_distance(first, second) == pytest.approx(1.0 + (3.0 - 1.0) ** 2, rel=0.02)
    assert frechet_distance(first, first) == pytest.approx(0.0, abs=1e-6)


def test_feature_distance_sees_noise(classifier: Classifier) -> None:
    torch.manual_seed(0)
    real, same = torch.rand(2, 200, 1, 32, 32) * 0.5
    far = real.clone()
    far[:, :, 8:24] = 1.0
    near = feature_distance(classifier, same, real, rounds=20)
    off = feature_distance(classifier, far, real, rounds=20)
    assert near.high < off.low


def test_label_accuracy(classifier: Classifier) -> None:
    images = torch.rand(10, 1, 32, 32)
    labels = classifier(images).argmax(-1).tolist()
    assert label_accuracy(classifier, images, labels).value == 1.0
    wrong = [(label + 1) % 10 for label in labels]
    assert label_accuracy(classifier, images, wrong).value == 0.0


def test_consistency_of_still_and_of_unrelated_frames(classifier: Classifier) -> None:
    still = torch.rand(3, 1, 1, 32, 32).expand(3, 6, 1, 32, 32)
    assert temporal_consistency(classifier, still).value == pytest.approx(1.0)
    torch.manual_seed(0)
    unrelated = torch.rand(3, 6, 1, 32, 32) * torch.rand(3, 6, 1, 1, 1)
    assert temporal_consistency(classifier, unrelated).value < 1.0 - 1e-4
    with pytest.raises(ConfigError, match="2 frames"):
        temporal_consistency(classifier, still[:, :1])


def test_a_saved_classifier_reads_as_before(classifier: Classifier, tmp_path: Path) -> None:
    path = tmp_path / "classifier.safetensors"
    save_classifier(classifier, path)
    images = torch.rand(4, 1, 32, 32)
    torch.testing.assert_close(
        load_classifier(path)(images), classifier(images), rtol=2e-2, atol=2e-2
    )
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a digit classifier"):
        load_classifier(path)
    with pytest.raises(CheckpointError, match="no classifier"):
        load_classifier(tmp_path / "missing")
