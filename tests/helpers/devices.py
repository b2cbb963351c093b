"""The device that tests marked `gpu` run on, and toy models on it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import Batch, ForwardOutput
from forerun.models.checkpoint import Checkpoint
from forerun.models.run_config import RunConfig
from tests.helpers.layered import LayeredToyModel

VARIABLE = "FORERUN_TEST_DEVICE"
"""`cuda` (left out, where there is one), `cpu`, or `pretend`; see `tests.helpers.pretend_device`."""
PRETENDED = "pretend"


def device_name() -> str | None:
    """The name of the device; None where there is none to test."""
    return os.environ.get(VARIABLE) or ("cuda" if torch.cuda.is_available() else None)


def loaded(folder: Path, dtype: str, device: torch.device, kv_dtype: str = "auto") -> CausalLM:
    """A checkpoint on torch and on a device."""
    return Checkpoint.open(folder).load(RunConfig(dtype, "torch", device, kv_dtype))


class ToyOnDevice(LayeredToyModel):
    """A toy model that answers with tensors on a device; what it knows stays on the CPU."""

    def __init__(self, device: torch.device, vocab_size: int = 11, **options: Any) -> None:
        super().__init__(vocab_size, **options)
        self.device = device

    def embed(self, token_ids: Tensor) -> Tensor:
        return super().embed(token_ids).to(self.device)

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        if batch.hidden_in is not None:
            batch = replace(batch, hidden_in=batch.hidden_in.cpu())
        output = super().forward(batch, cache)
        logits = None if output.logits is None else output.logits.to(self.device)
        hidden = {layer: states.to(self.device) for layer, states in output.hidden.items()}
        return ForwardOutput(logits, hidden)
