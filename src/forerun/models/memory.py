"""Memory that models and caches will take, known before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forerun.errors import MemoryLimitError
from forerun.models.architecture import native, read_architecture
from forerun.models.hf import max_context, refuse_unsupported
from forerun.models.layouts import Layout, layout_of
from forerun.models.placement import (
    DTYPES,
    QUANTIZED,
    Storage,
    draft_precision,
    resolve_device,
    resolve_storage,
)


@dataclass(frozen=True)
class ModelSummary:
    """What a config says about a model.

    Attributes:
        family: the model type.
        native: whether it runs on our own decoder, else through transformers.
        parameters: shared ones counted once.
        weight_bytes: by name of the dtype.
        cache_values_per_token: numbers that one token of one row keeps in the cache.
        max_context: in tokens.
    """

    family: str
    native: bool
    parameters: int
    weight_bytes: dict[str, int]
    cache_values_per_token: int
    max_context: int
    vocab_size: int
    num_layers: int
    hidden_size: int

    def cache_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token of one row keeps in a cache of `dtype`."""
        return self.cache_values_per_token * dtype.itemsize


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of a model's weights and of its cache."""

    name: str
    weight_bytes: int
    cache_bytes: int

    @property
    def total(self) -> int:
        """Bytes of both."""
        return self.weight_bytes + self.cache_bytes


def describe(config: Any, name: str = "the model") -> ModelSummary:
    """Sizes of the model that a config of transformers describes, without loading it.

    Args:
        config: of transformers.
        name: how messages call the model.

    Raises:
        UnsupportedModelError: for an architecture that cannot be run speculatively.
    """
    text = config.get_text_config()
    ours = native(config)
    if ours:
        shape = read_architecture(config)
        parameters = layout_of(shape).num_parameters()
        heads, size, context = shape.num_kv_heads, shape.head_dim, shape.max_context
    else:
        refuse_unsupported(config, name)
        parameters = _count_on_meta(config)
        attention_heads = text.num_attention_heads
        heads = getattr(text, "num_key_value_heads", None) or attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // attention_heads
        context = max_context(text, name)
    return ModelSummary(
        family=config.model_type,
        native=ours,
        parameters=parameters,
        weight_bytes=_weight_bytes(config, parameters, ours),
        cache_values_per_token=2 * text.num_hidden_layers * heads * size,
        max_context=context,
        vocab_size=text.vocab_size,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
    )


def _weight_bytes(config: Any, parameters: int, ours: bool) -> dict[str, int]:
    sizes = {name: parameters * dtype.itemsize for name, dtype in DTYPES.items()}
    if ours:
        layout = layout_of(read_architecture(config))
        sizes |= {name: int(kernel_bytes(layout, name)) for name in QUANTIZED}
    return sizes


def kernel_bytes(layout: Layout, precision: str, *, read: bool = False) -> float:
    """Bytes of a model's weights on the kernels.

    Args:
        layout: its tensors.
        precision: `int8` or `int4`.
        read: only those that every token reads: not tables that are looked into.
    """
    names = {tensor.name for tensor in layout.tensors}
    head = "head.weight" if "head.weight" in names else "embedding.weight"
    total = 0.0
    for tensor in layout.tensors:
        count = torch.Size(tensor.shape).numel()
        if len(tensor.shape) == 1:
            total += 4 * count
        elif tensor.name == head:
            total += QUANTIZED["int8"] * count
        elif tensor.name in ("embedding.weight", "positions.weight"):
            total += 0 if read else 2 * count
        else:
            total += QUANTIZED[precision] * count
    return total


def _count_on_meta(config: Any) -> int:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(int(parameter.numel()) for parameter in model.parameters())


def memory_need(
    name: str, config: Any, storage: Storage, *, rows: int, capacity: int
) -> MemoryNeed:
    """Bytes that a model and its cache, rows times capacity slots, will take."""
    summary = describe(config, name)
    return MemoryNeed(
        name,
        summary.weight_bytes[storage.precision],
        rows * capacity * summary.cache_bytes_per_token(storage.cache_dtype),
    )


def storage_of(
    config: Any, device: torch.device, dtype: str = "auto", backend: str = "auto"
) -> Storage:
    """How the model of a config will be kept, and what runs it.

    Args:
        config: of transformers.
        device, dtype, backend: as `load_model` takes them.

    Raises:
        ConfigError: for a dtype or backend that does not exist or is not there.
    """
    return resolve_storage(dtype, config.dtype, device, ours=native(config), backend=backend)


def draft_storage_of(
    config: Any, device: torch.device, target: Storage, dtype: str = "auto", backend: str = "auto"
) -> Storage:
    """The same for a draft model. `auto` runs it on what the target runs on, and quantizes it on
    the kernels.

    Raises:
        ConfigError: for a dtype or backend that does not exist or is not there.
    """
    if dtype != "auto" or not native(config):
        return storage_of(config, device, dtype, backend)
    storage = storage_of(config, device, dtype, target.backend)
    if storage.backend == "kernels":
        read = kernel_bytes(layout_of(read_architecture(config)), "int8", read=True)
        return Storage(draft_precision(read), "kernels")
    return storage


def available_bytes(device: torch.device) -> int | None:
    """Memory that can be taken on a device now, in bytes; None if it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # Not Linux: ask the C library below.
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_memory(
    target: Any,
    draft: Any = None,
    *,
    dtype: str = "auto",
    draft_dtype: str = "auto",
    device: str = "auto",
    backend: str = "auto",
    rows: int,
    capacity: int,
) -> None:
    """See that a target, its draft model and their caches fit on a device together.

    Args:
        target: a config of transformers.
        draft: the draft model's; None for a drafter without one.
        dtype, draft_dtype, device, backend: names, as `load_model` takes them.
        rows: rows of the caches.
        capacity: slots a row, in tokens.

    Raises:
        MemoryLimitError: with the numbers, and what to change.
        ConfigError: for a dtype or device that does not exist or is not there.
    """
    place = resolve_device(device)
    kept = storage_of(target, place, dtype, backend)
    needs = [memory_need("target", target, kept, rows=rows, capacity=capacity)]
    if draft is not None:
        kept = draft_storage_of(draft, place, kept, draft_dtype, backend)
        needs.append(memory_need("draft", draft, kept, rows=rows, capacity=capacity))
    refuse_excess(needs, available_bytes(place), place)


def refuse_excess(needs: Sequence[MemoryNeed], available: int | None, device: torch.device) -> None:
    """Raise if the needs exceed the bytes available; None means that nobody knows.

    Raises:
        MemoryLimitError: with the numbers, and what to change.
    """
    total = sum(need.total for need in needs)
    if available is None or total <= available:
        return
    parts = ", ".join(
        f"{need.name} {_gib(need.weight_bytes)} + cache {_gib(need.cache_bytes)}" for need in needs
    )
    raise MemoryLimitError(
        f"{_gib(total)} are needed on {device} but {_gib(available)} are free ({parts}); use a "
        "smaller dtype, context, batch or draft."
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
