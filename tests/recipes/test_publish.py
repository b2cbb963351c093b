"""What is written into the data package is what was trained, but for its rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun.errors import CheckpointError
from forerun.export.head import TITLES, PublishedHead
from forerun.export.rules import value_rules
from forerun.heads.files import HeadFiles, write_head
from recipes.publish import in_4_bits, publish_head
from tests.helpers.drafter_runs import run_of, save_data, save_target

LAYER = "layers.0.mlp.up_proj.weight"
SHAPES = {"fc.weight": (64, 96), LAYER: (8, 64), "norm.weight": (64,), "narrow.weight": (4, 5)}


def trained(directory: Path) -> HeadFiles:
    tensors = {name: torch.randn(shape).bfloat16() for name, shape in SHAPES.items()}
    tensors["fc.weight"][0] = tensors[LAYER][0] = 0.0
    tensors["lm_head.weight"] = torch.ones(7, 96)
    write_head(
        directory, {"eagle_config": {}}, {**tensors, "d2t": torch.arange(7)}, {"README.md": "x"}
    )
    return HeadFiles.open(directory)


def test_a_head_in_few_bits_has_the_same_tensors(tmp_path: Path) -> None:
    head = trained(tmp_path / "trained")
    publish_head(head.directory, tmp_path / "small")
    small = HeadFiles.open(tmp_path / "small")
    assert small.config == head.config
    assert (tmp_path / "small" / "README.md").read_text() == "x"
    # The target lends the rows of its output head.
    assert small.names == head.names - {"lm_head.weight"} == set(small.tensors)
    for name, tensor in small.tensors.items():
        if name in ("fc.weight", LAYER):
            whole = head.tensors[name].float()
            largest = whole.unflatten(1, (-1, 32)).abs().amax(2).repeat_interleave(32, 1)
            error = (tensor.float() - whole).abs()
            # Half a step, a whole one at the end of 4 bits that lacks a code, and a rounding to bf16.
            step = largest / 254 if name == "fc.weight" else largest / 8
            assert bool((error <= step + largest / 256 + 1e-6).all())
        else:
            assert torch.equal(tensor, head.tensors[name])
    assert small.weight_bytes < 0.7 * head.weight_bytes


def test_what_is_in_4_bits_stays_what_it_is(tmp_path: Path) -> None:
    """The kernels run it in their own 4 bits: they must find the same codes."""
    groups = torch.randn(50, 3, 32)
    codes, scales = in_4_bits(groups)
    assert codes.shape == (50, 48)
    numbers = torch.stack((codes & 15, codes >> 4), -1).flatten(1).to(torch.int8) - 8
    assert numbers.min() == -8
    assert numbers.max() == 7
    write_head(tmp_path, {"eagle_config": {}}, {"a.weight": codes, "a.weight_scale": scales})
    read = HeadFiles.open(tmp_path).tensors["a.weight"].float()
    mean_error = (read - groups.flatten(1)).square().mean() / groups.square().mean()
    assert mean_error < 0.01
    again, _ = in_4_bits(read.unflatten(1, (-1, 32)))
    assert torch.equal(again, codes)


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
    assert small.in_few_bits
    write_head(tmp_path / "copy", small.config, small.tensors)
    assert not HeadFiles.open(tmp_path / "copy").in_few_bits
    published = PublishedHead("head", small.config, small.tensors, in_few_bits=True)
    found = {finding.engine for finding in value_rules(published) if finding.trap == "few bits"}
    assert found == set(TITLES)


def test_training_begins_with_a_head_as_it_is_published(tmp_path: Path) -> None:
    """It has no rows of the output head: those of the target are not trained."""
    model, data = save_target(tmp_path / "target", "llama"), save_data(tmp_path / "data.jsonl")
    run_of("eagle3", model, data, tmp_path / "trained", tokens=1).run()
    publish_head(tmp_path / "trained", tmp_path / "small")
    begun = run_of("eagle3", model, data, tmp_path / "next", begin_with=str(tmp_path / "small"))
    small = HeadFiles.open(tmp_path / "small").tensors
    rows = HeadFiles.open(tmp_path / "trained").tensors["lm_head.weight"]
    for name, tensor in begun.head.module.state_dict().items():
        expected = rows if name == "lm_head.weight" else small[name]
        torch.testing.assert_close(tensor, expected.float(), rtol=0.01, atol=0.001)
