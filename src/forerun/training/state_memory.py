"""Keeps hidden states of texts that the target has read before in memory, as far as they fit."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

from forerun.models.memory import available_bytes
from forerun.training.conversations import Conversation

# Tokens of a block. Blocks are few and large: with an allocation for each text, fragmentation made the
# allocator take a fifth of the time.
BLOCK = 2**16
# Share of the initially free memory that stays free.
LEFT_FREE = 0.5
CPU = torch.device("cpu")


class StateMemory:
    """Hidden states by text; once memory is short, no further states are stored."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._used = 0
        self._places: dict[Conversation, Tensor] = {}
        self._lock = Lock()
        self._spare = LEFT_FREE * available_bytes(CPU)

    def __contains__(self, text: Conversation) -> bool:
        return text in self._places

    def __getitem__(self, text: Conversation) -> Tensor:
        return self._places[text]

    def put(self, text: Conversation, states: Tensor) -> None:
        """Store a copy of the states of a text [S, ...], if there is room."""
        with self._lock:
            place = self._room(states)
        if place is not None:
            place.copy_(states)
            self._places[text] = place

    def _room(self, states: Tensor) -> Tensor | None:
        """An uninitialized tensor of the shape of `states`; None if memory is short."""
        size = len(states)
        if not self._blocks or self._used + size > len(self._blocks[-1]):
            rows = max(BLOCK, size)
            if available_bytes(CPU) - rows * states[0].nbytes < self._spare:
                return None
            self._blocks.append(states.new_empty(rows, *states.shape[1:]))
            self._used = 0
        self._used += size
        return self._blocks[-1][self._used - size : self._used]
