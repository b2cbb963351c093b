"""Prompt lookup: the tokens that followed the same few tokens before are proposed again.

Saxena, "Prompt Lookup Decoding", 2023; the longest match first, the latest among equals.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from itertools import cycle, islice
from typing import Self

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Plan, Request
from forerun.drafters.base import LookupDrafter
from forerun.errors import ConfigError
from forerun.options import options
from forerun.trees.host import Continuations, grow_on_host

# Most positions that a tree continues from.
MOST_POSITIONS = 8
# A position outweighs this many of the next shorter n-gram: more than all of them together.
LONGER = 2 * MOST_POSITIONS
# Share of drafts of 8 tokens that the zoo's target accepted, by the size of the n-gram, greedy and at
# temperature 0.7 over 60 held-out prompts. The first list is for sizes whose next larger one was looked up
# as well, the second for the largest size, which includes all longer matches.
CONFIDENCES = (0.0, 0.17, 0.25, 0.39, 0.45)
CONFIDENCES_OF_LARGEST = (0.0, 0.48, 0.7, 0.78, 0.81)


class _Index:
    """Positions of each n-gram of a request, extended as the request grows."""

    def __init__(self, sizes: range) -> None:
        self.sizes = sizes
        self.follows: dict[tuple[int, ...], int] = {}
        # By size and position: the previous position of the same n-gram; 0 for none.
        self.earlier = {size: array("i", (0,)) for size in sizes}
        self.indexed = 1

    def update(self, token_ids: list[int]) -> None:
        """Index every n-gram that has a token after it."""
        follows = self.follows
        for end in range(self.indexed, len(token_ids)):
            for size, earlier in self.earlier.items():
                if size <= end:
                    ending = tuple(token_ids[end - size : end])
                    earlier.append(follows.get(ending, 0))
                    follows[ending] = end
                else:
                    earlier.append(0)
        self.indexed = max(len(token_ids), 1)

    def match(self, token_ids: list[int]) -> tuple[int, int]:
        """Position after the latest earlier copy of the text's longest known ending, and the ending's size.

        Zeros if there is none.
        """
        for size in reversed(self.sizes):
            position = self.follows.get(tuple(token_ids[-size:]), 0)
            if position:
                return position, size
        return 0, 0

    def matches(self, token_ids: list[int]) -> list[tuple[int, float]]:
        """Positions where the text may continue, longer endings first, then later ones, with weights."""
        positions: dict[int, float] = {}
        weight = 1.0
        for size in reversed(self.sizes):
            position = self.follows.get(tuple(token_ids[-size:]), 0)
            while position and len(positions) < MOST_POSITIONS:
                positions.setdefault(position, weight)
                position = self.earlier[size][position]
            weight /= LONGER
        return list(positions.items())


@options
class NgramOptions:
    """The options of prompt lookup."""

    prompt_lookup_min: int = Field(
        default=2, ge=1, le=2**31, description="Shortest n-gram to look up."
    )
    prompt_lookup_max: int = Field(
        default=4, ge=1, le=2**31, description="Longest n-gram to look up."
    )

    def __post_init__(self) -> None:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max "
                f"{self.prompt_lookup_max}; give 1 <= min <= max."
            )


class NgramDrafter(LookupDrafter):
    """Drafts chains and trees from the request itself: no model, no memory to speak of.

    Args:
        prompt_lookup_min, prompt_lookup_max: the n-gram sizes to look for.

    Raises:
        ConfigError: for sizes that `NgramOptions` refuses.
    """

    name = "ngram"
    options = NgramOptions

    def __init__(
        self,
        prompt_lookup_min: int = NgramOptions.prompt_lookup_min,
        prompt_lookup_max: int = NgramOptions.prompt_lookup_max,
    ) -> None:
        sizes = NgramOptions(
            prompt_lookup_min=prompt_lookup_min, prompt_lookup_max=prompt_lookup_max
        )
        self.sizes = range(sizes.prompt_lookup_min, sizes.prompt_lookup_max + 1)
        self._indexes: defaultdict[int, _Index] = defaultdict(lambda: _Index(self.sizes))

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        sizes = setup.read(NgramOptions)
        return cls(sizes.prompt_lookup_min, sizes.prompt_lookup_max)

    def confidence(self, request: Request) -> float:
        """Confidence by the size of the n-gram alone."""
        _, size = self._index_of(request).match(request.token_ids)
        shares = CONFIDENCES_OF_LARGEST if size == self.sizes[-1] else CONFIDENCES
        return shares[min(size, len(shares) - 1)]

    def release(self, request: Request) -> None:
        self._indexes.pop(request.request_id, None)

    def _index_of(self, request: Request) -> _Index:
        index = self._indexes[request.request_id]
        index.update(request.token_ids)
        return index

    def draft(self, request: Request, plan: Plan) -> Draft:
        index, token_ids, count = self._index_of(request), request.token_ids, plan.num_tokens
        start, size = index.match(token_ids)
        if not plan.is_chain:
            follow = Continuations(token_ids, repeats=True)
            return grow_on_host(request, plan, (0, index.matches(token_ids)), follow.children)
        if not size:
            return NO_DRAFT
        # A copy that reaches the end of the text continues with its own beginning, as in trees.
        copied = list(islice(cycle(token_ids[start : start + count]), count))
        # Nothing follows a stop token.
        ends = (at + 1 for at, token in enumerate(copied) if token in request.stop_token_ids)
        return Draft.chain(copied[: next(ends, count)])
