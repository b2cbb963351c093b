"""Acceptance on held-out text is that at the temperature which the text was drawn at."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forerun.core import Batch
from forerun.models.checkpoint import model_from_tensors
from forerun.training.conversations import Example, ExampleBatch
from forerun.training.objective import AnchoredTokens, Drafts, Objective
from forerun.training.target import Lesson, Teacher
from tests.helpers.tiny_models import VOCAB, tiny_config, tiny_model

PROMPT, ANSWER = (5, 9, 2), (7, 1, 30, 12, 8, 22)
# Tokens that can be drafted: the target's probability of the others is lost.
SHARED = VOCAB - 8


def of_the_target(teacher: Teacher) -> Tensor:
    """Its logits of the answer's tokens, [6, V]."""
    ids = [*PROMPT, *ANSWER]
    batch = Batch.after(teacher.model.new_cache(1, 32), [0], [ids])
    logits = teacher.model.forward(batch, teacher.model.new_cache(1, 32)).logits
    assert logits is not None
    return logits[0, len(PROMPT) - 1 : -1]


@pytest.mark.parametrize("temperatures", [(0.0, 0.5), (0.5, 1.0), (0.8, 0.5)])
def test_both_sides_are_at_the_temperature_of_the_text(temperatures: tuple[float, ...]) -> None:
    """Of conversations side by side."""
    model = tiny_model("llama")
    target = model_from_tensors(tiny_config("llama"), model.state_dict())
    teacher = Teacher(target, (), torch.arange(SHARED))
    source = torch.Generator().manual_seed(0)
    states = torch.randn(2 * len(ANSWER), 16, generator=source).bfloat16()
    matrix = torch.randn(SHARED, 16, generator=source).bfloat16()

    class Known(Objective):
        def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
            # A chain of one token for each token of the answers.
            anchors = torch.arange(len(PROMPT), len(PROMPT) + len(ANSWER)).expand(2, -1) - 1
            drawn = torch.ones_like(anchors).bool()
            following = AnchoredTokens(lesson.rows, anchors, drawn, 1, 1)
            return Drafts(following, states, matrix)

    batch = ExampleBatch.of([Example(PROMPT, ANSWER, "chat", t) for t in temperatures])
    table = Known(None, teacher).evaluate([batch])
    p = of_the_target(teacher).float()
    q = (states @ matrix.T).float()
    for row, temperature in enumerate(temperatures):
        own = q[row * len(ANSWER) :][: len(ANSWER)]
        expected = (own.argmax(-1) == p.argmax(-1)).float()
        if temperature:
            shares, drafted = (p / temperature).softmax(-1), (own / temperature).softmax(-1)
            expected = torch.minimum(shares[:, :SHARED], drafted).sum(-1)
        length = table.lengths[f"chat, T={temperature:g}"]
        assert length == pytest.approx(1 + float(expected.mean()), abs=2e-3)
