"""Loading a model alone, without a drafter or an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import UnsupportedModelError
from forerun.models.architecture import native, read_architecture
from forerun.models.build import build
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import check_config
from forerun.models.placement import Placement, resolve
from forerun.models.sources import TensorSource, with_own_head


def load_model(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    backend: str = "auto",
) -> CausalLM:
    """Load a language model: Llama, Mistral, Qwen2, Qwen3 and GPT-2 on our own decoders, on a CPU with
    compiled kernels; any other that transformers knows and whose cache can be cropped on the adapter.

    Args:
        model: `zoo`, a checkpoint's directory, or an id such as `Qwen/Qwen3-0.6B`.
        revision: branch, tag or commit on the hub.
        dtype: `fp32`, `bf16`, `fp16`, `fp64`, `int8` and `int4` (on the kernels), or `auto`: the
            checkpoint's (for float16 on a CPU: float32).
        device: `cpu`, `cuda`, `mps`, or `auto`: the fastest that is there.
        backend: `kernels`, `torch`, or `auto`: the kernels where they can run the model.

    Raises:
        CheckpointError: for missing, corrupt or inconsistent files.
        UnsupportedModelError: for an architecture that cannot be run speculatively.
        ConfigError: for a dtype or device that does not exist or is not there.
    """
    placement = Placement(dtype, device, backend)
    checkpoint = Checkpoint.open(model, revision)
    return checkpoint.load(checkpoint.run_config(placement))


def model_from_tensors(
    config: Any,
    tensors: Mapping[str, Tensor],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    backend: str = "torch",
    name: str = "model",
) -> CausalLM:
    """A model on our own decoders from published tensors in memory, such as a `state_dict`.

    Args:
        config: of transformers.
        tensors: by published key.
        dtype, device, backend: as `load_model` takes them.
        name: how messages call the model.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors.
        UnsupportedModelError: for a config that none of our decoders runs.
    """
    if not native(config):
        raise UnsupportedModelError(
            f"{config.model_type} has no decoder of its own here; "
            "save the model and load it with load_model."
        )
    check_config(config, name)
    stored = next(iter(tensors.values())).dtype if tensors else None
    source = TensorSource(tensors, name)
    run = resolve(Placement(dtype, device, backend), stored)
    return build(with_own_head(read_architecture(config), source), source, run, name)
