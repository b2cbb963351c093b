"""What a round costs beside the models: everything in `Engine.step` that is no forward pass.

python -m forerun.bench.host_time

The models answer at once with rows that fall off as the ranks of words do, the drafter's a little
off the target's. Their time is taken away; what is left is planning, drawing, warping, verifying,
keeping the caches. No text is made, and no monitor watches: beside models that cost nothing it
would stop speculation.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import LogitsFor
from forerun.core import Exactness, ForwardOutput
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.testing.toy import ToyCache

VOCAB_SIZES = (4096, 151_936)
SETTINGS = {
    "plain": SamplingParams(temperature=0.0, max_tokens=None),
    "greedy": SamplingParams(temperature=0.0, max_tokens=None),
    "sampled": SamplingParams(max_tokens=None),
    "top-k 50": SamplingParams(top_k=50, max_tokens=None),
    "top-p 0.9": SamplingParams(top_p=0.9, max_tokens=None),
    "top-p 0.9, seed": SamplingParams(top_p=0.9, seed=1, max_tokens=None),
}
_CONTEXT = 100_000
_WARM_UP = 20


@dataclass(frozen=True)
class Row:
    """One setting.

    Args:
        vocabulary, setting: which.
        microseconds: a round, forwards apart: the lowest of the medians of ten stretches, because
            other work on the machine only adds.
        drafting: of which the drafter's, likewise.
        tokens: emitted a round.
    """

    vocabulary: int
    setting: str
    microseconds: float
    drafting: float
    tokens: float


class InstantModel:
    """Returns the same logits whatever the tokens, and keeps the time that this takes."""

    name = "instant"
    num_layers = 1
    hidden_size = 1
    max_context = _CONTEXT
    device = torch.device("cpu")
    dtype = torch.float32
    precision = "fp32"
    exactness = Exactness.BITWISE

    def __init__(self, row: Tensor, longest: int) -> None:
        self.vocab_size = len(row)
        self.logits = row.expand(1, longest, -1).contiguous()
        self.seconds = 0.0

    def new_cache(self, rows: int, capacity: int) -> ToyCache:
        return ToyCache(rows, capacity)

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
        """See `forerun.contracts.CausalLM.forward`, for one row at a time."""
        started = perf_counter()
        cache[0].extend(token_ids[0].tolist())
        wanted = {"all": token_ids.shape[1], "last": 1, "none": 0}[logits_for]
        logits = self.logits[:, :wanted] if wanted else None
        self.seconds += perf_counter() - started
        return ForwardOutput(logits)


class TimedDrafter(DraftModelDrafter):
    """Keeps the time that drafting takes."""

    seconds = 0.0

    def propose(self, *args: Any) -> Any:
        started = perf_counter()
        drafts = super().propose(*args)
        self.seconds += perf_counter() - started
        return drafts


def measure(vocab_size: int, setting: str, drafted: int = 4, rounds: int = 200) -> Row:
    """The median round of one setting with `drafted` tokens; `plain` drafts none."""
    generator = torch.Generator().manual_seed(vocab_size)
    ranks = torch.randperm(vocab_size, generator=generator) + 1
    row = -1.5 * ranks.log()
    target = InstantModel(row, drafted + 1)
    model = InstantModel(row + 0.3 * torch.randn(vocab_size, generator=generator), drafted + 1)
    drafter = TimedDrafter(model, 1, _CONTEXT)
    config = SpeculativeConfig(num_speculative_tokens=drafted, monitor=False)
    engine = Engine(target, drafter, config)
    engine.add([0, 1], SETTINGS[setting], speculative=setting != "plain")
    times, drafting, tokens = [], [], 0
    for index in range(rounds + _WARM_UP):
        target.seconds = model.seconds = drafter.seconds = 0.0
        started = perf_counter()
        events = engine.step()
        elapsed = perf_counter() - started
        if index >= _WARM_UP:
            times.append(elapsed - target.seconds - model.seconds)
            drafting.append(drafter.seconds - model.seconds)
            tokens += len(events)
    return Row(
        vocab_size,
        setting,
        _lowest_median(times),
        _lowest_median(drafting),
        tokens / rounds,
    )


def _lowest_median(seconds: list[float]) -> float:
    length = max(len(seconds) // 10, 1)
    stretches = [seconds[start : start + length] for start in range(0, len(seconds), length)]
    return 1e6 * min(map(statistics.median, stretches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--rounds", type=int, default=200, help="timed rounds a row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(vocab_size, setting, rounds=arguments.rounds)
        for vocab_size in VOCAB_SIZES
        for setting in SETTINGS
    ]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'vocabulary':>10}  {'setting':<16}  {'us':>8}  {'drafting':>8}  {'tokens':>6}")
    for row in rows:
        print(
            f"{row.vocabulary:>10}  {row.setting:<16}  {row.microseconds:>8.1f}  "
            f"{row.drafting:>8.1f}  {row.tokens:>6.2f}"
        )


if __name__ == "__main__":
    main()
