"""What is written into the data package is what was trained, but for its rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun.errors import CheckpointError
from forerun.export.common_rules import value_rules
from forerun.export.findings import TITLES
from forerun.export.head import PublishedHead
from forerun.heads.files import HeadFiles, write_head
from recipes.publish import publish_head

SHAPES = {"fc.weight": (64, 96), "norm.weight": (64,), "narrow.weight": (4, 5)}


def trained(directory: Path) -> HeadFiles:
    tensors = {name: torch.randn(shape).bfloat16() for name, shape in SHAPES.items()}
    tensors["fc.weight"][0] = 0.0
    write_head(
        directory, {"eagle_config": {}}, {**tensors, "d2t": torch.arange(7)}, {"README.md": "x"}
    )
    return HeadFiles.open(directory)


def test_a_head_in_8_bits_has_the_same_tensors(tmp_path: Path) -> None:
    head = trained(tmp_path / "trained")
    publish_head(head.directory, tmp_path / "small")
    small = HeadFiles.open(tmp_path / "small")
    assert small.config == head.config
    assert (tmp_path / "small" / "README.md").read_text() == "x"
    assert small.names == head.names == set(small.tensors)
    for name, tensor in head.tensors.items():
        if name == "fc.weight":
            largest = tensor.float().unflatten(1, (-1, 32)).abs().amax(2).repeat_interleave(32, 1)
            error = (small.tensors[name].float() - tensor.float()).abs()
            # Half a step, and a rounding to bf16.
            assert bool((error <= largest / 254 + largest / 256 + 1e-6).all())
        else:
            assert torch.equal(small.tensors[name], tensor)
    assert small.weight_bytes < 0.7 * head.weight_bytes


@pytest.mark.parametrize(
    ("name", "scales"),
    [("fc.weight_scale", (63, 3)), ("fc.weight_scale", (64, 5)), ("other_scale", (64, 3))],
)
def test_scales_that_fit_nothing_are_refused(
    tmp_path: Path, name: str, scales: tuple[int, ...]
) -> None:
    codes = torch.ones(64, 96, dtype=torch.int8)
    write_head(tmp_path, {"eagle_config": {}}, {"fc.weight": codes, name: torch.ones(scales)})
    with pytest.raises(CheckpointError, match="scale"):
        _ = HeadFiles.open(tmp_path).tensors


def test_other_engines_do_not_read_it_and_a_copy_they_do(tmp_path: Path) -> None:
    head = trained(tmp_path / "trained")
    publish_head(head.directory, tmp_path / "small")
    small = HeadFiles.open(tmp_path / "small")
    assert small.in_8_bits
    write_head(tmp_path / "copy", small.config, small.tensors)
    assert not HeadFiles.open(tmp_path / "copy").in_8_bits
    published = PublishedHead("head", small.config, small.tensors, in_8_bits=True)
    found = {finding.engine for finding in value_rules(published) if finding.trap == "8 bits"}
    assert found == set(TITLES)
