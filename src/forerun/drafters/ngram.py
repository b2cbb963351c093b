"""Prompt lookup: what followed the same few tokens before is proposed again.

Saxena, "Prompt Lookup Decoding", 2023; the longest match first, the latest of equal ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Plan, Request
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError
from forerun.options import options
from forerun.trees.host import grow_on_host

if TYPE_CHECKING:
    from forerun.randomness import Randomness

# Places that a tree goes on from.
MOST_PLACES = 8
# A place outweighs so many of the next shorter n-gram: more than all of them together.
LONGER = 2 * MOST_PLACES
# How probable the next token of a tree is held to be where all places agree; it sets how deep a
# tree goes before it takes in what is less probable.
AGREED = 0.9
# The share of its drafts of 8 tokens that the zoo's target accepted, by the size of the n-gram, greedy
# and at temperature 0.7 over 60 held-out prompts: of sizes whose next larger one was looked for as
# well, and of the largest, which stands for all longer matches.
CONFIDENCES = (0.0, 0.17, 0.25, 0.39, 0.45)
CONFIDENCES_OF_LARGEST = (0.0, 0.48, 0.7, 0.78, 0.81)


class _Index:
    """Where each n-gram of a request was seen, grown as the request grows."""

    def __init__(self, sizes: range) -> None:
        self.sizes = sizes
        self.follows: dict[tuple[int, ...], int] = {}
        # By size and place: where the same n-gram was seen before that; 0 for nowhere.
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
        """Where the text goes on after the latest earlier copy of its longest known ending, and the
        size of that; zeros if it has none."""
        for size in reversed(self.sizes):
            if size < len(token_ids):
                follows = self.follows.get(tuple(token_ids[-size:]))
                if follows is not None:
                    return follows, size
        return 0, 0

    def matches(self, token_ids: list[int]) -> list[tuple[int, float]]:
        """Places where the text may go on, longer endings first, then later ones, with weights."""
        places: dict[int, float] = {}
        weight = 1.0
        for size in reversed(self.sizes):
            place = self.follows.get(tuple(token_ids[-size:]), 0) if size < len(token_ids) else 0
            while place and len(places) < MOST_PLACES:
                places.setdefault(place, weight)
                place = self.earlier[size][place]
            weight /= LONGER
        return list(places.items())


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


class NgramDrafter(BaseDrafter):
    """Drafts chains and trees from the request itself: no model, no memory to speak of.

    Args:
        prompt_lookup_min, prompt_lookup_max: the n-gram sizes to look for.

    Raises:
        ConfigError: for sizes that `NgramOptions` refuses.
    """

    name = "ngram"
    takes_trees = True
    options = NgramOptions

    def __init__(
        self,
        prompt_lookup_min: int = NgramOptions.prompt_lookup_min,
        prompt_lookup_max: int = NgramOptions.prompt_lookup_max,
    ) -> None:
        sizes = NgramOptions(prompt_lookup_min, prompt_lookup_max)
        self.sizes = range(sizes.prompt_lookup_min, sizes.prompt_lookup_max + 1)
        self._indexes: dict[int, _Index] = {}

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        sizes = setup.read(NgramOptions)
        return cls(sizes.prompt_lookup_min, sizes.prompt_lookup_max)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        return [self._draft(*pair) for pair in zip(requests, plans, strict=True)]

    def confidence(self, request: Request) -> float:
        """By the size of the n-gram alone."""
        _, size = self._index_of(request).match(request.token_ids)
        shares = CONFIDENCES_OF_LARGEST if size == self.sizes[-1] else CONFIDENCES
        return shares[min(size, len(shares) - 1)]

    def release(self, request: Request) -> None:
        self._indexes.pop(request.request_id, None)

    def _index_of(self, request: Request) -> _Index:
        index = self._indexes.get(request.request_id)
        if index is None:
            index = self._indexes[request.request_id] = _Index(self.sizes)
        index.update(request.token_ids)
        return index

    def _draft(self, request: Request, plan: Plan) -> Draft:
        if plan.num_tokens == 0:
            return NO_DRAFT
        index = self._index_of(request)
        if plan.is_chain:
            return _copy(request, index.match(request.token_ids)[0], plan.num_tokens)
        places = index.matches(request.token_ids)
        if not places:
            return NO_DRAFT
        trie = _Trie(request.token_ids)
        return grow_on_host(request, plan, (0, places), trie.children)


class _Trie:
    """What follows some places of a text, merged where they agree. A state is how far it has gone, and
    the places with their weights."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    def children(self, state: _State) -> list[tuple[int, float, _State]]:
        """By the weight of their places; of equals the first."""
        step, places = state
        token_ids, length = self._token_ids, len(self._token_ids)
        if len(places) == 1:
            place = places[0][0]
            return [(token_ids[place + step % (length - place)], AGREED, (step + 1, places))]
        tokens = [token_ids[place + step % (length - place)] for place, _ in places]
        if tokens.count(tokens[0]) == len(tokens):
            return [(tokens[0], AGREED, (step + 1, places))]
        parted: dict[int, list[tuple[int, float]]] = {}
        weights: dict[int, float] = {}
        for token, weighted in zip(tokens, places, strict=True):
            if token in parted:
                parted[token].append(weighted)
                weights[token] += weighted[1]
            else:
                parted[token] = [weighted]
                weights[token] = weighted[1]
        total = sum(weights.values()) / AGREED
        return [
            (token, weights[token] / total, (step + 1, parted[token]))
            for token in sorted(weights, key=weights.__getitem__, reverse=True)
        ]


_State = tuple[int, list[tuple[int, float]]]


def _copy(request: Request, start: int, count: int) -> Draft:
    """The tokens from a place on; nothing if that is 0."""
    if not start:
        return NO_DRAFT
    # A copy that runs into the end of the text goes on with its own beginning: a period.
    period = len(request) - start
    copied = [request.token_ids[start + step % period] for step in range(count)]
    # Nothing comes after a stop token.
    stops = (at + 1 for at, token in enumerate(copied) if token in request.stop_token_ids)
    return Draft.chain(copied[: next(stops, count)])
