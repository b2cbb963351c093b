"""What runs a model: the kernels where they can, torch otherwise, and the reason where neither can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends import needs_kernels
from tiny_models import tiny_config

from forerun import _native
from forerun.errors import ConfigError, UnknownNameError
from forerun.models import CpuModel, describe, draft_storage_of, load_model, storage_of
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


def draft(backend: str = "auto", **options: str) -> tuple[str, str]:
    """How a draft is kept beside a target on a backend."""
    config = tiny_config(LLAMA)
    target = storage_of(config, CPU, backend=backend)
    kept = draft_storage_of(config, CPU, target, **options)
    return kept.precision, kept.backend


@pytest.mark.usefixtures("without")
def test_without_kernels_drafts_are_as_stored() -> None:
    assert draft() == ("fp32", "torch")


@needs_kernels
def test_drafts_on_the_kernels_are_quantized() -> None:
    assert draft() == ("int8", "kernels")
    assert draft(dtype="bf16") == ("bf16", "kernels")
    fitting = last_level_cache() // 4
    assert (draft_precision(fitting), draft_precision(4 * fitting)) == ("int8", "int4")


@needs_kernels
def test_drafts_follow_their_target() -> None:
    """A draft on the kernels would hold a target on torch to one thread."""
    assert draft("torch") == ("fp32", "torch")
    assert draft("torch", dtype="int4") == ("int4", "kernels")


@needs_kernels
def test_portable_kernels_wait_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native.kernels, "level", lambda: "portable")
    assert resolve_storage("bf16", None, CPU).backend == "torch"
    assert resolve_storage("bf16", None, CPU, backend="kernels").backend == "kernels"
    assert resolve_storage("int8", None, CPU).backend == "kernels"


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_bytes_are_known_before_loading(family: str, precision: str, checkpoint: Any) -> None:
    loaded = load_model(checkpoint(family), dtype=precision, device="cpu")
    assert isinstance(loaded, CpuModel)
    said = describe(tiny_config(family)).weight_bytes[precision]
    # Rows come in blocks of 16 and groups are filled up, which tiny models feel.
    assert said / 3 <= loaded.weight_bytes <= 3 * said
