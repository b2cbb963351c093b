"""Windows of a long text in a random order, for training loops that stop and resume."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from forerun.errors import TrainingError


class Windows:
    """Windows of tokens in a random order that is a function of (seed, epoch) alone.

    Each epoch cuts the text at another offset and visits every window once, so a run that resumes
    at the same count of tokens sees the same text as one that never stopped.
    """

    def __init__(self, tokens: np.ndarray, seed: int) -> None:
        self.tokens, self.seed = tokens, seed

    def batch(self, start: int, length: int, count: int) -> np.ndarray:
        """The next windows of a run that has seen `start` tokens, [count, length + 1]."""
        per_epoch = (len(self.tokens) - 1) // length - 1
        if per_epoch < 1:
            raise TrainingError(f"{len(self.tokens)} tokens are too few for windows of {length}.")
        rows = []
        for index in range(start // length, start // length + count):
            epoch, position = divmod(index, per_epoch)
            offset, order = _epoch(self.seed, epoch, length, per_epoch)
            begin = offset + int(order[position]) * length
            rows.append(self.tokens[begin : begin + length + 1])
        return np.stack(rows).astype(np.int64)


@lru_cache(maxsize=1)
def _epoch(seed: int, epoch: int, length: int, per_epoch: int) -> tuple[int, np.ndarray]:
    """Where the first window of an epoch begins, and the order of its windows."""
    random = np.random.default_rng([seed, epoch, length])
    return int(random.integers(length)), random.permutation(per_epoch)
