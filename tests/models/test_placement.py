"""What runs a model: the kernels where they can, torch otherwise, and the reason where neither can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends import needs_kernels
from tiny_models import tiny_config

from forerun import _native
from forerun.errors import ConfigError, UnknownNameError
from forerun.models import CpuModel, load_model, storage_of
from forerun.models.placement import (
    KERNEL_PRECISIONS,
    PRECISIONS,
    draft_precision,
    last_level_cache,
    resolve_storage,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LLAMA = "llama"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that was built without a compiler."""
    monkeypatch.setattr(_native, "AVAILABLE", False)
    monkeypatch.setattr(_native, "REASON", "ImportError: no compiler")


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_kernels_run_what_they_can(precision: str) -> None:
    storage = resolve_storage(precision, None, CPU)
    wanted = "kernels" if precision in KERNEL_PRECISIONS else "torch"
    assert (storage.precision, storage.backend) == (precision, wanted)


@needs_kernels
def test_auto_is_as_stored() -> None:
    stored = {torch.bfloat16: "bf16", torch.float16: "fp32", torch.float32: "fp32", None: "fp32"}
    for dtype, precision in stored.items():
        assert resolve_storage("auto", dtype, CPU).precision == precision
    assert resolve_storage("auto", torch.float16, CUDA).precision == "fp16"
    assert resolve_storage("auto", torch.float16, CUDA).backend == "torch"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": "int8", "device": CUDA}, "not on 'cuda'"),
        ({"name": "int4", "ours": False}, "runs through transformers"),
        ({"name": "int4", "backend": "torch"}, "'torch' was asked for"),
        ({"name": "fp64", "backend": "kernels"}, "they know fp32, bf16, int8, int4"),
        ({"name": "bf16", "device": CUDA, "backend": "kernels"}, "not on 'cuda'"),
        ({"name": "auto", "ours": False, "backend": "kernels"}, "runs through transformers"),
    ],
    ids=str,
)
@needs_kernels
def test_what_is_not_to_be_had_is_said(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve_storage(**({"stored": None, "device": CPU} | options))
    assert "\n" not in str(caught.value)


def test_names_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'kernels'"):
        resolve_storage("auto", None, CPU, backend="kernel")
    with pytest.raises(UnknownNameError, match="Did you mean 'int8'"):
        resolve_storage("int9", None, CPU)


@pytest.mark.usefixtures("without")
def test_without_kernels_models_run_on_torch(checkpoint: Any) -> None:
    for dtype in ("auto", "fp32", "bf16"):
        model = load_model(checkpoint(LLAMA), device="cpu", dtype=dtype)
        assert not isinstance(model, CpuModel)
        assert model.device == CPU
    assert model.dtype is torch.bfloat16


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"dtype": "int4"}, {"backend": "kernels"}])
def test_without_kernels_the_reason_is_given(options: dict[str, str], checkpoint: Any) -> None:
    with pytest.raises(ConfigError, match=r"without them \(ImportError: no compiler\)"):
        load_model(checkpoint(LLAMA), device="cpu", **options)


@pytest.mark.usefixtures("without")
def test_without_kernels_drafts_are_as_stored() -> None:
    storage = storage_of(tiny_config(LLAMA), CPU, drafts=True)
    assert (storage.precision, storage.backend) == ("fp32", "torch")


@needs_kernels
def test_drafts_on_the_kernels_are_quantized() -> None:
    config = tiny_config(LLAMA)
    assert storage_of(config, CPU, drafts=True).precision == "int8"
    assert storage_of(config, CPU, "bf16", drafts=True).precision == "bf16"
    assert storage_of(config, CPU, backend="torch", drafts=True).precision == "fp32"
    fitting = last_level_cache() // 4
    assert (draft_precision(fitting), draft_precision(4 * fitting)) == ("int8", "int4")
