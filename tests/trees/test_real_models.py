"""Trees grown level by level with real decoders: every row is that of the node's own path."""

from __future__ import annotations

import random

import pytest
import torch

from forerun.contracts import CausalLM
from forerun.core import Draft, Drawing, Plan, Request, Tree
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.models import model_from_tensors
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, warp
from tests.helpers.forwards import run
from tests.helpers.kernel_models import model, needs_kernels
from tests.helpers.tiny_models import tiny_config, tiny_model

FAMILIES = ("llama", "mistral", "qwen3", "gpt2")


def on_torch(name: str) -> CausalLM:
    return model_from_tensors(
        tiny_config(name), tiny_model(name).state_dict(), dtype="fp32", name=name
    )


def fresh_row(target: CausalLM, request: Request, drafted: tuple[int, ...]) -> torch.Tensor:
    """What the model says after a path, run by itself."""
    ids = [*request.token_ids, *drafted]
    cache = target.new_cache(1, len(ids))
    logits = run(target, cache, [ids], logits_for="last").logits
    return warp(logits[:, 0], [Prefix(request, drafted)])[0]


def shape_of(source: random.Random) -> Tree:
    count = source.randint(1, 9)
    return Tree(tuple(source.randint(-1, node - 1) for node in range(count)))


def check_rows(target: CausalLM, request: Request, draft: Draft, rounding: float) -> None:
    assert isinstance(draft.probs, torch.Tensor)
    for node, parent in enumerate(draft.tree.parents):
        row = fresh_row(target, request, tuple(draft.tokens_to(parent))).clone()
        for sibling in draft.tree.children(parent):
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
    requests = [
        Request(row, [source.randrange(target.vocab_size) for _ in range(length)], 1,
                 SamplingParams(), seed=row, row=row)
        for row, length in enumerate((1, 7, 20))
    ]  # fmt: skip
    for _ in range(5):
        shapes = [shape_of(source) for _ in requests]
        plans = [Plan(s.depth, Drawing.SAMPLED, tree=s) for s in shapes]
        drafts = drafter.propose(requests, plans, Randomness())
        for request, draft in zip(requests, drafts, strict=True):
            # Sums over rows are the only thing that rounds on the kernels.
            check_rows(target, request, draft, 1e-6 if backend == "kernels" else 1e-4)
            end = source.randint(-1, len(draft) - 1)
            request.extend([*draft.tokens_to(end), source.randrange(target.vocab_size)])
