"""Bits per byte by precision: of the zoo's models on the held-out prompts, of SmolLM2 on questions.

python -m benchmarks.precision --prompts 60
python -m benchmarks.precision --models smollm2
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from benchmarks.questions import SETS, load_questions
from benchmarks.shapes import build
from forerun.bench.forwards import use_threads
from forerun.core import Batch
from forerun.models.checkpoint import Checkpoint
from forerun.models.cpu import CpuModel
from forerun.models.run_config import KERNEL_PRECISIONS, STORED
from forerun.models.zoo import ZOO_MODELS
from forerun.proof.prompts import held_out_prompts
from forerun.report.markdown import as_markdown
from forerun.report.table import Table

LONGEST = 1024
# Questions of each set.
EACH = 40


@dataclass(frozen=True)
class Row:
    """One model in one precision.

    Args:
        model, precision: of the row.
        megabytes: of packed weights.
        bits_per_byte: over all tokens but the first of each prompt.
        over_fp32: the difference from fp32.
        perplexity: of a token, over that of fp32.
        same_choice: share of positions with the same most likely token as in fp32.
    """

    model: str
    precision: str
    megabytes: float
    bits_per_byte: float
    over_fp32: float
    perplexity: float
    same_choice: float


@dataclass(frozen=True)
class Score:
    """All texts under a model: nats in total, and the most likely token at each position."""

    nats: float
    choices: Tensor


def score(model: CpuModel, texts: Sequence[Sequence[int]]) -> Score:
    """Run every text of token ids; its first token is not scored."""
    nats, choices = 0.0, []
    cache = model.new_cache(1, max(len(text) for text in texts))
    for text in texts:
        cache.trim(0, 0)
        logits = model.forward(Batch.after(cache, [0], [text[:-1]]), cache).logits
        assert logits is not None
        targets = torch.tensor(text[1:])
        nats += functional.cross_entropy(logits[0], targets, reduction="sum").item()
        choices.append(logits[0].argmax(-1))
    return Score(nats, torch.cat(choices))


def compare(name: str, texts: Sequence[Sequence[int]], size: int) -> list[Row]:
    """All precisions of a model on texts of `size` bytes in total."""
    rows: list[Row] = []
    exact: Score | None = None
    stored = Checkpoint.open(name).quantized
    for precision in (*KERNEL_PRECISIONS, *((STORED,) if stored else ())):
        model = build(name, precision)
        result = score(model, texts)
        exact = exact or result
        bits = result.nats / math.log(2) / size
        more = bits - (rows[0].bits_per_byte if rows else bits)
        worse = math.exp((result.nats - exact.nats) / len(exact.choices))
        same = (result.choices == exact.choices).double().mean().item()
        rows.append(Row(name, precision, model.weight_bytes / 1e6, bits, more, worse, same))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    header = (
        *("model", "precision", "weights", "bits per byte", "over fp32"),
        *("perplexity", "same first choice"),
    )
    lines = [
        [
            row.model,
            row.precision,
            f"{row.megabytes:.1f} MB",
            f"{row.bits_per_byte:.4f}",
            f"{row.over_fp32:+.4f}",
            f"{row.perplexity:.4f} x",
            f"{row.same_choice:.2%}",
        ]
        for row in rows
    ]
    return as_markdown(Table.of("", header, lines, "ll"))


def held_out(name: str, count: int | None) -> tuple[list[list[int]], int]:
    """Token ids of the first `count` texts for a model, and the bytes that are scored."""
    tokenizer: Any = Checkpoint.open(name).tokenizer
    if name in ZOO_MODELS:
        prompts = held_out_prompts()
    else:
        prompts = [q.turns[0] for category in SETS for q in load_questions(category, EACH)]
    texts = [tokenizer.encode(prompt)[:LONGEST] for prompt in prompts[:count]]
    return texts, sum(len(tokenizer.decode(text[1:]).encode()) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision")
    parser.add_argument("--models", default=",".join(ZOO_MODELS), help="such as smollm2")
    parser.add_argument("--prompts", type=int, help="all of them by default")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    options = parser.parse_args()
    use_threads(options.threads)
    rows = [
        row
        for name in options.models.split(",")
        for row in compare(name, *held_out(name, options.prompts))
    ]
    print(json.dumps([asdict(row) for row in rows]) if options.json else table(rows))


if __name__ == "__main__":
    main()
