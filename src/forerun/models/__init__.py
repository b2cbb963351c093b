"""Models that can be run speculatively, and loading them.

Importing this package does not import transformers; loading does.
"""

from forerun.models.architecture import Architecture, native, read_architecture
from forerun.models.cpu import CpuModel
from forerun.models.decoder import Decoder
from forerun.models.gpt2 import GPT2
from forerun.models.hf import HFModel, refuse_unsupported
from forerun.models.layouts import Layout, layout_of
from forerun.models.loading import (
    eos_token_ids,
    load_config,
    load_model,
    load_tokenizer,
    model_from_tensors,
)
from forerun.models.memory import (
    MemoryNeed,
    ModelSummary,
    available_bytes,
    check_memory,
    describe,
    draft_storage_of,
    memory_need,
    storage_of,
)
from forerun.models.placement import Storage, resolve_device, resolve_storage
from forerun.models.transformer import Transformer

__all__ = [
    "GPT2",
    "Architecture",
    "CpuModel",
    "Decoder",
    "HFModel",
    "Layout",
    "MemoryNeed",
    "ModelSummary",
    "Storage",
    "Transformer",
    "available_bytes",
    "check_memory",
    "describe",
    "draft_storage_of",
    "eos_token_ids",
    "layout_of",
    "load_config",
    "load_model",
    "load_tokenizer",
    "memory_need",
    "model_from_tensors",
    "native",
    "read_architecture",
    "refuse_unsupported",
    "resolve_device",
    "resolve_storage",
    "storage_of",
]
