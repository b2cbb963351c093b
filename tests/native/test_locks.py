"""What another thread asks of a cache waits for the forward that is using it."""

from __future__ import annotations

import threading

from forerun.core import Batch
from tests.helpers.kernel_models import model, needs_kernels

pytestmark = needs_kernels


def test_a_copy_is_not_made_between_two_layers_of_a_forward() -> None:
    """A forward lets other threads run, and appends its tokens to one layer after the other."""
    decoder = model("llama", "fp32")
    cache = decoder.new_cache(1, 256)
    seen: set[tuple[int, ...]] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            copy = cache.native.copy()
            seen.add(tuple(copy.layer_length(layer, 0) for layer in range(copy.layers)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(60):
            batch = Batch.after(cache, [0], [list(range(1, 61)) * 4])
            decoder.forward(batch, cache)
            cache.trim(0, 0)
    finally:
        over.set()
        watcher.join()
    assert seen <= {(0, 0, 0), (240, 240, 240)}
