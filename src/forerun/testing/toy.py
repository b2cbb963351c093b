"""A language model of a few random tables, in float64: fast, exact and easy to enumerate."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from forerun.contracts import LogitsFor
from forerun.core import Exactness, ForwardOutput
from forerun.errors import CacheError, UnsupportedModelError


class ToyCache:
    """Remembers token ids by slot, which is all that a toy model attends to."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.capacity = capacity
        self.token_ids: list[list[int]] = [[] for _ in range(rows)]

    def length(self, row: int) -> int:
        return len(self.token_ids[row])

    def view(self, rows: Several[int]) -> list[list[int]]:
        return [self.token_ids[row] for row in rows]

    def keep(self, row: int, start: int, slots: Several[int]) -> None:
        held = self.token_ids[row]
        held[start:] = [held[start + slot] for slot in slots]

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        if layers is not None:
            raise CacheError(f"a toy cache has no {layers} to trim apart; give no layers.")
        del self.token_ids[row][length:]


class ToyModel:
    """Logits are a sum of random tables of the last `order` tokens that a token sees.

    Two models with the same `seed` and different `noise` agree more the smaller the noise is.

    Args:
        vocab_size: tokens.
        order: how many tokens back the logits look.
        seed: of the tables.
        noise: standard deviation of what is added to every table entry.
        noise_seed: of the noise.
        sharpness: standard deviation of the logits before noise, roughly.
    """

    num_layers = 1
    hidden_size = 1
    device = torch.device("cpu")
    dtype = torch.float64
    precision = "fp64"
    exactness = Exactness.BITWISE

    def __init__(
        self,
        vocab_size: int = 11,
        order: int = 3,
        seed: int = 0,
        noise: float = 0.0,
        noise_seed: int = 1,
        sharpness: float = 2.0,
        max_context: int = 512,
    ) -> None:
        self.name = f"toy-{vocab_size}"
        self.vocab_size, self.order, self.max_context = vocab_size, order, max_context
        shape = (order, vocab_size, vocab_size)
        tables = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=self.dtype)
        extra = torch.randn(
            shape, generator=torch.Generator().manual_seed(noise_seed), dtype=self.dtype
        )
        self.tables = (tables * sharpness + extra * noise) / order**0.5

    def new_cache(self, rows: int, capacity: int) -> ToyCache:
        return ToyCache(rows, capacity)

    def next_logits(self, token_ids: Several[int]) -> Tensor:
        """Logits [V] after `token_ids`."""
        logits = torch.zeros(self.vocab_size, dtype=self.tables.dtype)
        for back, token in enumerate(reversed(token_ids[-self.order :])):
            logits += self.tables[back, token]
        return logits

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: list[list[int]],
        tree_mask: Tensor | None = None,
        hidden_layers: Several[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """See `forerun.contracts.CausalLM.forward`. There are no layers to run apart.

        Raises:
            UnsupportedModelError: for partial runs.
            CacheError: where a row was cropped below the positions to run.
        """
        if layers is not None or hidden_in is not None:
            raise UnsupportedModelError(f"{self.name} has no layers to run apart.")
        rows = []
        for row, held in enumerate(cache):
            places = [place for place in positions[row].tolist() if place >= 0]
            new = token_ids[row, : len(places)].tolist()
            if places and places[0] > len(held):
                raise CacheError(f"position {places[0]} comes after {len(held)} cached tokens.")
            mask = None if tree_mask is None else tree_mask[row, : len(places)]
            rows.append(self._run_row(held, new, mask, token_ids.shape[1]))
        if logits_for == "none":
            return ForwardOutput(None)
        logits = torch.stack(rows)
        if logits_for == "last":
            last = (positions >= 0).sum(-1) - 1
            logits = logits[torch.arange(len(logits)), last][:, None]
        hidden = dict.fromkeys(hidden_layers, logits[..., :1])
        return ForwardOutput(logits, hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """There are no layers, so no head above them.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError(f"{self.name} has no head to run apart.")

    def _run_row(self, held: list[int], new: list[int], mask: Tensor | None, width: int) -> Tensor:
        logits = torch.zeros(width, self.vocab_size, dtype=self.tables.dtype)
        start = len(held)
        held.extend(new)
        for index in range(len(new)):
            if mask is None:
                seen = held[: start + index + 1]
            else:
                # Columns cover the last m - n slots and the new tokens.
                first = start - (mask.shape[1] - width)
                slots = [first + column for column in mask[index].nonzero().flatten().tolist()]
                seen = held[: max(first, 0)] + [held[slot] for slot in slots if slot >= 0]
            logits[index] = self.next_logits(seen)
        return logits
