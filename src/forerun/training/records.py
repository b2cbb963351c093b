"""Records of a model's answers, and the format of their files.

A conversation is written as a whole, so that a file can be read while it grows, and continued.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from forerun.errors import TrainingError
from forerun.measure.ledger import Format

# Fields that are left out of a line if they have their default.
_OPTIONAL = ("turn", "more", "skipped")
# Fields that a file made by others may lack.
_USUAL = {
    **dict.fromkeys(("source", "category", "finish", "prompt", "answer"), ""),
    "temperature": 1.0,
    "seed": 0,
    "item": 0,
}


@dataclass(frozen=True)
class Record:
    """An answer with its prompt.

    Args:
        source: file of the question, or `magpie` (`sampled` for a base model) if the model wrote it.
        category: category of the question.
        prompt_ids, answer_ids: token ids as they were run, with the template's tokens and the end of the
            answer.
        temperature: temperature of the answer; 0 for greedy.
        finish: finish reason: `stop`, or `length` for an answer that was cut.
        seed: seed of the request.
        prompt, answer: text of the user and text of the answer.
        item: number of the conversation, skipped ones counted.
        turn: turn of the conversation, from 0.
        more: True if the conversation continues with the next record.
        skipped: number of conversations skipped since the last record, by reason.
    """

    source: str
    category: str
    prompt_ids: list[int]
    answer_ids: list[int]
    temperature: float
    finish: str
    seed: int
    prompt: str
    answer: str
    item: int
    turn: int = 0
    more: bool = False
    skipped: dict[str, int] = field(default_factory=dict)


def _content(record: Record) -> dict[str, Any]:
    """Fields of a record, without optional ones that have their default."""
    content = vars(record)
    return {
        each.name: content[each.name]
        for each in fields(record)
        if not (each.name in _OPTIONAL and not content[each.name])
    }


RECORDS = Format(
    mark="forerun_data",
    version=1,
    command="forerun train data",
    error=TrainingError,
    content=_content,
    parse=lambda content: Record(**{**_USUAL, **content}),
)
"""Format of the files; the header holds the settings of the run."""
