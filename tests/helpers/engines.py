"""Engines over the matrix's models, with text of one letter a token."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from tests.matrix import DRAFT, ROWS, TARGET

GREEDY = SamplingParams(temperature=0.0, max_tokens=30)


class Letters:
    """A tokenizer of one letter a token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)


def engine(rows: int = ROWS, length: int = 3, **options: object) -> Engine:
    return Engine(
        TARGET,
        DraftModelDrafter(DRAFT, rows, DRAFT.max_context),
        SpeculativeConfig(num_speculative_tokens=length, policy="fixed"),
        max_batch_size=rows,
        tokenizer=Letters(),
        **options,  # type: ignore[arg-type]
    )


def plain_ids(prompt: list[int], params: SamplingParams, **options: object) -> tuple[int, ...]:
    stream = Engine(TARGET, tokenizer=Letters(), **options).stream_plain(prompt, params)  # type: ignore[arg-type]
    for _ in stream:
        pass
    return stream.completion.token_ids
