"""The cost of a round without the models: everything in `Engine.step` but forward passes.

python -m benchmarks.host_time

The models run on the kernels and are little more than a head. Their logits follow Zipf's law, the
draft's with some noise. Their time is subtracted; what is left is planning, drawing, warping,
verifying, keeping the caches and decoding each token to text. The length is fixed: with models that cost
nothing it would stop speculation.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from torch import Tensor
from transformers import LlamaConfig

from forerun.core import Batch
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.models import model_from_tensors
from forerun.models.architecture import read_architecture
from forerun.models.gguf.tokenizer import GgufTokenizer
from forerun.models.layouts import layout_of
from forerun.params import SamplingParams

VOCAB_SIZES = (4096, 151_936)
SETTINGS = {
    "plain": SamplingParams(temperature=0.0, max_tokens=None),
    "greedy": SamplingParams(temperature=0.0, max_tokens=None),
    "sampled": SamplingParams(max_tokens=None),
    "top-k 50": SamplingParams(top_k=50, max_tokens=None),
    "top-p 0.9": SamplingParams(top_p=0.9, max_tokens=None),
    "top-p 0.9, seed": SamplingParams(top_p=0.9, seed=1, max_tokens=None),
}
_CONTEXT = 4096
_WIDTH = 16
_WARM_UP = 20


@dataclass(frozen=True)
class Row:
    """One setting.

    Args:
        vocabulary, setting: the size V, and a name of SETTINGS.
        microseconds: of a round without forwards: the lowest of the medians of ten stretches, because
            other work on the machine only adds.
        drawing: the part of it that draws drafts, likewise.
        tokens: emitted per round.
    """

    vocabulary: int
    setting: str
    microseconds: float
    drawing: float
    tokens: float


class Timed:
    """A callable that sums the time of its calls."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.seconds = call, 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        started = perf_counter()
        result = self.call(*arguments, **options)
        self.seconds += perf_counter() - started
        return result


def zipf_model(row: Tensor, name: str) -> Any:
    """A model whose logits are always `row`: its layers add nothing, its head holds the row."""
    config = LlamaConfig(
        hidden_size=_WIDTH,
        intermediate_size=_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=1,
        vocab_size=len(row),
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=False,
    )
    tensors = {}
    for key, shape in layout_of(read_architecture(config)).published.items():
        norm = key.endswith("norm.weight")
        tensors[key] = torch.ones(shape) if norm or "embed" in key else torch.zeros(shape)
    tensors["lm_head.weight"] = (row / _WIDTH)[:, None].expand(-1, _WIDTH).contiguous()
    return model_from_tensors(config, tensors, dtype="fp32", backend="kernels", name=name)


def tokenizer_of(vocab_size: int) -> GgufTokenizer:
    """A tokenizer whose tokens are numbers, with the decoder of Qwen's and SmolLM2's."""
    backend = Tokenizer(BPE({f"\u0120{token}": token for token in range(vocab_size)}, []))
    backend.decoder = decoders.ByteLevel()
    return GgufTokenizer(backend, {}, None)


def measure(vocab_size: int, setting: str, drafted: int = 4, rounds: int = 200) -> Row:
    """The median round of one setting with `drafted` tokens; `plain` drafts none."""
    generator = torch.Generator().manual_seed(vocab_size)
    ranks = torch.randperm(vocab_size, generator=generator) + 1
    row = -1.5 * ranks.log()
    target = zipf_model(row, "target")
    model = zipf_model(row + 0.3 * torch.randn(vocab_size, generator=generator), "draft")
    forward = _seconds_of_a_forward(model)
    drafter = DraftModelDrafter(model, 1, _CONTEXT)
    config = SpeculativeConfig(num_speculative_tokens=drafted, policy="fixed")
    tokenizer = tokenizer_of(vocab_size)
    engine = Engine(target, drafter, config, tokenizer=tokenizer, max_context=_CONTEXT)
    runs, chains = Timed(target.forward), Timed(model.draft_chains)
    target.forward, model.draft_chains = runs, chains
    engine.add([0, 1], SETTINGS[setting], speculative=setting != "plain")
    times, drawing, tokens = [], [], 0
    for index in range(rounds + _WARM_UP):
        runs.seconds = chains.seconds = 0.0
        started = perf_counter()
        events = engine.step()
        elapsed = perf_counter() - started
        if index >= _WARM_UP:
            # What a chain takes beyond its forwards is drawing, which belongs to the host.
            drawn = max(chains.seconds - drafted * forward, 0.0) if chains.seconds else 0.0
            times.append(elapsed - runs.seconds - chains.seconds + drawn)
            drawing.append(drawn)
            tokens += len(events)
    return Row(vocab_size, setting, _lowest_median(times), _lowest_median(drawing), tokens / rounds)


def _seconds_of_a_forward(model: Any) -> float:
    """Of one token."""
    cache = model.new_cache(1, _CONTEXT)
    times = []
    for _ in range(200):
        cache.trim(0, 0)
        started = perf_counter()
        model.forward(Batch.after(cache, [0], [[0]], logits_for="last"), cache)
        times.append(perf_counter() - started)
    return _lowest_median(times) * 1e-6


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
    print(f"{'vocabulary':>10}  {'setting':<16}  {'us':>8}  {'drawing':>8}  {'tokens':>6}")
    for row in rows:
        print(
            f"{row.vocabulary:>10}  {row.setting:<16}  {row.microseconds:>8.1f}  "
            f"{row.drawing:>8.1f}  {row.tokens:>6.2f}"
        )


if __name__ == "__main__":
    main()
