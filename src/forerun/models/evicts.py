"""Check that a model's cache can evict."""

from __future__ import annotations

from forerun.compression import Compression
from forerun.errors import UnsupportedModelError
from forerun.models.architecture import Architecture


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
    if sliding:
        raise UnsupportedModelError(
            f"layers {sliding} of {name} read a sliding window of {shape.windows[sliding[0]]} "
            f"tokens alone and cannot evict others by kv_method {compression.kv_method!r}; leave it out."
        )
