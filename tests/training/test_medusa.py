"""Training Medusa heads: the loss is that of the tokens two places ahead and further, what is trained is what
drafts, and acceptance on held-out text is what its definition says."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.heads.files import HeadFiles, write_head
from forerun.heads.layers import borrowed_rows
from forerun.heads.medusa import MedusaConfig, MedusaHead
from forerun.models.checkpoint import model_from_tensors
from forerun.training.conversations import Example, ExampleBatch
from forerun.training.medusa import MedusaModule, MedusaObjective
from forerun.training.objective import mean_of
from forerun.training.target import Teacher
from tests.helpers.tiny_models import tiny_config, tiny_model

VOCAB, HIDDEN = 61, 24
CONFIGS = {
    "whole": MedusaConfig(HIDDEN, VOCAB, 3, 2, VOCAB),
    "reduced": MedusaConfig(HIDDEN, VOCAB, 3, 1, 40, bias=False),
}


@cache
def target() -> CausalLM:
    state = tiny_model("llama").state_dict()
    return model_from_tensors(
        tiny_config("llama"), state, dtype="fp32", backend="torch", name="tiny"
    )


@cache
def conversations() -> ExampleBatch:
    """Prompts that the target answers, greedily or not, of different lengths."""
    draws = random.Random(0)
    made = []
    for number in range(6):
        prompt = [draws.randrange(VOCAB) for _ in range(draws.randrange(2, 9))]
        answer = [draws.randrange(VOCAB) for _ in range(draws.randrange(8, 14))]
        made.append(Example(tuple(prompt), tuple(answer), "ab"[number % 2], float(number % 2)))
    return ExampleBatch.of(made)


def objective(name: str, spread: float = 0.0) -> MedusaObjective:
    config = CONFIGS[name]
    ids = torch.arange(config.draft_vocab_size)
    teacher = Teacher(target(), (target().num_layers,), ids)
    rows = borrowed_rows(target(), ids)
    assert rows is not None
    module = MedusaModule(config, rows)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.get_submodule("blocks").parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=spread)
    return MedusaObjective(module, teacher, density=1.0)


def states(conversation: Example) -> tuple[Tensor, Tensor]:
    """The target's last hidden states and probabilities after each token of a conversation."""
    last, ids = target().num_layers, [*conversation.prompt_ids, *conversation.answer_ids]
    batch = Batch.after(target().new_cache(1, 32), [0], [ids], hidden_layers=(last,))
    output = target().forward(batch, target().new_cache(1, 32))
    assert output.logits is not None
    return output.hidden[last][0], output.logits[0].softmax(-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_trained_is_what_drafts(tmp_path: Path, name: str) -> None:
    module, config = objective(name, spread=0.2).module, CONFIGS[name]
    ids = {} if name == "whole" else {"token_map": torch.arange(config.draft_vocab_size)}
    write_head(tmp_path, config.published(), {**module.state_dict(), **ids})
    head = MedusaHead.open(target(), HeadFiles.open(tmp_path))
    hidden, _ = states(conversations().conversations[0])
    with torch.no_grad():
        read = module(target().final_norm(hidden[None])[0])
    for index in range(config.num_heads):
        expected = target().lm_head(read[None, :, index])[0, :, : config.draft_vocab_size]
        torch.testing.assert_close(head.run(hidden, 3)[:, index], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_acceptance_is_what_its_definition_says(name: str) -> None:
    """Of the head i after a state: that of the target's row i + 2 places on, in answers alone."""
    learning, batch = objective(name, spread=0.2), conversations()
    table, heads = learning.evaluate([batch]), CONFIGS[name].num_heads
    wanted: dict[str, list[Tensor]] = {}
    for conversation in batch.conversations:
        hidden, probs = states(conversation)
        size = CONFIGS[name].draft_vocab_size
        ids = {} if name == "whole" else {"d2t": torch.zeros(size, dtype=torch.long)}
        tensors = {**learning.module.state_dict(), **ids}
        head = MedusaHead(target(), CONFIGS[name], tensors, "head")
        first = len(conversation.prompt_ids)
        for place in range(first - 2, len(conversation) - 1 - heads):
            draft = head.run(hidden[place : place + 1], heads)[0].softmax(-1)
            p = probs[place + 1 : place + 1 + heads]
            accepted = torch.minimum(draft, p[:, :size]).sum(-1)
            if conversation.temperature == 0:
                accepted = (draft.argmax(-1) == p.argmax(-1)).float()
            kind = f"{conversation.category}, T={conversation.temperature:g}"
            wanted.setdefault(kind, []).append(accepted)
    for kind, chains in wanted.items():
        expected = torch.stack(chains).mean(0)
        torch.testing.assert_close(torch.tensor(table.positions[kind]), expected, rtol=0, atol=0.03)
    assert table.positions.keys() == wanted.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_training_raises_acceptance(name: str) -> None:
    learning, batch = objective(name), conversations()
    before = mean_of(learning.evaluate([batch]).lengths)
    optimizer = torch.optim.Adam(learning.module.parameters(), lr=0.02)
    losses = []
    for _ in range(25):
        part = learning(batch)
        (part.total / part.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(part.total.detach()) / part.weight)
    assert part.tokens == batch.tokens
    assert losses[-1] < losses[0]
    assert mean_of(learning.evaluate([batch]).lengths) > before + 0.2


def test_further_heads_weigh_less() -> None:
    learning, batch = objective("whole"), conversations()
    counts = [
        sum(max(len(c.answer_ids) - head, 0) for c in batch.conversations) for head in range(3)
    ]
    weights = [0.8**head * count for head, count in enumerate(counts)]
    assert learning(batch).weight == pytest.approx(sum(weights))
