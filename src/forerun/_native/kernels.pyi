"""The compiled kernels of forerun's CPU engine.

Arrays are given as NumPy arrays on the CPU, contiguous, of the dtypes and shapes below; what does not fit
is a TypeError or a ValueError.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Rows = object
"""Rows of logits, probabilities or noise: what to_dlpack makes of a tensor."""
Floats = NDArray[np.float32]
HiddenOut = Sequence[tuple[int, Floats]]
"""Layers with the arrays [B, n, hidden] that take their hidden states."""

class CacheError(RuntimeError): ...
class RowError(ArithmeticError): ...

def level() -> str:
    """The instruction set in use."""

class Runtime:
    """The threads that all models share, one forward at a time."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class KvCache:
    """Keys and values of a batch of rows."""

    @property
    def rows(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def length(self, row: int) -> int: ...
    def layer_length(self, layer: int, row: int) -> int: ...
    def keep(self, row: int, start: int, slots: Sequence[int]) -> None: ...
    def trim(self, row: int, length: int, layers: tuple[int, int] | None = None) -> None: ...

class Decoder:
    """A decoder-only transformer."""

    def __init__(self, shape: dict[str, object], level: str = "") -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    def new_cache(self, rows: int, capacity: int) -> KvCache: ...
    def load(
        self,
        runtime: Runtime,
        name: str,
        first: int,
        count: int,
        cols: int,
        address: int,
        type: str,
    ) -> None:
        """Fill rows of a weight from `count * cols` values of `type` at an address."""

    def forward(
        self,
        runtime: Runtime,
        cache: KvCache,
        rows: Sequence[int],
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        layers: tuple[int, int],
        logits: Floats | None,
        last: bool,
        tree_mask: NDArray[np.bool_] | None,
        hidden_in: Floats | None,
        hidden_out: HiddenOut,
    ) -> None: ...
    def forward_lists(
        self,
        runtime: Runtime,
        cache: KvCache,
        rows: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]] | None,
        layers: tuple[int, int] | None,
        logits: Floats | None,
        last: bool,
        tree_mask: NDArray[np.bool_] | None,
        hidden_in: Floats | None,
        hidden_out: HiddenOut,
    ) -> None: ...
    def head(self, runtime: Runtime, hidden: Floats, logits: Floats) -> None:
        """The final norm and the output head on [tokens, hidden]."""

class GatedMlp:
    """A gated MLP beside the residual, in one of the weights' precisions."""

    def __init__(
        self,
        norm: Floats,
        gate: Floats,
        up: Floats,
        down: Floats,
        norm_eps: float,
        precision: str,
        level: str = "",
    ) -> None: ...
    def run(self, runtime: Runtime, hidden: Floats, out: Floats) -> None:
        """From [tokens, hidden] to the same."""

class DraftChain:
    """One chain to draft."""

    def __init__(
        self,
        row: int,
        pending: Sequence[int],
        limit: int,
        stops: Sequence[int],
        drawing: str,
        warp: tuple[float, int, float, float],
        seed: int,
        committed: int,
    ) -> None: ...

def draft_chains(
    decoder: Decoder,
    runtime: Runtime,
    cache: KvCache,
    chains: Sequence[DraftChain],
    probs: Sequence[Floats],
    vocab: int,
) -> list[list[int]]:
    """Draft all chains side by side; the tokens of each."""

def uniform(seed: int, position: int, purpose: int, node: int) -> float: ...
def write_noise(seed: int, position: int, row: Rows) -> None: ...
def warp_rows(
    logits: Rows, probs: Rows, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[list[int], list[int]]:
    """Which rows are all -inf, which broken."""

def draw_rows(probs: Rows, uniforms: Sequence[float]) -> list[int]: ...
def draw_siblings(
    probs: Rows,
    keys: Sequence[tuple[int, int]],
    nodes: Sequence[Sequence[int]],
    replacement: bool,
    rows: Rows,
) -> list[list[int]]:
    """The tokens drawn from each row."""

def top_rows(probs: Rows) -> list[int]: ...
def couple_rows(probs: Rows, noise: Rows) -> list[int]: ...
def couple_keys(probs: Rows, keys: Sequence[tuple[int, int]]) -> list[int]: ...
def decide(
    rule: str,
    tokens: Sequence[int],
    parents: Sequence[int],
    target: Rows,
    draft: Rows | None,
    emit: Rows,
) -> tuple[list[float], list[int], list[int], int]:
    """accept, on_accept, on_reject, start"""

def verify(
    rule: str,
    tokens: Sequence[int],
    parents: Sequence[int],
    target: Rows,
    draft: Rows | None,
    seed: int,
    committed: int,
    source: Callable[[int, int], float] | None,
) -> tuple[int, int]:
    """The end of the path and the token after it."""

def verify_coupled(
    tokens: Sequence[int],
    parents: Sequence[int],
    target: Rows,
    seed: int,
    committed: int,
    greedy: bool,
) -> tuple[int, int]:
    """The end of the path and the token after it."""

def judge(
    rule: str,
    tokens: Sequence[int],
    parents: Sequence[int],
    logits: Rows,
    draft: Rows | None,
    warp: tuple[float, int, float, float],
    seed: int,
    committed: int,
) -> tuple[int, int]:
    """Warp and verify: the end of the path and the token after it."""

class Stream:
    """Memory to measure the streaming read bandwidth with."""

    def __init__(self, bytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, runtime: Runtime, bytes: int, times: int = 1) -> float:
        """Seconds for all threads to read the first `bytes` once, the mean of `times` in a row."""

def peak_rate(runtime: Runtime, precision: str) -> float:
    """Multiply-adds a second of the precision's instruction, operands in registers; 0: there is none."""

def fill_cache(cache: KvCache, row: int, length: int) -> None:
    """Give a row `length` slots of keys and values that mean nothing."""
