"""Drafts what most often followed the longest ending of the text that occurred before.

Hu et al., "SAM Decoding", arXiv 2411.10666; Oliaro et al., "SuffixDecoding", arXiv 2411.04975. It looks
into the text itself, and where asked to into earlier outputs and a given corpus.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Self
from weakref import WeakValueDictionary

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Plan, Request
from forerun.drafters.base import LookupDrafter
from forerun.drafters.lookup.automaton import Match, SuffixAutomaton
from forerun.drafters.lookup.store import SuffixStore
from forerun.errors import ConfigError
from forerun.files import read_text
from forerun.options import Text, options
from forerun.trees.host import grow_on_host

# Tokens drafted for each token of the match.
TOKENS_PER_MATCHED = 3
# Of a corpus, unless a store is asked for, whose bound then is the corpus's as well: built at some 4
# microseconds a token, kept at no more than BYTES_PER_TOKEN.
MOST_CORPUS_TOKENS = 1_000_000
# What an automaton takes at most: two states of 36 bytes, their arrays' reserve included, and one
# dict of 232 with the numbers in it, as at most one state a token has more than one transition. Python
# source takes 122 (`benchmarks.drafter_cost`); a de Bruijn request of 131,000 bits, in which no
# ending ever comes twice, 339.
BYTES_PER_TOKEN = 400
# Of a corpus, on average; a file that is larger than that many tokens can be is not even read.
MOST_BYTES_PER_TOKEN = 64
# The share of its drafts that the zoo's target accepted, by the length of the match, from each length
# on: greedy and at temperature 0.7 over 60 held-out prompts, 16 tokens a draft at most.
CONFIDENCES = ((0, 0.0), (1, 0.32), (2, 0.38), (3, 0.45), (13, 0.56), (20, 0.7), (40, 0.92))
_LEAST = [least for least, _ in CONFIDENCES]


class _Known:
    """The index of one request's text: its own automaton, and its matches in others."""

    def __init__(self) -> None:
        self.own = SuffixAutomaton()
        self.matches: dict[SuffixAutomaton, Match] = {}

    def update(self, token_ids: list[int], others: tuple[SuffixAutomaton, ...]) -> None:
        """Take in new tokens, and the present automata of other texts."""
        new = token_ids[self.own.num_tokens :]
        self.own.extend(new)
        for match in self.matches.values():
            match.extend(new)
        if others or self.matches:
            self.matches = {
                other: self.matches.get(other) or Match(other, token_ids) for other in others
            }

    def longest(self) -> tuple[SuffixAutomaton, int, int]:
        """The longest match: where, its state and its length; the text's own where lengths tie."""
        own = self.own
        state = max(own.link[own.last], 0)
        best = (own, state, own.length[state])
        for automaton, match in self.matches.items():
            state, length = match.longest()
            if length > best[2]:
                best = (automaton, state, length)
        return best


@options
class SuffixOptions:
    """What the suffix method looks into beside the text itself."""

    suffix_corpus: Text | None = Field(
        default=None, description="A UTF-8 text file to draft from as well."
    )
    suffix_store_tokens: int = Field(
        default=0,
        ge=0,
        le=2**31,
        description="Tokens of earlier output to keep for each namespace; above 0 it bounds the corpus too.",
    )


class SuffixDrafter(LookupDrafter):
    """Drafts chains and trees from what was written before: no model.

    Outputs are kept when their requests end, in the store of their namespace, for later requests of
    that namespace alone; prompts serve their own requests alone.

    Args:
        store_tokens: tokens of earlier outputs kept for each namespace; 0 keeps none.
        corpus: token ids of a fixed text.
    """

    name = "suffix"
    options = SuffixOptions

    def __init__(self, store_tokens: int = 0, corpus: Sequence[int] = ()) -> None:
        self.store = SuffixStore(store_tokens)
        self._corpora = (SuffixAutomaton(corpus),) if corpus else ()
        self._known: defaultdict[int, _Known] = defaultdict(_Known)
        # By id, as long as they exist: a second release must not store an output again.
        self._released: WeakValueDictionary[int, Request] = WeakValueDictionary()

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        """Make one for an engine.

        Raises:
            ConfigError: for a corpus that is missing, empty, not UTF-8 text or longer than allowed, or
                without a tokenizer.
        """
        own = setup.read(SuffixOptions)
        return cls(own.suffix_store_tokens, _read_corpus(own, setup.encode))

    def confidence(self, request: Request) -> float:
        """By the length of the match alone."""
        _, _, length = self._update(request).longest()
        return CONFIDENCES[bisect_right(_LEAST, length) - 1][1]

    def release(self, request: Request) -> None:
        self._known.pop(request.request_id, None)
        if request.speculative and self._released.get(request.request_id) is not request:
            self._released[request.request_id] = request
            self.store.add(request.hints.namespace, request.output_ids)

    def draft(self, request: Request, plan: Plan) -> Draft:
        automaton, state, length = self._update(request).longest()
        if not length:
            return NO_DRAFT
        depth = min(plan.num_tokens, TOKENS_PER_MATCHED * length)
        if plan.is_chain:
            return Draft.chain(automaton.chain(state, depth, request.stop_token_ids))
        return grow_on_host(request, plan.cut(depth), state, automaton.children)

    def _update(self, request: Request) -> _Known:
        known = self._known[request.request_id]
        others = (*self.store.automata(request.hints.namespace), *self._corpora)
        known.update(request.token_ids, others)
        return known


def _read_corpus(own: SuffixOptions, encode: Callable[[str], list[int]] | None) -> list[int]:
    """The token ids of the corpus; none where the options name no file."""
    path, most_tokens = own.suffix_corpus, own.suffix_store_tokens or MOST_CORPUS_TOKENS
    if path is None:
        return []
    if encode is None:
        raise ConfigError("suffix_corpus is a text and needs a tokenizer; use forerun.load.")
    most_bytes, remedy = (
        most_tokens * MOST_BYTES_PER_TOKEN,
        "shorten it, or raise suffix_store_tokens",
    )
    text = read_text(path, "suffix_corpus", ConfigError, most_bytes=most_bytes, remedy=remedy)
    token_ids = encode(text)
    if not token_ids:
        raise ConfigError(f"suffix_corpus {path} is empty; give a text to draft from.")
    if len(token_ids) > most_tokens:
        raise ConfigError(
            f"suffix_corpus {path} has {len(token_ids)} tokens (allowed: {most_tokens}); {remedy}."
        )
    return token_ids
