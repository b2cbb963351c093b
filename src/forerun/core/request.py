"""A request on its way through the engine."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.params import SamplingParams


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Hints:
    """What the caller tells the drafters of a request; none of it changes what is emitted.

    Args:
        prediction: an output that is expected, parts of which may come so, as text or token ids; a
            request has its ids. Empty for none.
        namespace: whose earlier outputs may be drafted from, where a drafter keeps such a store;
            requests of different namespaces never see each other's. Nothing is kept of requests that
            do not speculate.
    """

    prediction: str | tuple[int, ...] = ()
    namespace: str = ""


NO_HINTS = Hints()


@dataclass
class Request:
    """One request on its way: its tokens so far and what belongs to it.

    Args:
        request_id: unique in an engine.
        token_ids: prompt and emitted tokens.
        num_prompt_tokens: how many of them are the prompt.
        params: how its tokens are drawn.
        seed: the key of its randomness: `params.seed`, or one drawn for it.
        row: its row in the caches, set at admission.
        speculative: whether to draft for it at all.
        stop_token_ids: tokens that end it; nothing is drafted after them.
        hints: what drafters may know about it.
    """

    request_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    row: int = -1
    speculative: bool = True
    stop_token_ids: frozenset[int] = frozenset()
    hints: Hints = NO_HINTS

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def extend(self, token_ids: Iterable[int]) -> None:
        self.token_ids.extend(token_ids)
