"""States that are kept in memory: those that the target would make again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forerun.models.checkpoint import model_from_tensors
from forerun.training import state_memory
from forerun.training.conversations import Conversation, ConversationBatch
from forerun.training.target import Teacher
from tests.helpers.tiny_models import VOCAB, tiny_config, tiny_model

TEXTS = [Conversation((1, 2, number), (3, 4, 5, number), "", 1.0) for number in range(4)]


@pytest.mark.parametrize("short", [False, True])
def test_a_text_is_read_once_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    if short:
        monkeypatch.setattr(state_memory, "LEFT_FREE", 2.0)
    state = tiny_model("llama").state_dict()
    model = model_from_tensors(
        tiny_config("llama"), state, dtype="fp32", backend="torch", name="tiny"
    )
    teacher = Teacher(model, (1,), torch.arange(VOCAB))
    runs, forward = [], model.forward

    def counted(*given: Any) -> Any:
        runs.append(given)
        return forward(*given)

    monkeypatch.setattr(model, "forward", counted)
    teacher.show(ConversationBatch.of(TEXTS[:2]))
    again = teacher.show(ConversationBatch.of([TEXTS[1], TEXTS[0]]))
    assert len(runs) == (2 if short else 1)
    mixed = teacher.show(ConversationBatch.of([TEXTS[2], TEXTS[1]]))
    fresh = Teacher(model, (1,), torch.arange(VOCAB))
    for lesson in (again, mixed):
        expected = fresh.show(lesson.batch)
        torch.testing.assert_close(lesson.hidden[1], expected.hidden[1])
        torch.testing.assert_close(lesson.probs, expected.probs)
