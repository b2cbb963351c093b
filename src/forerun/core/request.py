"""A request during its life in the engine."""

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
    """A caller's hints to the drafters of a request; they never change what is emitted.

    Args:
        prediction: an expected output, parts of which may come true, as text or token ids; a
            request holds its ids. Empty for none.
        namespace: the store of earlier outputs to draft from, if the drafter keeps one; requests of
            different namespaces never see each other's outputs, and share no cached prefix. Outputs of
            requests that do not speculate are not stored.
        num_speculative_tokens: drafted tokens a round at most; None leaves it to the policy.
    """

    prediction: str | tuple[int, ...] = ()
    namespace: str = ""
    num_speculative_tokens: int | None = None


NO_HINTS = Hints()


@dataclass
class Request:
    """One request in the engine: its tokens so far, its parameters and its place in the caches.

    Args:
        request_id: unique in an engine.
        token_ids: prompt and emitted tokens.
        num_prompt_tokens: number of prompt tokens among them.
        params: the sampling parameters.
        seed: key of the request's randomness: `params.seed`, or a seed drawn for the request.
        row: row in the caches, set at admission.
        speculative: draft for this request.
        stop_token_ids: tokens that end the request; nothing is drafted after them.
        hints: the caller's hints to drafters.
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
