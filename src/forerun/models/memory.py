"""Memory that models and caches will take, computed before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from forerun.costs.precision import QUANTIZED, STORED_FORMATS, bytes_per_value
from forerun.errors import CheckpointError, MemoryLimitError
from forerun.files import size_text
from forerun.models.architecture import Architecture, native, read_architecture
from forerun.models.config import layer_configs, one_line
from forerun.models.hf import max_context, refuse_unsupported
from forerun.models.layouts import Layout, layout_of
from forerun.models.run_config import DTYPES, RunConfig
from forerun.processor import memory_left


@dataclass(frozen=True)
class ModelSummary:
    """Sizes of a model according to its config.

    Attributes:
        family: the model type.
        native: True if forerun's own decoder runs it, False if transformers does.
        parameters: number of parameters, shared ones counted once.
        weight_bytes: bytes of the weights by name of the dtype.
        cache_values_per_token: values in the cache per token of a row.
        head_dim: values of a head's key; 0 if layers differ.
        max_context: in tokens.
    """

    family: str
    native: bool
    parameters: int
    weight_bytes: dict[str, int]
    cache_values_per_token: int
    head_dim: int
    max_context: int
    vocab_size: int
    num_layers: int
    hidden_size: int

    def cache_bytes_per_token(self, dtype: torch.dtype, kv_dtype: str = "auto") -> int:
        """Bytes per token of a row in a cache of `kv_dtype`; `auto` is `dtype`."""
        size = bytes_per_value(kv_dtype, self.head_dim, dtype.itemsize)
        return int(self.cache_values_per_token * size)


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of a model's weights and of its cache."""

    name: str
    weight_bytes: int
    cache_bytes: int

    @property
    def total(self) -> int:
        """Bytes of weights and cache together."""
        return self.weight_bytes + self.cache_bytes


def describe(
    config: Any, name: str = "the model", shape: Architecture | None = None
) -> ModelSummary:
    """Sizes of the model that a config of transformers describes, without loading it.

    Args:
        config: the config.
        name: name of the model in messages.
        shape: architecture of a model on forerun's own decoder, if the weights say more than the
            config.

    Raises:
        UnsupportedModelError: for an architecture that cannot be run speculatively.
        CheckpointError: for a config from which transformers cannot make a model.
    """
    text, is_native = config.get_text_config(), native(config)
    if is_native:
        shape = shape or read_architecture(config)
        parameters = layout_of(shape).num_parameters()
        quantized = {name: int(kernel_bytes(shape, name)) for name in QUANTIZED}
    else:
        refuse_unsupported(config, name)
        parameters, quantized = _count_on_meta(config, name), {}
    widths = [_key_width(layer) for layer in layer_configs(text)]
    return ModelSummary(
        family=config.model_type,
        native=is_native,
        parameters=parameters,
        weight_bytes={key: parameters * dtype.itemsize for key, dtype in DTYPES.items()}
        | quantized,
        head_dim=_head_dim(layer_configs(text)),
        cache_values_per_token=2 * text.num_hidden_layers * sum(widths) // len(widths),
        max_context=text.max_position_embeddings if is_native else max_context(text, name),
        vocab_size=text.vocab_size,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
    )


def _key_size(layer: Any) -> int:
    return int(getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads)


def _key_width(layer: Any) -> int:
    heads = getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads
    return int(heads) * _key_size(layer)


def _head_dim(layers: Sequence[Any]) -> int:
    sizes = {_key_size(layer) for layer in layers}
    return sizes.pop() if len(sizes) == 1 else 0


def kernel_bytes(shape: Architecture, precision: str, *, read: bool = False) -> float:
    """Bytes of a model's weights on the kernels.

    Args:
        shape: its architecture.
        precision: `int8` or `int4`.
        read: count only the weights that one token reads, without lookup tables.
    """
    head = "embedding.weight" if shape.tied else "head.weight"
    total = 0.0
    for tensor in layout_of(shape).tensors:
        count = math.prod(tensor.shape) * (shape.share_read(tensor.name) if read else 1)
        if len(tensor.shape) == 1 or tensor.name.endswith("router.weight"):
            total += 4 * count
        elif tensor.name == head:
            total += QUANTIZED["int8"] * count
        elif tensor.name in ("embedding.weight", "positions.weight"):
            total += 0 if read else 2 * count
        else:
            total += QUANTIZED[precision] * count
    return total


def stored_bytes(layout: Layout, formats: Mapping[str, str]) -> float:
    """Bytes of quantized weights on the kernels in their stored form.

    Args:
        layout: the decoder's tensors.
        formats: precisions of its matrices, by published key.
    """
    return sum(
        math.prod(shape) * STORED_FORMATS[formats.get(key, "fp32")]
        for key, shape in layout.published.items()
    )


def _count_on_meta(config: Any, name: str) -> int:
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        # Making a model of transformers may raise any exception.
        raise CheckpointError(
            f"transformers cannot make {name} of its config.json ({one_line(error)}); "
            "download it again."
        ) from error
    return sum(int(parameter.numel()) for parameter in model.parameters())


def memory_need(
    name: str, summary: ModelSummary, run: RunConfig, *, rows: int, capacity: int
) -> MemoryNeed:
    """Bytes that a model and its cache of rows times capacity slots will take."""
    return MemoryNeed(
        name,
        summary.weight_bytes[run.precision],
        rows * capacity * summary.cache_bytes_per_token(run.dtype, run.kv_dtype),
    )


def available_bytes(device: torch.device) -> int:
    """Free memory of a device now, in bytes; on a CPU within the limit of the container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free, left = int(psutil.virtual_memory().available), memory_left()
    return free if left is None else min(free, left)


def check_memory(needs: Sequence[MemoryNeed], device: torch.device) -> None:
    """Check that models and their caches fit on a device together.

    Raises:
        MemoryLimitError: with the numbers, and advice on what to change.
    """
    total, available = sum(need.total for need in needs), available_bytes(device)
    if total <= available:
        return
    parts = ", ".join(
        f"{need.name} {size_text(need.weight_bytes)} + cache {size_text(need.cache_bytes)}"
        for need in needs
    )
    raise MemoryLimitError(
        f"{size_text(total)} are needed on {device} but {size_text(available)} are free "
        f"({parts}); use a smaller dtype, context, batch or draft."
    )
