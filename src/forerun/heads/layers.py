"""Parts that heads share: decoder layers with their caches, embeddings, and output rows, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import (
    CausalLM,
    Layer,
    LayerShape,
    Module,
    Modules,
)
from forerun.errors import CheckpointError, ConfigError
from forerun.kv_cache.fit import check_row
from forerun.models.architecture import Architecture
from forerun.models.layouts import layout_of
from forerun.models.rope import frequencies
from forerun.sampling import DraftVocabulary

# Number of columns of the target's output head that are read off at once.
_COLUMNS = 64
# Most that logits may differ from those of rows, in their spreads, for tied rows and for a single product.
_TIED, _PRODUCT = 0.05, 0.1

Shapes = dict[str, tuple[int, ...]]
"""Shapes of tensors by published name."""


def _parts(shape: Architecture, index: int) -> Iterator[tuple[str, Shapes]]:
    """The parts of a layer, by the names of `LayerShape`, with their published tensors."""
    prefix = f"layers.{index}."
    for fused in layout_of(shape).tensors:
        if fused.name.startswith(prefix):
            name, _, kind = fused.name.removeprefix(prefix).rpartition(".")
            shapes = {part.key.removeprefix("model."): part.shape for part in fused.parts}
            yield f"{name}_bias" if kind == "bias" else name, shapes


def layer_shapes(shape: Architecture, index: int, width: int | None = None) -> Shapes:
    """Shapes of a layer's published tensors.

    Args:
        shape: architecture of the head's layers.
        index: index of the layer.
        width: size of the hidden states that its attention reads, if not `hidden_size`.
    """
    made: Shapes = {}
    for name, shapes in _parts(shape, index):
        if name == "qkv" and width is not None:
            shapes = {key: (rows, width) for key, (rows, _) in shapes.items()}
        made |= shapes
    return made


def layer(
    modules: Modules,
    shape: Architecture,
    tensors: Mapping[str, Tensor],
    index: int,
    input_norms: Sequence[str] = ("input_layernorm",),
    *,
    normed_residual: bool = False,
) -> Layer:
    """Build a decoder layer of a head.

    Args:
        modules: builder of its parts.
        shape: architecture of the head's layers.
        tensors: published tensors, see `layer_shapes`.
        index: index of the layer.
        input_norms: name of the norm of each input among the layer's tensors; an input whose norm
            is missing is not normed.
        normed_residual: see `LayerShape`.

    Raises:
        CheckpointError: for weights that cannot run.
    """
    own = {name: list(shapes) for name, shapes in _parts(shape, index) if name != "input_norm"}
    for place, norm in enumerate(input_norms):
        own[f"input_norm.{place}"] = [f"layers.{index}.{norm}.weight"]
    found = {name: [tensors[key] for key in keys if key in tensors] for name, keys in own.items()}
    weights = {name: torch.cat(stacked) for name, stacked in found.items() if stacked}
    inverse, scale = frequencies(shape)
    inner = LayerShape(
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        window=shape.windows[index],
        norm_eps=shape.norm_eps,
        inverse_frequencies=tuple(inverse.tolist()),
        rotary_scale=scale,
        activation=shape.activation,
        inputs=len(input_norms),
        normed_residual=normed_residual,
    )
    return modules.layer(inner, weights)


class BlockCache:
    """The caches of a head's layers, which all hold the same tokens; a `forerun.contracts.Cache`.

    Args:
        layers: the layers.
        rows, capacity: number of rows, and of tokens per row.
    """

    def __init__(self, layers: Sequence[Layer], rows: int, capacity: int) -> None:
        self.layers = tuple(layer.new_cache(rows, capacity) for layer in layers)
        self.rows, self.capacity = self.layers[0].rows, self.layers[0].capacity

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row`, in its shortest layer if None.

        Raises:
            CacheError: for a row that does not exist.
        """
        check_row(row, self.rows)
        chosen = self.layers if layer is None else self.layers[layer : layer + 1]
        return min(int(cache.length(row)) for cache in chosen)

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order."""
        for cache in self.layers:
            cache.keep(row, length, path)

    def trim(self, row: int, length: int) -> None:
        """Forget the tokens of `row` after the first `length`."""
        for cache in self.layers:
            cache.trim(row, length)


def embedding(target: CausalLM, tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """The head's own embedding of token ids [B, n], or the target's."""
    table = tensors.get("embed_tokens.weight")
    if table is None:
        return target.embed
    own = table.to(target.device)
    return lambda ids: functional.embedding(ids, own).to(target.dtype)


def draft_ids(offsets: Tensor, vocab_size: int, name: str) -> Tensor:
    """The target's ids of the tokens that a head can draft, [Vd].

    Args:
        offsets: `d2t` [Vd]; index plus offset is the target's id.
        vocab_size: the target's.
        name: name of the head, for messages.

    Raises:
        CheckpointError: for ids outside the vocabulary, or an id that occurs twice.
    """
    ids = torch.arange(len(offsets)) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{name}: d2t leads to token ids {int(ids.min())} to {int(ids.max())}, outside the target's "
            f"{vocab_size}; it must hold offsets (target id minus draft id), not ids."
        )
    if len(set(ids.tolist())) != len(ids):
        raise CheckpointError(f"{name}: d2t leads to a token id twice; make the head again.")
    return ids


def ascending(
    tensors: Mapping[str, Tensor], vocab_size: int, name: str
) -> tuple[Tensor | None, Mapping[str, Tensor]]:
    """The target's ids of a reduced vocabulary, and a head's tensors in the order of these ids.

    None for a whole vocabulary. In the target's order, uniform numbers pick the same tokens as over
    the whole vocabulary.

    Raises:
        CheckpointError: for a wrong `d2t`.
    """
    if "d2t" not in tensors:
        return None, tensors
    ids, order = draft_ids(tensors["d2t"], vocab_size, name).sort()
    reordered = {key: tensors[key][order] for key in ("lm_head.weight",) if key in tensors}
    return ids, {**tensors, **reordered}


class OutputRows:
    """The output head over the draft's vocabulary: the head's own, or those rows of the target's.

    Args:
        target: lends its output head.
        modules: builder of its parts.
        ids: the target's ids of the rows; None for all.
        own: the head's own rows [Vd, hidden_size], if it has any.
        norm: weights [hidden_size] of the norm before it, if there is one.
        eps: eps of that norm.

    Attributes:
        vocabulary: the tokens that the rows stand for; None for all of the target's.
        linear: the single product that the output head consists of; None if the target's own runs.
    """

    def __init__(
        self,
        target: CausalLM,
        modules: Modules,
        ids: Tensor | None,
        own: Tensor | None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> None:
        self._target, self._ids = target, ids
        self.vocabulary = vocabulary_of(target, ids)
        weight = own
        if weight is None and ids is not None:
            weight = borrowed_rows(target, ids)
        self.linear: Module | None = None
        self._norm: Module | None = None
        if weight is not None:
            self.linear = modules.linear(weight, norm=norm, eps=eps)
        elif norm is not None:
            self._norm = modules.norm(norm, eps=eps)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [..., Vd] of hidden states [..., hidden_size], which must be normed if there is no norm."""
        if self.linear is not None:
            return self.linear(hidden)
        if self._norm is not None:
            hidden = self._norm(hidden)
        shape = hidden.shape
        logits = self._target.lm_head(hidden.reshape(1, -1, shape[-1]))
        if self._ids is not None:
            logits = logits[..., self._ids.to(logits.device)]
        return logits.reshape(*shape[:-1], -1)


def vocabulary_of(target: CausalLM, ids: Tensor | None) -> DraftVocabulary | None:
    """The draft's vocabulary of these ids of the target's; None for all."""
    return None if ids is None else DraftVocabulary(ids.to(target.device), target.vocab_size)


def borrowed_rows(target: CausalLM, ids: Tensor) -> Tensor | None:
    """Rows [Vd, hidden_size] of the target's output head; None if it is more than one product.

    A head that is tied to the embedding has its rows. Those of another are read off by running unit
    vectors through it: one pass over `hidden_size` tokens, on its own backend. Capped logits or a
    bias are more than a product.
    """
    size, ids = target.hidden_size, ids.to(target.device)
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(1, 1, size, generator=generator).to(target.device, target.dtype)
    # A bias shows among small logits, a cap among large ones.
    probes = torch.cat((4 * probe, 1024 * probe), dim=1)
    given = target.lm_head(probes)[0][:, ids]
    spread = given.float().std(dim=-1, keepdim=True).clamp(min=1e-6)

    def apart(rows: Tensor) -> float:
        ours = probes[0].float() @ rows.float().T
        return float(((given.float() - ours).abs() / spread).mean(dim=-1).max())

    # Quantized activations and bf16 round by about a hundredth; a cap or a bias differs by far more.
    with suppress(ConfigError):
        rows = target.embed(ids[None])[0].detach().to(given.dtype)
        if apart(rows) < _TIED:
            return rows
    unit = torch.eye(size, dtype=target.dtype, device=target.device)
    parts = [
        target.lm_head(unit[None, at : at + _COLUMNS])[0][:, ids] for at in range(0, size, _COLUMNS)
    ]
    rows = torch.cat(parts).T.contiguous()
    return rows if apart(rows) < _PRODUCT else None
