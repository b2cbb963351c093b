"""Models that can be run speculatively, and loading them.

Importing this package does not import transformers; loading does.
"""

from forerun.models.architecture import Architecture, native, read_architecture
from forerun.models.checkpoint import Checkpoint, load_model, model_from_tensors
from forerun.models.cpu import CpuModel
from forerun.models.hf import HFModel, refuse_unsupported
from forerun.models.layouts import Layout, layout_of
from forerun.models.memory import (
    MemoryNeed,
    ModelSummary,
    available_bytes,
    check_memory,
    describe,
    memory_need,
)
from forerun.models.placement import Placement, RunConfig, resolve_device
from forerun.models.transformer import Transformer

__all__ = [
    "Architecture",
    "Checkpoint",
    "CpuModel",
    "HFModel",
    "Layout",
    "MemoryNeed",
    "ModelSummary",
    "Placement",
    "RunConfig",
    "Transformer",
    "available_bytes",
    "check_memory",
    "describe",
    "layout_of",
    "load_model",
    "memory_need",
    "model_from_tensors",
    "native",
    "read_architecture",
    "refuse_unsupported",
    "resolve_device",
]
