"""Checks of a model's layers: those that a forward pass runs, and whether they can evict tokens."""

from __future__ import annotations

from typing import Any

from forerun.compression import Compression
from forerun.contracts import Ability, CausalLM
from forerun.core import Batch
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.models.architecture import Architecture


def check_view(model: CausalLM, batch: Batch) -> None:
    """Refuse a batch with a view if the model always reads its whole text.

    Raises:
        UnsupportedModelError: naming the model.
    """
    if batch.view is not None and Ability.VIEWS not in model.abilities:
        raise UnsupportedModelError(
            f"{model.name} reads all that its cache holds and cannot draft from a part of it; load a "
            "model that forerun runs itself, or use another method."
        )


def layers_to_run(model: Any, batch: Batch) -> range:
    """The layers that a batch runs; all if it names none.

    Raises:
        ConfigError: for layers that the model does not have, hidden states of layers that are not
            run, or input hidden states that are missing or of another shape.
        UnsupportedModelError: for a view that the model cannot take.
    """
    check_view(model, batch)
    layers = range(model.num_layers) if batch.layers is None else batch.layers
    inside = 0 <= layers.start < layers.stop <= model.num_layers
    if not inside or layers.step != 1:
        raise ConfigError(
            f"{model.name} cannot run {layers}; it has {model.num_layers} layers: give a range of "
            "them in steps of 1."
        )
    if batch.hidden_in is None:
        if layers.start > 0:
            raise ConfigError(
                f"layers from {layers.start} on need hidden_in, the output of the ones below."
            )
    elif batch.hidden_in.shape != (len(batch), batch.width, model.hidden_size):
        raise ConfigError(
            f"hidden_in has the shape {list(batch.hidden_in.shape)}; {model.name} needs "
            f"{[len(batch), batch.width, model.hidden_size]}."
        )
    absent = [layer for layer in batch.hidden_layers if not layers.start <= layer <= layers.stop]
    if absent:
        raise ConfigError(
            f"hidden_layers {absent} are not run; {model.name} was asked for the hidden states "
            f"{layers.start} to {layers.stop}."
        )
    return layers


def check_evicts(shape: Architecture, name: str, compression: Compression) -> None:
    """Refuse models whose layers already forget tokens.

    Raises:
        UnsupportedModelError: for sliding windows shorter than the context.
    """
    sliding = [
        layer
        for layer, window in enumerate(shape.windows)
        if window is not None and window < shape.max_context
    ]
    if len(set(shape.ropes)) > 1:
        raise UnsupportedModelError(
            f"layers of {name} rotate keys in different ways, and kv_method "
            f"{compression.kv_method!r} knows one; leave it out."
        )
    if sliding:
        raise UnsupportedModelError(
            f"layers {sliding} of {name} read a sliding window of {shape.windows[sliding[0]]} "
            f"tokens alone and cannot evict others by kv_method {compression.kv_method!r}; leave it out."
        )
