"""Draft models of graded quality."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import distorted
from benchmarks.checkpoints import write_checkpoint
from benchmarks.shapes import build
from tests.helpers.forwards import run

pytestmark = pytest.mark.usefixtures("tiny_shapes")


def _logits(directory: Path) -> Tensor:
    model = build(str(directory), "fp32")
    return run(model, model.new_cache(1, 5), [[3, 1, 4, 1, 5]]).logits


@pytest.mark.parametrize("name", ["tiny", "tiny-tied"])
def test_logits_are_mixed(tmp_path: Path, name: str) -> None:
    """Whether the source has a head of its own or not."""
    source = write_checkpoint(name, tmp_path / "source")
    own, half, noise = (
        _logits(distorted.distorted(share, tmp_path / str(share), source))
        for share in (0.0, 0.5, 1.0)
    )
    assert torch.equal(own, _logits(source))
    assert (own - noise).abs().max() > 0.1
    # Weights are stored in bf16.
    torch.testing.assert_close(half, (own + noise) / 2, atol=0.01, rtol=0.0)


@pytest.mark.zoo
def test_a_worse_draft_is_accepted_less(capsys: pytest.CaptureFixture[str]) -> None:
    distorted.main(["--temperatures", "0", "--max-tokens", "12"])
    rows = capsys.readouterr().out.splitlines()[2:]
    good, middling, useless = (float(row.split("|")[3]) for row in rows)
    assert good > middling > useless
    assert useless < 0.05
