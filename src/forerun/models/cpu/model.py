"""A decoder on the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from forerun import _native
from forerun.contracts import Cache, LogitsFor
from forerun.core import Draft, Drawing, Exactness, ForwardOutput
from forerun.errors import (
    CacheError,
    CheckpointError,
    ConfigError,
    DistributionError,
    MemoryLimitError,
    UnknownNameError,
)
from forerun.models.architecture import Architecture
from forerun.models.checkpoint import Source, match_keys
from forerun.models.cpu.cache import CpuCache, CpuCacheView
from forerun.models.cpu.chains import ChainRequest
from forerun.models.cpu.threads import runtime, shared_runtime
from forerun.models.cpu.weights import chunks, describe_shape
from forerun.models.layers import check_layers
from forerun.models.layouts import layout_of
from forerun.models.placement import KERNEL_PRECISIONS

LEVELS = ("portable", "avx2", "avx512")
GROUPS = (32, 64, 128)


class CpuModel:
    """A decoder on the compiled kernels; implements `forerun.contracts.CausalLM`.

    Logits and hidden states are float32, whatever the weights are. They do not depend on how many
    tokens, which tree, which row of a batch, which chunk of a prompt or how many threads they were
    computed with.

    Args:
        shape: of the model.
        source: published weights, read chunk by chunk.
        precision: of the weights: `fp32`, `bf16`, `int8` or `int4`. Keys and values are kept in fp32
            for fp32, else in bf16; the head of an int4 model is int8.
        name: how messages and reports call the model.
        level: the instruction set, `portable`, `avx2` or `avx512`; empty takes the best there is.
        group: columns that share a scale in int8 and int4: 32, 64 or 128; 0 for 64 and 32.
        threads: how many to run on; None takes what the process was told to.

    Raises:
        CheckpointError: for missing, unexpected, misshapen or non-finite weights, or a shape that
            the kernels cannot run.
        ConfigError: for a precision, level, group or number of threads that there is not.
        MemoryLimitError: when there is no memory for them.
    """

    exactness = Exactness.BITWISE

    def __init__(
        self,
        shape: Architecture,
        source: Source,
        precision: str,
        name: str,
        *,
        level: str = "",
        group: int = 0,
        threads: int | None = None,
    ) -> None:
        _check_choices(precision, level, group)
        self.shape, self.name, self.precision = shape, name, precision
        self.vocab_size, self.num_layers = shape.vocab_size, shape.num_layers
        self.hidden_size, self.max_context = shape.hidden_size, shape.max_context
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self._runtime = shared_runtime() if threads is None else runtime(threads)
        try:
            self._decoder = _native.kernels.Decoder(describe_shape(shape, precision, group), level)
            self._load(source)
        except ValueError as error:
            raise CheckpointError(f"{name} cannot run on the CPU kernels: {error}.") from None
        except MemoryError:
            raise MemoryLimitError(
                f"there is not enough memory for the weights of {name} in {precision}; "
                "use a smaller dtype."
            ) from None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return int(self._decoder.weight_bytes)

    def new_cache(self, rows: int, capacity: int) -> CpuCache:
        """An empty cache of `rows` rows with `capacity` slots each.

        Raises:
            CacheError: for none of either.
            MemoryLimitError: when there is no memory for it.
        """
        if rows < 1 or capacity < 1:
            raise CacheError(
                f"a cache of {rows} rows with {capacity} slots holds nothing; "
                "ask for at least 1 of each."
            )
        try:
            return CpuCache(self._decoder.new_cache(rows, capacity))
        except (MemoryError, ValueError, TypeError):  # The latter for numbers that no memory has.
            raise MemoryLimitError(
                f"there is not enough memory for {rows} x {capacity} tokens in the cache of "
                f"{self.name}; use a smaller context or batch."
            ) from None

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: CpuCacheView,
        tree_mask: Tensor | None = None,
        hidden_layers: Sequence[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: when a row is full, its layers differ in length, a position lies beyond the
                context, or the cache is of another kind of model.
            ConfigError: for layers that the model does not have or that are not run, token ids
                outside the vocabulary, and tensors whose shapes do not fit each other.
        """
        layers = check_layers(self, layers, hidden_layers, hidden_in)
        _check_inputs(self.name, token_ids, positions, cache, tree_mask)
        batch, width = token_ids.shape
        if batch != len(cache.rows):
            raise CacheError(
                f"{batch} rows of tokens were run on a view of {len(cache.rows)} rows."
            )
        last = logits_for == "last"
        logits = None
        if logits_for != "none" and layers.stop == self.num_layers:
            logits = torch.zeros(batch, 1 if last else width, self.vocab_size)
        hidden = {i: torch.zeros(batch, width, self.hidden_size) for i in hidden_layers}
        self._run(
            self._decoder.forward,
            cache.native,
            cache.rows,
            token_ids.contiguous().numpy(),
            positions.contiguous().numpy(),
            (layers.start, layers.stop),
            None if logits is None else logits.numpy(),
            last,
            None if tree_mask is None else tree_mask.contiguous().numpy(),
            None if hidden_in is None else hidden_in.detach().float().contiguous().numpy(),
            [(layer, out.numpy()) for layer, out in hidden.items()],
        )
        return ForwardOutput(logits, hidden)

    def run_rows(
        self,
        cache: CpuCache,
        rows: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        *,
        positions: Sequence[Sequence[int]] | None = None,
        tree_mask: Tensor | None = None,
        hidden_layers: Sequence[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """What `forerun.models.running.run_rows` does, without a tensor made of the tokens on the way.

        Raises:
            CacheError, ConfigError: as `forward`.
        """
        layers = check_layers(self, layers, hidden_layers, hidden_in)
        longest = max(map(len, token_ids))
        last = logits_for == "last"
        # What stands for padding is looked at by nobody, but it should be numbers.
        make = torch.empty if min(map(len, token_ids)) == longest else torch.zeros
        logits = None
        if logits_for != "none" and layers.stop == self.num_layers:
            logits = make(len(rows), 1 if last else longest, self.vocab_size)
        hidden = {i: make(len(rows), longest, self.hidden_size) for i in hidden_layers}
        self._run(
            self._decoder.forward_lists,
            cache.native,
            rows,
            token_ids,
            positions,
            (layers.start, layers.stop),
            None if logits is None else logits.numpy(),
            last,
            None if tree_mask is None else tree_mask.contiguous().numpy(),
            None if hidden_in is None else hidden_in.detach().float().contiguous().numpy(),
            [(layer, out.numpy()) for layer, out in hidden.items()],
        )
        return ForwardOutput(logits, hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of hidden states [B, n, hidden_size], those of a forward bit for bit.

        Raises:
            ConfigError: for hidden states of another size.
        """
        states = hidden.detach().float().reshape(-1, hidden.shape[-1]).contiguous()
        logits = torch.empty(len(states), self.vocab_size)
        self._run(self._decoder.head, states.numpy(), logits.numpy())
        return logits.view(*hidden.shape[:-1], self.vocab_size)

    def _run(self, forward: Callable[..., None], *arguments: Any) -> None:
        try:
            forward(self._runtime, *arguments)
        except Exception as error:
            raise _typed(self.name, error) from None

    def draft_chains(
        self, cache: Cache, requests: Sequence[ChainRequest], vocab_size: int
    ) -> list[Draft]:
        """Draft chains side by side, all steps in one call.

        The tokens of `requests[i].pending` and all drafted ones but the last are appended to its row
        of the cache.

        Args:
            cache: of this model.
            requests: of different rows.
            vocab_size: the target's; tokens that this model lacks have no probability.

        Raises:
            CacheError: when a row is full or a position lies beyond the context.
            DistributionError: for logits that are no numbers.
        """
        assert isinstance(cache, CpuCache), "the cache of another kind of model"
        shapes = [(one.limit if one.drawing is Drawing.DRAW else 0, vocab_size) for one in requests]
        probs = [torch.empty(shape) for shape in shapes]
        try:
            drafted = _native.kernels.draft_chains(
                self._decoder,
                self._runtime,
                cache.native,
                [one.native() for one in requests],
                [rows.numpy() for rows in probs],
                vocab_size,
            )
        except _native.kernels.RowError as error:
            raise DistributionError(f"{self.name}: {error}.") from None
        except Exception as error:
            raise _typed(self.name, error) from None
        return [
            Draft.chain(tokens, rows[: len(tokens)] if len(rows) and tokens else None)
            for tokens, rows in zip(drafted, probs, strict=True)
        ]

    def _load(self, source: Source) -> None:
        layout = layout_of(self.shape)
        found = match_keys(source, layout)
        for tensor in layout.tensors:
            for start, chunk in chunks(tensor, source, found):
                try:
                    self._decoder.load(
                        self._runtime,
                        tensor.name,
                        start,
                        len(chunk),
                        chunk[0].numel(),
                        chunk.data_ptr(),
                        str(chunk.dtype).removeprefix("torch."),
                    )
                except ValueError as error:
                    raise CheckpointError(f"{source.name}: {error}.") from None


def _check_choices(precision: str, level: str, group: int) -> None:
    if precision not in KERNEL_PRECISIONS:
        raise UnknownNameError("precision", precision, KERNEL_PRECISIONS)
    if level not in ("", *LEVELS):
        raise UnknownNameError("level", level, LEVELS)
    if group not in (0, *GROUPS):
        raise ConfigError(f"a group has 32, 64 or 128 columns, not {group}; 0 leaves it to us.")


def _check_inputs(
    name: str, token_ids: Tensor, positions: Tensor, cache: Any, tree_mask: Tensor | None
) -> None:
    """What the kernels would convert or not understand is refused."""
    if not isinstance(cache, CpuCacheView):
        raise CacheError(
            f"{name} was given a {type(cache).__name__}; make a cache with its new_cache and give "
            "a view of it."
        )
    if any(one.dtype is not torch.int64 or one.ndim != 2 for one in (token_ids, positions)):
        raise ConfigError(f"{name} takes token_ids and positions of int64 and shape [B, n].")
    if tree_mask is not None and (tree_mask.dtype is not torch.bool or tree_mask.ndim != 3):
        raise ConfigError(f"{name} takes a tree_mask of bool and shape [B, n, m].")


def _typed(name: str, error: Exception) -> Exception:
    """What an error of the kernels means."""
    if isinstance(error, _native.kernels.CacheError):
        return CacheError(f"{name}: {error}")
    if isinstance(error, MemoryError):
        return MemoryLimitError(
            f"there is not enough memory to run {name}; run fewer tokens at once."
        )
    if isinstance(error, (ValueError, TypeError)):
        return ConfigError(f"{name} cannot run this: {_first_line(error)}")
    return error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
