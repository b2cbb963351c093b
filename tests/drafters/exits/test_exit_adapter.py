"""Exit adapters: files that are read as they were written, and what they do to a draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Plan, Request
from forerun.drafters.exits.exit_adapter import FORMAT, VERSION, ExitAdapter, adapt
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleDraftError,
)
from forerun.models.cpu import CpuModules
from forerun.models.cpu.threads import cores, thread_pool
from forerun.models.modules import TorchModules
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel
from tests.helpers.exit_adapters import adapter_for
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.layered import LayeredToyModel
from tests.matrix import VOCAB


def request(token_ids: list[int], row: int = 0, **params: Any) -> Request:
    return Request(row, token_ids, 1, SamplingParams(**params), seed=row, row=row)


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
    assert drafter.adapter is not None
    assert drafter.adapter(torch.zeros(1, VOCAB, dtype=torch.float64)).dtype is torch.float64
    with pytest.raises(ConfigError, match="belongs after layer 3"):
        built(target, exit_adapter=str(path), exit_layer=2)
    with pytest.raises(ConfigError, match="belongs after layer 3"):
        built(target, exit_adapter=str(path), skip_layers=(3, 5))
    with pytest.raises(IncompatibleDraftError, match="is 11 wide and toy-7 is 7"):
        built(LayeredToyModel(7, order=8), exit_adapter=str(path))
    with pytest.raises(ConfigError, match="after layer 3 and toy-11 has 3"):
        built(LayeredToyModel(VOCAB), exit_adapter=str(path))


def damaged(path: Path, made: ExitAdapter) -> dict[str, Callable[[], object]]:
    good = {"format": FORMAT, "version": VERSION, "exit_layer": "1"}
    tensors = {name: getattr(made, name).contiguous() for name in ("norm", "gate", "up", "down")}
    short = {**tensors, "down": tensors["down"][:, :4].contiguous()}
    without = {name: tensor for name, tensor in tensors.items() if name != "up"}
    broken = {**tensors, "norm": tensors["norm"] / 0}
    return {
        "cannot be read": lambda: path.write_bytes(b"nothing"),
        "is not an exit adapter of version 1": lambda: save_file(tensors, path),
        "exit_layer is .0.; it must be a count": lambda: save_file(
            tensors, path, metadata={**good, "exit_layer": "0"}
        ),
        r"tensor 'down' of \[11, 4\]": lambda: save_file(short, path, metadata=good),
        "does not contain tensor up": lambda: save_file(without, path, metadata=good),
        "'norm' .* finite numbers": lambda: save_file(broken, path, metadata=good),
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
        cache = target.new_cache(1, 64)
        drafter.attach(cache)
        drafts[name] = drafter.propose([request([3])], [Plan(6)], Randomness())[0].token_ids
    assert drafts["none"] == drafts["empty"] != drafts["some"]


HIDDEN, INNER = 75, 50
"""Sizes that fit no block, line or group."""


def weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    matrices = [torch.randn(shape, generator=generator) / shape[1] ** 0.5 for shape in shapes]
    return [torch.randn(HIDDEN, generator=generator) + 1, *matrices]


@needs_kernels
@pytest.mark.parametrize(
    ("precision", "near"), [("fp32", 1e-5), ("bf16", 0.03), ("int8", 0.06), ("int4", 0.6)]
)
def test_kernels_compute_what_was_trained(precision: str, near: float) -> None:
    """And for each token the same, whatever stands beside it, on any number of threads."""
    states = 5 * torch.randn(2, 20, HIDDEN, generator=torch.Generator().manual_seed(1))
    wanted = adapt(TorchModules(torch.device("cpu"), torch.float32), *weights())(states)
    adapted = [adapt(CpuModules(thread_pool(n), precision), *weights()) for n in (1, cores())]
    found = adapted[0](states)
    assert (found - wanted).abs().max() < near * (wanted - states).abs().max()
    for module in adapted:
        assert torch.equal(module(states), found)
        assert torch.equal(module(states[1:, 3:7]), found[1:, 3:7])
        assert torch.equal(module(states[0, 2]), found[0, 2])


@needs_kernels
def test_adapters_that_cannot_run_on_kernels_are_refused() -> None:
    target = kernel_model("llama")
    made = adapter_for(target, 1)
    spoiled = made.up.clone()
    spoiled[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match=r"exit adapter for tiny: .* not finite"):
        replace(made, up=spoiled).module(target)
