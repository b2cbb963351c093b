"""Which layers of a model a forward pass runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from forerun.errors import ConfigError


def check_layers(
    model: Any, layers: range | None, hidden_layers: Sequence[int], hidden_in: Tensor | None
) -> range:
    """The layers to run, all where None.

    Raises:
        ConfigError: for layers that the model does not have or that are not run.
    """
    layers = range(model.num_layers) if layers is None else layers
    inside = 0 <= layers.start < layers.stop <= model.num_layers
    if not inside or layers.step != 1:
        raise ConfigError(
            f"{layers} are no layers of {model.name}, which has {model.num_layers}; "
            "give a range of them in steps of 1."
        )
    if layers.start > 0 and hidden_in is None:
        raise ConfigError(
            f"layers from {layers.start} on need hidden_in, the output of the ones below."
        )
    absent = [layer for layer in hidden_layers if not layers.start <= layer <= layers.stop]
    if absent:
        raise ConfigError(
            f"hidden_layers {absent} are not run; {model.name} was asked for the hidden states "
            f"{layers.start} to {layers.stop}."
        )
    return layers
