"""Trees grown level by level with real decoders: every row is that of the node's own path."""

from __future__ import annotations

import random

import pytest
import torch
from kernel_models import model, needs_kernels
from tiny_models import tiny_config, tiny_model

from forerun.contracts import CausalLM
from forerun.core import Draft, Drawing, Plan, Sequence, TreePlan
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.models import model_from_tensors
from forerun.models.running import run_rows
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, warp
from forerun.trees import TreeShape

FAMILIES = ("llama", "mistral", "qwen3", "gpt2")


def on_torch(name: str) -> CausalLM:
    return model_from_tensors(
        tiny_config(name), tiny_model(name).state_dict(), dtype="fp32", name=name
    )


def fresh_row(target: CausalLM, sequence: Sequence, drafted: tuple[int, ...]) -> torch.Tensor:
    """What the model says after a path, run by itself."""
    ids = [*sequence.token_ids, *drafted]
    cache = target.new_cache(1, len(ids))
    logits = run_rows(target, cache, [0], [ids], logits_for="last").logits
    assert logits is not None
    return warp(logits[:, 0], [Prefix(sequence, drafted)])[0]


def shape_of(source: random.Random) -> TreeShape:
    count = source.randint(1, 9)
    return TreeShape(tuple(source.randint(-1, node - 1) for node in range(count)))


def check_rows(target: CausalLM, sequence: Sequence, draft: Draft, rounding: float) -> None:
    assert isinstance(draft.probs, torch.Tensor)
    for node, parent in enumerate(draft.parents):
        row = fresh_row(target, sequence, tuple(draft.tokens_to(parent))).clone()
        for sibling in draft.children(parent):
            if sibling < node:
                row[draft.token_ids[sibling]] = 0.0
                row /= row.sum()
        torch.testing.assert_close(draft.probs[node], row, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("backend", [pytest.param("kernels", marks=needs_kernels), "torch"])
def test_rows_are_those_of_the_paths(family: str, backend: str) -> None:
    """Ragged batches over rounds of which random paths are accepted; one text starts with a token."""
    target = model(family) if backend == "kernels" else on_torch(family)
    source = random.Random(family)
    drafter = DraftModelDrafter(target, 3, 64)
    sequences = [
        Sequence(row, [source.randrange(target.vocab_size) for _ in range(length)], 1,
                 SamplingParams(), seed=row, row=row)
        for row, length in enumerate((1, 7, 20))
    ]  # fmt: skip
    for _ in range(5):
        shapes = [shape_of(source) for _ in sequences]
        plans = [Plan(s.depth, Drawing.DRAW, TreePlan(len(s), s.parents)) for s in shapes]
        drafts = drafter.propose(sequences, plans, Randomness())
        for sequence, draft in zip(sequences, drafts, strict=True):
            # Sums over rows are the only thing that rounds on the kernels.
            check_rows(target, sequence, draft, 1e-6 if backend == "kernels" else 1e-4)
            end = source.randint(-1, len(draft) - 1)
            sequence.extend([*draft.tokens_to(end), source.randrange(target.vocab_size)])
