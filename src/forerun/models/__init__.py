"""Models that can be run speculatively, and their loading.

Importing this package does not import transformers; loading a model does.
"""

from forerun.models.checkpoint import Checkpoint, load_model, model_from_tensors
from forerun.models.cpu import CpuModel
from forerun.models.hf import HFModel
from forerun.models.memory import available_bytes, describe
from forerun.models.run_config import RunConfig
from forerun.models.transformer import Transformer
from forerun.placement import Placement

__all__ = [
    "Checkpoint",
    "CpuModel",
    "HFModel",
    "Placement",
    "RunConfig",
    "Transformer",
    "available_bytes",
    "describe",
    "load_model",
    "model_from_tensors",
]
