"""Exit adapters: files that are read as they were written, and what they do to a draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exit_adapters import adapter_for
from safetensors.torch import save_file

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Plan, Sequence
from forerun.drafters.exit_adapter import FORMAT, VERSION, ExitAdapter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleDraftError,
)
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel
from forerun.testing.layered import LayeredToyModel
from matrix import VOCAB


def sequence(token_ids: list[int], row: int = 0, **params: Any) -> Sequence:
    return Sequence(row, token_ids, 1, SamplingParams(**params), seed=row, row=row)


def built(target: CausalLM, **options: Any) -> LayerSkipDrafter:
    def load_draft_model() -> CausalLM:
        raise AssertionError

    return LayerSkipDrafter.build(DrafterSetup(target, 1, 32, options, load_draft_model))


def test_adapters_are_kept_in_files(tmp_path: Path) -> None:
    target = LayeredToyModel(VOCAB, order=8)
    path = tmp_path / "exit-3.safetensors"
    made = adapter_for(target, 3)
    made.save(path)
    found = ExitAdapter.load(path)
    assert (found.exit_layer, found.target) == (3, "tiny")
    assert torch.equal(found.down, made.down.bfloat16())
    drafter = built(target, exit_adapter=str(path))
    assert drafter.shared_layers == 3
    assert isinstance(drafter.adapter, ExitAdapter)
    assert drafter.adapter.down.dtype is torch.float64
    with pytest.raises(ConfigError, match="belongs after layer 3"):
        built(target, exit_adapter=str(path), exit_layer=2)
    with pytest.raises(ConfigError, match="belongs after layer 3"):
        built(target, exit_adapter=str(path), skip_layers=(3, 5))
    with pytest.raises(IncompatibleDraftError, match="is 11 wide and toy-7 is 7"):
        built(LayeredToyModel(7, order=8), exit_adapter=str(path))
    with pytest.raises(IncompatibleDraftError, match="after layer 3 and toy-11 has 3"):
        built(LayeredToyModel(VOCAB), exit_adapter=str(path))


def damaged(path: Path, made: ExitAdapter) -> dict[str, Callable[[], object]]:
    good = {"format": FORMAT, "version": VERSION, "exit_layer": "1", "hidden_size": "11"}
    tensors = {name: getattr(made, name).contiguous() for name in ("norm", "gate", "up", "down")}
    short = {**tensors, "down": tensors["down"][:, :4].contiguous()}
    without = {name: tensor for name, tensor in tensors.items() if name != "up"}
    return {
        "is no safetensors file": lambda: path.write_bytes(b"nothing"),
        "is no exit adapter of version 1": lambda: save_file(tensors, path),
        "exit_layer '0', which is no count": lambda: save_file(
            tensors, path, metadata={**good, "exit_layer": "0"}
        ),
        "no tensor 'down'": lambda: save_file(short, path, metadata=good),
        "no tensor 'up'": lambda: save_file(without, path, metadata=good),
    }


@pytest.mark.parametrize("said", damaged(Path(), adapter_for(ToyModel(VOCAB), 1)))
def test_files_that_are_no_adapters(said: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter"
    damaged(path, adapter_for(LayeredToyModel(VOCAB), 1))[said]()
    with pytest.raises(CheckpointError, match=said):
        ExitAdapter.load(path)


def test_the_adapter_is_what_the_head_reads() -> None:
    """An adapter that adds nothing changes nothing; another one changes what is drafted."""
    target = LayeredToyModel(VOCAB)
    made = adapter_for(target, 1)
    drafts = {}
    for name, adapter in (
        ("none", None),
        ("empty", replace(made, down=torch.zeros_like(made.down))),
        ("some", replace(made, down=made.down * 30)),
    ):
        drafter = LayerSkipDrafter(target, (1, 2), adapter)
        drafter.attach(target.new_cache(1, 64))
        drafts[name] = drafter.propose([sequence([3])], [Plan(6)], Randomness())[0].token_ids
    assert drafts["none"] == drafts["empty"] != drafts["some"]
