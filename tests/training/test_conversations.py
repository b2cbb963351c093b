"""What is read of training data, and the order of micro-batches."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import TrainingError
from forerun.training.conversations import (
    BatchStream,
    Example,
    ExampleBatch,
    held_out,
    read_conversations,
)

VOCAB = 50


def _record(prompt: int, answer: int, **more: Any) -> str:
    ids = {"prompt_ids": list(range(prompt)), "answer_ids": list(range(answer))}
    return json.dumps({**ids, "category": "chat", "temperature": 0.0, **more})


def _written(path: Path, *lines: str) -> Path:
    text = "\n".join(['{"forerun_data": 1}', *lines]) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_what_is_too_long_or_hardly_answered_is_counted(tmp_path: Path, name: str) -> None:
    path = _written(tmp_path / name, _record(5, 10), _record(40, 12), _record(5, 3), _record(45, 8))
    kept, left_out = read_conversations([path], VOCAB, 52)
    assert [len(conversation) for conversation in kept] == [15, 52]
    assert kept[0].category == "chat"
    assert left_out == {"too long": 1, "hardly answered": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 holds no record"),
        (_record(5, 10, ids=[1]), "line 2 holds no record"),
        (_record(5, 10, answer_ids="text"), "answer_ids"),
        (_record(5, 10, prompt_ids=[VOCAB]), "below 50"),
        (_record(5, 10, prompt_ids=[True]), "prompt_ids"),
        (_record(5, 3), "no conversation is left"),
    ],
)
def test_what_is_no_data_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        read_conversations([_written(tmp_path / "data.jsonl", line)], VOCAB, 100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prose\n", "not a file of `forerun train data`"),
        (b'{"forerun_data": 2}\n', "version 2 of its format"),
        (b"\x1f\x8b cut", "not a file of"),
    ],
)
def test_files_of_others_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=message):
        read_conversations([path], VOCAB, 100)
    packed = tmp_path / "data.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"forerun_data": 1}\n')[:-9])
    with pytest.raises(TrainingError, match="not a whole gzip file"):
        read_conversations([packed], VOCAB, 100)


def test_a_file_is_read_while_it_grows(tmp_path: Path) -> None:
    """What is not whole yet, a line or a conversation of several turns, is left out."""
    path = _written(tmp_path / "data.jsonl", _record(5, 10), _record(5, 10, more=True))
    with path.open("a") as file:
        file.write('{"prompt_ids": [1')
    assert len(read_conversations([path], VOCAB, 100)[0]) == 1


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"none\.jsonl"):
        read_conversations([tmp_path / "none.jsonl"], VOCAB, 100)


def _conversations(count: int) -> list[Example]:
    return [Example(tuple(range(3)), tuple(range(5 + i % 17))) for i in range(count)]


def test_an_epoch_holds_every_conversation_once_within_the_budget_of_tokens() -> None:
    stream = BatchStream(_conversations(60), 64, seed=3)
    first = [stream.batch(number) for number in range(200)]
    end = list(accumulate(len(batch.conversations) for batch in first)).index(60) + 1
    epoch = first[:end]
    assert sorted(len(c) for b in epoch for c in b.conversations) == sorted(
        map(len, _conversations(60))
    )
    assert all(batch.token_ids.numel() <= 64 for batch in first)
    again = BatchStream(_conversations(60), 64, seed=3)
    assert again.batch(150).token_ids.tolist() == first[150].token_ids.tolist()
    assert [b.conversations for b in first[end : 2 * end]] != [b.conversations for b in epoch]


def test_answers_are_marked_and_padding_is_not() -> None:
    batch = ExampleBatch.of([Example((1, 2), (3,)), Example((4,), (5, 6, 7))])
    assert batch.token_ids.tolist() == [[1, 2, 3, 0], [4, 5, 6, 7]]
    assert batch.answers.int().tolist() == [[0, 0, 1, 0], [0, 1, 1, 1]]
    assert batch.tokens == 7


@pytest.mark.parametrize(
    ("counts", "number"),
    [
        ({("chat", 0.0): 8000, ("chat", 0.8): 1500, ("code", 0.0): 480, ("code", 0.8): 2}, 200),
        ({("chat", 0.0): 500, ("code", 0.8): 100}, 60),
        ({("chat", 0.0): 1000, ("code", 0.8): 1000}, 100),
        ({("chat", 0.0): 50000, ("chat", 0.8): 1}, 240),
        ({("chat", 0.0): 5, ("chat", 0.8): 4, ("code", 0.0): 1}, 3),
    ],
)
def test_every_category_and_temperature_is_held_out(
    counts: dict[tuple[str, float], int], number: int
) -> None:
    """In proportion, give or take one of each, and at least one."""
    conversations = [Example((i,), (i,), *kind) for kind, own in counts.items() for i in range(own)]
    for seed in range(3):
        train, held = held_out(conversations, seed)
        assert (train, held) == held_out(conversations, seed)
        assert len(held) == number
        assert len({*train, *held}) == len(conversations)
        kinds = Counter((c.category, c.temperature) for c in held)
        for kind, own in counts.items():
            assert kinds[kind] >= 1
            assert abs(kinds[kind] - own * number / len(conversations)) <= len(counts)
    assert held_out(conversations, 1)[1] != held


def test_half_is_left_to_train_on() -> None:
    conversations = [Example((i,), (i,), f"category {max(i, 2)}") for i in range(9)]
    train, held = held_out(conversations, seed=0)
    assert (len(train), len(held)) == (5, 4)
    assert "category 2" in {c.category for c in held}


def test_held_out_conversations_are_not_trained_on() -> None:
    conversations = [Example((i,), (i,)) for i in range(100)]
    train, held = held_out(conversations, seed=0, share=0.1)
    assert len(held) == 10
    assert sorted(c.prompt_ids for c in train + held) == [(i,) for i in range(100)]
    with pytest.raises(TrainingError, match="too few"):
        held_out(conversations[:1], seed=0)
