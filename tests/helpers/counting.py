"""A toy model that counts what it runs."""

from __future__ import annotations

from forerun.core import Batch, ForwardOutput
from forerun.testing import ToyModel
from forerun.testing.toy import ToyCache


class Counting(ToyModel):
    """Counts the tokens that it runs."""

    ran = 0

    def forward(self, batch: Batch, cache: ToyCache) -> ForwardOutput:
        self.ran += sum(batch.counts)
        return super().forward(batch, cache)
