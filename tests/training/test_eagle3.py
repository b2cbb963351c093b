"""The training form of an EAGLE head is what drafts: the same logits after the same tokens, and a loss
that falls on its own expected acceptance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.heads.eagle3 import Eagle3Config, Eagle3Head
from forerun.models.checkpoint import model_from_tensors
from forerun.training.conversations import Example, ExampleBatch
from forerun.training.eagle3 import Eagle3Module, Eagle3Objective, vocabulary_of
from forerun.training.objective import AnchoredTokens, mean_of
from forerun.training.target import Teacher
from tests.helpers.eagle_heads import VARIANTS, Made, Reference, published
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.tiny_models import VOCAB, tiny_config, tiny_model

TEXT = [(11 * at + at * at) % VOCAB for at in range(14)]
STEPS = 4
TRAINED = ("plain", "all-tokens")


def target(backend: str = "torch", dtype: str = "fp64") -> CausalLM:
    tensors = tiny_model("llama").state_dict()
    return model_from_tensors(tiny_config("llama"), tensors, dtype=dtype, backend=backend)


def module_of(made: Made, dtype: torch.dtype = torch.float64) -> Eagle3Module:
    config, tensors = published(made, "vllm")
    module = Eagle3Module(Eagle3Config.read(config, "head"), tensors["lm_head.weight"])
    own = {key: tensors[key] for key, _ in module.named_parameters()}
    module.load_state_dict(own)
    return module.to(dtype)


def logits_of(module: Eagle3Module, reference: Reference, anchors: Tensor) -> Tensor:
    """Logits [A, STEPS, Vd] of the training form over the whole text."""
    states, embeddings = reference.states(TEXT)[None], reference.embed(TEXT)[None]
    outputs = module(states, embeddings, anchors[None], STEPS)
    logits: Tensor = outputs[0] @ module.get_parameter("lm_head.weight").T
    return logits


@pytest.mark.parametrize("variant", TRAINED)
def test_training_and_drafting_agree(variant: str) -> None:
    """From every token of a text, whose own tokens are drafted."""
    made = VARIANTS[variant]
    reference, module = Reference(made, target()), module_of(made)
    anchors = torch.arange(len(TEXT) - STEPS - 1)
    found = logits_of(module, reference, anchors)
    for anchor in anchors.tolist():
        drafted = TEXT[anchor + 2 : anchor + 1 + STEPS]
        expected = reference.chain(TEXT[: anchor + 2], drafted)
        torch.testing.assert_close(found[anchor], expected, rtol=0, atol=2e-5)


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-4), ("int8", 0.12)])
def test_training_and_drafting_on_the_kernels_agree(dtype: str, tolerance: float) -> None:
    made, on = VARIANTS["plain"], target("kernels", dtype)
    reference, module, anchor = Reference(made, on), module_of(made, torch.float32), 8
    expected = logits_of(module, reference, torch.tensor([anchor]))[0].detach()
    config, tensors = published(made, "vllm")
    head = Eagle3Head(on, Eagle3Config.read(config, "head"), tensors, "head")
    cache, fused = head.new_cache(1, 32), head.fuse(reference.states(TEXT[: anchor + 1])[None])[0]
    read = head.run([0], [fused], [TEXT[1 : anchor + 2]], cache)
    rows = [head.logits(read[0, -1])]
    for token in TEXT[anchor + 2 : anchor + 1 + STEPS]:
        read = head.run([0], [read[0, -1:]], [[token]], cache)
        rows.append(head.logits(read[0, -1]))
    spread = float(expected.std())
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=tolerance * spread)


def conversations(count: int) -> list[Example]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for index in range(count):
        ids = torch.randint(0, VOCAB, (9 + index,), generator=generator).tolist()
        made.append(Example(tuple(ids[:4]), tuple(ids[4:]), "made", float(index % 2)))
    return made


def test_drafts_begin_where_the_target_wrote_what_follows() -> None:
    rows = torch.tensor([[-1, -1, -1, 0, 1, 2, -1], [-1, 3, 4, -1, -1, -1, -1]])
    found = AnchoredTokens.drawn(rows, 2, 2, 1.0, 0)
    drafts = {
        (row, int(found.anchors[row, place])): found.there[row, place].tolist()
        for row, place in found.there[..., 0].nonzero().tolist()
    }
    assert drafts == {
        (0, 1): [True, True],
        (0, 2): [True, True],
        (0, 3): [True, False],
        (1, 0): [True, False],
    }
    assert found.targets.sort().values.tolist() == [0, 1, 1, 2, 2, 4]
    # After a token that the target did not write nothing counts.
    gap = AnchoredTokens.drawn(torch.tensor([[-1, -1, -1, 0, -1, 1, 2]]), 2, 3, 1.0, 0)
    assert gap.there[gap.anchors == 1].tolist() == [[True, False, False]]
    # Two of three and the only one, others with another seed.
    few = [AnchoredTokens.drawn(rows, 2, 2, 0.4, seed) for seed in range(50)]
    assert {tuple(own.there[..., 0].sum(-1).tolist()) for own in few} == {(2, 1)}
    chosen = {tuple(sorted(own.anchors[0].tolist())) for own in few}
    assert chosen == {(1, 2), (1, 3), (2, 3)}


def test_a_head_learns_what_is_accepted() -> None:
    """The loss falls, and so does the distance of the exact expected acceptance from its best."""
    torch.manual_seed(0)
    made, on = replace(VARIANTS["plain"], own_embedding=False), target(dtype="fp32")
    config, tensors = published(made, "vllm")
    ids = tensors["t2d"].nonzero()[:, 0]
    head = tiny_model("llama").lm_head.weight[ids]
    module = Eagle3Module(Eagle3Config.read(config, "head"), head)
    objective = Eagle3Objective(module, Teacher(on, made.ids, ids), steps=3, density=1.0)
    batch = ExampleBatch.of(conversations(6))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    before, losses = objective.evaluate([batch]), []
    for _ in range(30):
        part = objective(batch)
        (part.total / part.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(part.total.item() / part.weight)
    after = objective.evaluate([batch])
    assert losses[-1] < 0.7 * losses[0]
    assert set(after.lengths) == {"made, T=0", "made, T=1"}
    assert mean_of(after.lengths) > mean_of(before.lengths) + 0.1
    # What is published is read again as the same head.
    read = Eagle3Config.read(config, "head")
    published_tensors = {**dict(module.named_parameters()), **vocabulary_of(ids, VOCAB)}
    assert published_tensors.keys() == read.shapes().keys() | {"lm_head.weight", "t2d"}
    vocabulary = Eagle3Head(on, read, published_tensors, "head").vocabulary
    assert vocabulary is not None
    assert torch.equal(torch.tensor(vocabulary.token_ids), ids)
