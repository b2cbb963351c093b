"""What runs a model: the kernels where they can, torch otherwise, and the reason where neither can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from forerun import _native
from forerun.errors import ConfigError, UnknownNameError
from forerun.models import Checkpoint, CpuModel, Placement, RunConfig, describe, load_model
from forerun.models.run_config import (
    KERNEL_PRECISIONS,
    draft_precision,
    resolve,
)
from forerun.placement import PRECISIONS
from forerun.processor import last_level_cache
from tests.helpers.backends import needs_kernels
from tests.helpers.tiny_models import tiny_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LLAMA = "llama"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that was built without a compiler."""
    monkeypatch.setattr(_native, "AVAILABLE", False)
    monkeypatch.setattr(_native, "REASON", "ImportError: no compiler")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one CUDA device, as far as placing a model goes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_kernels_run_what_they_can(precision: str) -> None:
    wanted = "kernels" if precision in KERNEL_PRECISIONS else "torch"
    assert resolve(Placement(precision, "cpu"), None) == RunConfig(precision, wanted, CPU)


@needs_kernels
@pytest.mark.usefixtures("cuda")
def test_auto_is_as_stored() -> None:
    stored = {torch.bfloat16: "bf16", torch.float16: "fp32", torch.float32: "fp32", None: "fp32"}
    for dtype, precision in stored.items():
        assert resolve(Placement(device="cpu"), dtype).precision == precision
    on_cuda = resolve(Placement(device="cuda"), torch.float16)
    assert on_cuda == RunConfig("fp16", "torch", CUDA)
    assert resolve(Placement(), torch.float16) == on_cuda


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "int8", "device": "cuda"}, "not on 'cuda'"),
        ({"dtype": "int4", "ours": False}, "runs through transformers"),
        ({"dtype": "int4", "backend": "torch"}, "the backend is torch"),
        ({"dtype": "fp64", "backend": "kernels"}, "they support fp32, bf16, int8, int4"),
        ({"dtype": "bf16", "device": "cuda", "backend": "kernels"}, "not on 'cuda'"),
        ({"ours": False, "backend": "kernels"}, "runs through transformers"),
    ],
    ids=str,
)
@needs_kernels
@pytest.mark.usefixtures("cuda")
def test_refusals_give_the_reason(options: dict[str, Any], reason: str) -> None:
    ours = options.get("ours", True)
    names = {"device": "cpu"} | {key: name for key, name in options.items() if key != "ours"}
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve(Placement(**names), None, native=ours)
    assert "\n" not in str(caught.value)


def test_names_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'kernels'"):
        Placement(backend="kernel")
    with pytest.raises(UnknownNameError, match="Did you mean 'int8'"):
        Placement("int9")
    for device in ("tpu", "cpu:1", "cuda:", "cuda:x", "cuda:\N{ARABIC-INDIC DIGIT ONE}"):
        with pytest.raises(UnknownNameError, match="unknown device"):
            Placement(device=device)
    wrong: Any
    for wrong in (3, None, b"cpu", ["cpu"], torch.nn.Identity()):
        for name in ("dtype", "device", "backend"):
            with pytest.raises(ConfigError, match=name):
                Placement(**{name: wrong})


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
    with pytest.raises(ConfigError, match=r"not available \(ImportError: no compiler\)"):
        load_model(checkpoint(LLAMA), device="cpu", **options)


@pytest.fixture
def draft(checkpoint: Any) -> Callable[..., RunConfig]:
    """How a draft runs beside a target on a backend."""
    opened = Checkpoint.open(checkpoint(LLAMA))

    def run_config(backend: str = "auto", dtype: str = "auto") -> RunConfig:
        target = opened.run_config(Placement("auto", "cpu", backend))
        return opened.draft_run_config(Placement(dtype), target)

    return run_config


@pytest.mark.usefixtures("without")
def test_without_kernels_drafts_are_as_stored(draft: Any) -> None:
    assert draft() == RunConfig("fp32", "torch", CPU)


@needs_kernels
def test_drafts_on_the_kernels_are_quantized(draft: Any) -> None:
    assert draft() == RunConfig("int8", "kernels", CPU)
    assert draft(dtype="bf16") == RunConfig("bf16", "kernels", CPU)
    fitting = last_level_cache() // 4
    assert (draft_precision(fitting), draft_precision(4 * fitting)) == ("int8", "int4")


@needs_kernels
def test_drafts_follow_their_target(draft: Any) -> None:
    """A draft on the kernels would hold a target on torch to one thread."""
    assert draft("torch") == RunConfig("fp32", "torch", CPU)
    assert draft("torch", dtype="int4") == RunConfig("int4", "kernels", CPU)


@needs_kernels
def test_portable_kernels_wait_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native.kernels, "level", lambda: "portable")
    assert resolve(Placement("bf16", "cpu"), None).backend == "torch"
    assert resolve(Placement("bf16", "cpu", "kernels"), None).backend == "kernels"
    assert resolve(Placement("int8", "cpu"), None).backend == "kernels"


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_bytes_are_known_before_loading(family: str, precision: str, checkpoint: Any) -> None:
    loaded = load_model(checkpoint(family), dtype=precision, device="cpu")
    assert isinstance(loaded, CpuModel)
    said = describe(tiny_config(family)).weight_bytes[precision]
    # Rows come in blocks of 16 and groups are filled up, which tiny models feel.
    assert said / 3 <= loaded.weight_bytes <= 3 * said
