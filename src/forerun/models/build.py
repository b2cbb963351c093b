"""One of our own decoders from its shape and its published weights."""

from __future__ import annotations

from forerun.contracts import CausalLM
from forerun.models.architecture import Architecture
from forerun.models.cpu import CpuModel
from forerun.models.decoder import Decoder
from forerun.models.gpt2 import GPT2
from forerun.models.layouts import layout_of
from forerun.models.placement import RunConfig
from forerun.models.sources import Source, read_weights


def build(shape: Architecture, source: Source, run: RunConfig, name: str) -> CausalLM:
    """Make the model.

    Args:
        name: how messages and reports call it.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors.
        MemoryLimitError: when there is no memory for them.
    """
    if run.backend == "kernels":
        return CpuModel(shape, source, run.precision, name)
    weights = read_weights(source, layout_of(shape), run.dtype, run.device)
    family = GPT2 if shape.family == "gpt2" else Decoder
    return family(shape, weights, name)
