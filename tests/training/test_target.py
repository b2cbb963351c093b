"""States that are kept in memory: those that the target would make again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from forerun.models.checkpoint import model_from_tensors
from forerun.training import target as module
from forerun.training.conversations import Example, ExampleBatch
from forerun.training.target import Teacher
from tests.helpers.tiny_models import VOCAB, tiny_config, tiny_model

TEXTS = [Example((1, 2, number), (3, 4, 5, number), "", 1.0) for number in range(4)]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("short", [False, True])
def test_a_text_is_read_once_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, short: bool, every: int
) -> None:
    """Of a part of the vocabulary, rows of a text that is known come from its part of the output head."""
    ids = torch.arange(0, VOCAB, every)
    if short:
        monkeypatch.setattr(module, "LEFT_FREE", 2.0)
    state = tiny_model("llama").state_dict()
    model = model_from_tensors(
        tiny_config("llama"), state, dtype="fp32", backend="torch", name="tiny"
    )
    teacher = Teacher(model, (1,), ids)
    runs: list[Any] = []
    monkeypatch.setattr(model, "forward", _counted(model.forward, runs))
    teacher.show(ExampleBatch.of(TEXTS[:2]))
    heads: list[Any] = []
    monkeypatch.setattr(model, "lm_head", _counted(model.lm_head, heads))
    again = teacher.show(ExampleBatch.of([TEXTS[1], TEXTS[0]]))
    assert len(runs) == (2 if short else 1)
    assert bool(heads) == (every == 1)
    mixed = teacher.show(ExampleBatch.of([TEXTS[2], TEXTS[1]]))
    fresh = Teacher(model, (1,), ids)
    for lesson in (again, mixed):
        expected = fresh.show(lesson.batch)
        torch.testing.assert_close(lesson.hidden[1], expected.hidden[1])
        torch.testing.assert_close(lesson.probs, expected.probs)


def _counted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    return counted
