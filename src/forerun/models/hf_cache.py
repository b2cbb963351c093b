"""Cache for models of transformers, which is cropped row by row, and probes of a model that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forerun.core import Batch, Tree
from forerun.errors import CacheError, ConfigError, MemoryLimitError, UnsupportedModelError
from forerun.kv_cache import check_length, check_path, check_row
from forerun.models.config import one_line

if TYPE_CHECKING:
    from forerun.models.hf import HFModel


class HFCache:
    """Rows of `DynamicCache`; implements `forerun.contracts.Cache`.

    Every layer keeps all its keys and values, even with a sliding window: a window that has dropped
    a slot cannot be rolled back.

    Args:
        rows: number of rows.
        capacity: tokens per row.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        if rows < 1 or capacity < 1:
            raise CacheError.no_room(rows, capacity)
        from transformers import DynamicCache

        # Without a config every layer keeps all tokens, whatever the model's windows.
        self.caches: list[Any] = [DynamicCache() for _ in range(rows)]
        self.positions: list[list[int]] = [[] for _ in range(rows)]
        self.rows, self.capacity = rows, capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values held now."""
        layers = [layer for cache in self.caches for layer in cache.layers if layer.is_initialized]
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row`; all layers hold the same tokens.

        Raises:
            CacheError: for a row that does not exist.
        """
        check_row(row, self.rows)
        return len(self.positions[row])

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the row holds
                it.
        """
        check_path(row, length, path, self.length(row))
        self._select(row, [*range(length), *(length + token for token in path)])

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`.

        Raises:
            CacheError: for a row that does not exist, a negative length, or if `layers` are given:
                all layers hold the same tokens.
        """
        if layers is not None:
            raise CacheError(
                f"a cache of transformers is trimmed in all layers, not just in {layers}; give no layers."
            )
        check_length(row, length)
        self._select(row, range(min(length, self.length(row))))

    def _select(self, row: int, slots: Sequence[int]) -> None:
        self.positions[row] = [self.positions[row][slot] for slot in slots]
        prefix = len(slots) == 0 or slots[-1] == len(slots) - 1
        for layer in self.caches[row].layers:
            if not layer.is_initialized:
                continue
            if prefix:
                layer.keys = layer.keys[..., : len(slots), :]
                layer.values = layer.values[..., : len(slots), :]
            else:
                index = torch.tensor(slots, device=layer.keys.device)
                layer.keys = layer.keys.index_select(-2, index)
                layer.values = layer.values.index_select(-2, index)


Operation = Callable[[Tensor], Tensor]

# Names of final norms.
_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
# The largest value written to the cache: it must fit 16 bits.
_LARGEST = 1e4
# A longer window is not probed: a text of its length would take too much memory.
_LONGEST_WINDOW = 4096


def probe(model: HFModel, config: Any) -> None:
    """Check that a model gives two siblings the logits that they have in a chain.

    The text before them is longer than the model's windows; compared are the logits of the second
    sibling and of the parent. For a model whose code does not use the window of its config, masks
    get no window either.

    Args:
        model: the model.
        config: config of the text model.

    Raises:
        UnsupportedModelError: naming the model and what is wrong.
        MemoryLimitError: if there is not enough memory for the probe.
    """
    kind = f"{model.name} ({model.model.config.model_type})"
    try:
        wrong = _run_probe(model, config)
    except (MemoryError, MemoryLimitError) as error:
        raise MemoryLimitError(
            f"there is not enough memory to run {kind}; use a smaller dtype or model."
        ) from error
    except Exception as error:
        # A model of transformers may raise any exception.
        raise UnsupportedModelError(
            f"{kind} fails in transformers with a tree's inputs ({one_line(error)}); "
            "it cannot be run speculatively."
        ) from error
    if wrong is not None:
        raise UnsupportedModelError(f"{kind} {wrong}; it cannot be run speculatively.")


def _run_probe(model: HFModel, config: Any) -> str | None:
    """The defect of the model in words; None if it passes."""
    sizes = {value for key, value in config.to_dict().items() if "window" in key}
    longest = min(_LONGEST_WINDOW, model.max_context - 3)
    windows = [size for size in sizes if type(size) is int and 1 < size <= longest]
    length = max(windows, default=1) + 1
    cache = model.new_cache(1, length + 3)
    first, left, right, other = (token % model.vocab_size for token in range(1, 5))
    model.forward(Batch.after(cache, [0], [[first, other]]), cache)
    caches = cache.caches[0]
    if len(caches.layers) == 0 or caches.get_seq_length() != 2:
        return "keeps no cache that can be cropped"
    _lengthen(cache, length, [length + 1 - window for window in windows])
    expected = _logits(model, cache, [first, right], None)
    cache.trim(0, length)
    tolerance = (0.1 if model.dtype.itemsize < 4 else 1e-3) * expected.std()
    for windows_used in (model.windows, dict.fromkeys(model.windows)):
        model.windows = windows_used
        branched = _logits(model, cache, [first, left, right], Tree((-1, 0, 0)))
        cache.trim(0, length)
        if (branched[[0, 2]] - expected).abs().max() <= tolerance:
            return None
    return "does not follow tree attention masks: logits differ from those of a chain"


def _lengthen(cache: HFCache, length: int, marked: list[int]) -> None:
    """Extend a row of two tokens to `length` copies of the first.

    At the `marked` slots, the last ones that a window hides, values are as large as all others
    together, so that a wrong window shows.
    """
    for layer in cache.caches[0].layers:
        layer.keys = layer.keys[..., :1, :].repeat_interleave(length, -2)
        values = layer.values[..., :1, :].repeat_interleave(length, -2)
        mark = (layer.values[..., 1:, :] * length).clamp(-_LARGEST, _LARGEST)
        values[..., marked, :] = mark
        layer.values = values
    cache.positions[0] = list(range(length))


def _logits(model: HFModel, cache: HFCache, tokens: list[int], tree: Tree | None) -> Tensor:
    out = model.forward(Batch.after(cache, [0], [tokens], trees=[tree]), cache)
    assert out.logits is not None, "logits were asked for"
    return out.logits[0].float()


@torch.no_grad()
def find_head(model: Any, name: str) -> tuple[Operation, Operation]:
    """The final norm and the output head, if they alone turn the last layer's output into the exact logits.

    Some models scale or cap their logits, or put something between the two; this is detected here.

    Raises:
        ConfigError: naming the model.
    """
    output = model.get_output_embeddings()
    inner = model.base_model
    bodies = [inner, getattr(inner, "decoder", None)]
    norms = [
        getattr(body, norm)
        for body in bodies
        for norm in _NORMS
        if getattr(body, norm, None) is not None
    ]
    if output is not None and norms:
        seen: list[Tensor] = []
        hook = norms[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            token = torch.tensor([[0, 1 % model.config.get_text_config().vocab_size]])
            logits = model(input_ids=token.to(model.device), use_cache=False).logits
        finally:
            hook.remove()
        if len(seen) == 1 and torch.equal(output(norms[0](seen[0])), logits):
            return norms[0], output
    raise ConfigError(
        f"{name} runs on transformers and has no output head that can be run alone; "
        "use a method that drafts with a model of its own."
    )
