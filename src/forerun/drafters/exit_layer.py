"""A trained decoder layer after an early exit, with its cache of each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core import Request
from forerun.heads.features import Features, Missing
from forerun.heads.layer_skip import LayerSkipHead
from forerun.trees.growth import Growth


class ExitLayer:
    """Reads the exit's states with a trained layer, whose cache holds the whole text.

    Tokens that the target has run are read with the states that prompts and rounds bring, the
    newest token and drafted ones with those of the drafter's own runs. The latter are removed after
    a round: accepted tokens are read again, with the states of the round.

    Args:
        head: the layer, on its target's backend.
        rows: number of requests at once.
        capacity: prompt and output tokens per request, drafted ones included.
    """

    def __init__(self, head: LayerSkipHead, rows: int, capacity: int) -> None:
        self.head, self.rows, self.capacity = head, rows, capacity
        self.cache = head.new_cache(rows, capacity)
        self.exit_layer, self.vocabulary = head.config.exit_layer, head.vocabulary
        self.features = Features((self.exit_layer,), rows, self.cache)
        self._missing: dict[int, Missing | None] = {}

    def longest(self, request: Request) -> int:
        """Most tokens of a request's next draft; none before the states of its text are known.

        The cache is cut to the text.
        """
        missing = self._missing[request.row] = self.features.missing(request)
        return 0 if missing is None else self.capacity - len(request)

    def logits(self, growths: Sequence[Growth], hidden: Tensor) -> Tensor:
        """Logits [B, Vd] after the newest tokens of chains, from the exit's states [B, 1, hidden_size]."""
        rows, states = [], list(hidden)
        behind: dict[int, Tensor] = {}
        for index, growth in enumerate(growths):
            rows.append(growth.request.row)
            if not growth.token_ids:
                behind[index] = self._run_most(growth.request)
                states[index] = torch.cat((behind[index], states[index]))
        logits = self.head.run(rows, states, self.cache)
        for index, own in behind.items():
            self.features.ran(growths[index].request, len(own))
        return logits

    def _run_most(self, request: Request) -> Tensor:
        """Run most of the states that a text's row lacks if there are many; return those that are left."""
        missing = self._missing[request.row]
        assert missing is not None, "nothing is drafted without states"
        return self.features.run_most(
            request, missing, lambda some, _: self.head.run([request.row], [some], self.cache)
        )
