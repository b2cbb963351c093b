"""The compiled kernels of forerun's CPU engine."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class CacheError(RuntimeError):
    pass

class RowError(ArithmeticError):
    pass

def level() -> str:
    """The instruction set in use."""

class ThreadPool:
    """Threads that models share, one forward at a time."""

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

    @property
    def precision(self) -> str: ...

    def read(self, pool: ThreadPool, layer: int, row: int, values: bool, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
        """Keys or values of the first slots of a row, of all heads."""

    def length(self, row: int) -> int: ...

    def layer_length(self, layer: int, row: int) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def tile_bytes(self) -> int: ...

    def row_bytes(self, layer: int, row: int, length: int) -> int: ...

    def read_row(self, layer: int, row: int, length: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def write_row(self, layer: int, row: int, length: int, tiles: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def keep(self, row: int, start: int, slots: Sequence[int]) -> None: ...

    def evict(self, pool: ThreadPool, row: int, slots: Annotated[NDArray[numpy.int64], dict(shape=(None, None, None), order='C', device='cpu', writable=False)]) -> None:
        """Of all slots of a row, each layer and head keeps its own."""

    def copy(self) -> KvCache:
        """Another cache that holds the same."""

    def trim(self, row: int, length: int, layers: tuple[int, int] | None = None) -> None: ...

class Decoder:
    """A decoder-only transformer."""

    def __init__(self, shape: dict, level: str = '') -> None: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def layer_bytes(self) -> int: ...

    @property
    def head_bytes(self) -> int: ...

    def new_cache(self, rows: int, capacity: int, precision: str = '') -> KvCache: ...

    def load(self, pool: ThreadPool, name: str, first: int, count: int, cols: int, address: int, type: str) -> None: ...

    def load_codes(self, pool: ThreadPool, name: str, first: int, count: int, cols: int, codes: int, scales: int, offsets: int) -> None: ...

    def forward(self, pool: ThreadPool, cache: KvCache, rows: Sequence[int], token_ids: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], layers: tuple[int, int], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')] | None, last: bool, tree_mask: Annotated[NDArray[numpy.bool_], dict(shape=(None, None, None), order='C', device='cpu', writable=False)] | None, hidden_in: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)] | None, hidden_out: tuple[Sequence[int], Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')] | None], view: tuple[int, int, bool, int] | None, queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')] | None = None) -> None: ...

    def embed(self, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

    def final_norm(self, pool: ThreadPool, hidden: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

    def lm_head(self, pool: ThreadPool, hidden: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

class Linear:
    """A matrix [rows, cols], packed, perhaps a bias, and a norm."""

    def __init__(self, pool: ThreadPool, weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float, precision: str, group: int = 0, level: str = '') -> None: ...

    @property
    def weight_bytes(self) -> int: ...

    def run(self, pool: ThreadPool, x: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')]) -> None:
        """From [..., cols] to [..., rows]."""

class Norm:
    """By the root mean square or, with a bias, a layer norm."""

    def __init__(self, weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float, level: str = '') -> None: ...

    def run(self, pool: ThreadPool, x: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')]) -> None:
        """From [..., size] to the same."""

def activate(pool: ThreadPool, name: str, x: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], level: str = '') -> None:
    """
    act(x) of [..., size] or, where x is twice as wide, act(first half) * second half.
    """

class Layer:
    """Self-attention or a decoder layer, with caches of its own."""

    def __init__(self, pool: ThreadPool, shape: dict, weights: dict, activation: str, precision: str, group: int = 0, level: str = '') -> None: ...

    @property
    def weight_bytes(self) -> int: ...

    def new_cache(self, rows: int, capacity: int) -> KvCache: ...

    def run(self, pool: ThreadPool, cache: KvCache, rows: Sequence[int], positions: Sequence[Sequence[int]], x: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)]], tree_mask: Annotated[NDArray[numpy.bool_], dict(shape=(None, None, None), order='C', device='cpu', writable=False)] | None, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
        """From inputs [B, n, size] each to [B, n, hidden]."""

def uniform(seed: int, position: int, purpose: int, node: int) -> float: ...

def write_noise(seed: int, position: int, row: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def warp_rows(logits: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], probs: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[list[int], list[int]]:
    """Which rows are all -inf, which broken."""

def draw_rows(probs: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], uniforms: Sequence[float]) -> list[int]: ...

def draw_siblings(probs: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], keys: Sequence[tuple[int, int]], nodes: Sequence[Sequence[int]], replacement: bool, rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> list[list[int]]:
    """The tokens drawn from each row."""

def top_rows(rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> list[int]:
    """
    The token of each row's largest value; -1 where that is infinite, or a value no number.
    """

def couple_rows(probs: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], noise: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> list[int]: ...

def couple_keys(probs: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], keys: Sequence[tuple[int, int]]) -> list[int]: ...

class DraftToVerify:
    """The draft of one request and how it is verified."""

    def __init__(self, rule: str, tokens: Sequence[int], parents: Sequence[int], draft: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')] | None, warp: tuple[float, int, float, float], seed: int, committed: int) -> None: ...

def verify_batch(drafts: Sequence[DraftToVerify], logits: Annotated[NDArray, dict(shape=(None, None, None), order='C', device='cpu')], pool: ThreadPool | None) -> list:
    """
    Warp logits [B, n, V] and verify: the end of each path and the token after it, or the error of that request alone.
    """

def decide(rule: str, tokens: Sequence[int], parents: Sequence[int], target: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')], draft: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')] | None, emit: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> tuple[list[float], list[int], list[int], int]:
    """accept, on_accept, on_reject, start"""

class DraftHead:
    """The output head for a part of a decoder's vocabulary."""

    def __init__(self, decoder: Decoder, first: int) -> None:
        """Knows the decoder's first tokens."""

    def add(self, tokens: Sequence[int]) -> None:
        """Make more tokens known."""

class DraftChain:
    """One chain to draft."""

    def __init__(self, row: int, pending: Sequence[int], limit: int, stops: Sequence[int], drawing: str, warp: tuple[float, int, float, float], seed: int, committed: int, head: DraftHead | None = None, least: float = 0.0) -> None: ...

def draft_chains(decoder: Decoder, pool: ThreadPool, cache: KvCache, chains: Sequence[DraftChain], probs: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]], vocab: int, view: tuple[int, int, bool, int] | None) -> list[list[int]]:
    """Draft all chains side by side; the tokens of each."""

class HeadChains:
    """A trained head that drafts whole chains."""

    def __init__(self, state_norms: list, fuse: object, layers: list, norm: object | None, output: object, token_ids: Sequence[int], embedding: object, vocab: int) -> None: ...

    def draft(self, pool: ThreadPool, caches: Sequence[KvCache], chains: Sequence[DraftChain], states: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]], probs: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]]) -> list[list[int]]:
        """
        Draft all chains side by side from states of the target; the tokens of each.
        """

class Stream:
    """Memory to measure the streaming read bandwidth with."""

    def __init__(self, bytes: int) -> None: ...

    @property
    def nbytes(self) -> int: ...

    def read(self, pool: ThreadPool, bytes: int, times: int = 1) -> float:
        """
        Seconds for all threads to read the first `bytes` once, the mean of `times` in a row.
        """

def peak_rate(pool: ThreadPool, precision: str) -> float:
    """
    Multiply-adds a second of the precision's instruction, operands in registers; 0: no such instruction.
    """

def fill_cache(cache: KvCache, row: int, length: int) -> None:
    """Give a row `length` slots of keys and values that mean nothing."""
