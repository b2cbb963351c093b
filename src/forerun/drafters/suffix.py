"""Drafts the tokens that most often followed the longest earlier copy of the text's ending.

Hu et al., "SAM Decoding", arXiv 2411.10666; Oliaro et al., "SuffixDecoding", arXiv 2411.04975. The
copies are in the text itself and, if asked for, in earlier outputs and a corpus of given texts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Plan, Request
from forerun.drafters.automaton import Match, SuffixAutomaton
from forerun.drafters.base import LookupDrafter, Namespaces
from forerun.drafters.corpus import CorpusOptions, open_corpus
from forerun.options import options
from forerun.trees.host import grow_on_host

# Number of namespaces whose outputs are stored; the most recently used ones stay.
MOST_NAMESPACES = 64
# Tokens drafted for each token of the match.
TOKENS_PER_MATCHED = 3
# Tokens of a match in a corpus that count as one token of a match in the text itself, because in many texts
# short matches are chance. Among 2, 3, 4 and 6 this yields most tokens per forward for SmolLM2's answers,
# from 0.9 M tokens of other answers (2.30 without, 2.52 with 1, 2.64 with 3; 1.37, 1.42 and 1.47 at
# temperature 0.8), and loses nothing if the texts are code that no answer quotes.
TOKENS_PER_OWN = 3
# Most bytes of an automaton per token: two states of 36 bytes, including their arrays' reserve, and one dict
# of 232 with its numbers, because at most one state per token has more than one transition. Python source
# takes 122 (`benchmarks.drafter_cost`); a de Bruijn request of 131,000 bits, in which no ending occurs
# twice, 339.
BYTES_PER_TOKEN = 400
# Share of drafts that the zoo's target accepted, by the length of the match, from each length on: greedy and
# at temperature 0.7 over 60 held-out prompts, at most 16 tokens per draft.
CONFIDENCES = ((0, 0.0), (1, 0.32), (2, 0.38), (3, 0.45), (13, 0.56), (20, 0.7), (40, 0.92))
_LEAST = [least for least, _ in CONFIDENCES]


class SuffixStore:
    """Earlier outputs of each namespace, in two automata, because an automaton cannot forget.

    The newer automaton takes outputs up to half of the limit. Then it becomes the older one, and
    the older one before is dropped.

    Args:
        most_tokens: tokens stored for each namespace; 0 stores nothing.
    """

    def __init__(self, most_tokens: int) -> None:
        self._half = most_tokens // 2
        self._pairs: Namespaces[list[SuffixAutomaton]] = Namespaces(
            lambda: [SuffixAutomaton(), SuffixAutomaton()], MOST_NAMESPACES
        )

    def add(self, namespace: str, token_ids: Sequence[int]) -> None:
        """Store an output, or the end of one longer than half the limit, for its namespace."""
        if not self._half or not token_ids:
            return
        pair, newest = self._pairs.get_or_make(namespace), token_ids[-self._half :]
        if pair[0].num_tokens + len(newest) > self._half:
            pair[:] = SuffixAutomaton(), pair[0]
        pair[0].extend(newest)
        pair[0].end_text()

    def automata(self, namespace: str) -> tuple[SuffixAutomaton, ...]:
        """The automata of a namespace that hold outputs, the newer first."""
        return tuple(own for own in self._pairs.get(namespace) or () if own.num_tokens)


class _Found(NamedTuple):
    """A match of the text's ending.

    Args:
        source: the automaton that holds it.
        state: state from which it continues.
        length: its length in tokens; in a corpus, the length that it counts as in the text itself.
    """

    source: SuffixAutomaton
    state: int
    length: int


class _Known:
    """The index of one request's text: its own automaton, and its matches in others."""

    def __init__(self, corpus: SuffixAutomaton | None) -> None:
        self.own, self._corpus = SuffixAutomaton(), corpus
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

    def longest(self) -> _Found:
        """The longest match; among equals the text's own, then those in earlier outputs."""
        own = self.own
        state = max(own.link[own.last], 0)
        best = _Found(own, state, own.length[state])
        for automaton, match in self.matches.items():
            state, length = match.longest()
            if automaton is self._corpus:
                length //= TOKENS_PER_OWN
            if length > best.length:
                best = _Found(automaton, state, length)
        return best


@options
class SuffixOptions(CorpusOptions):
    """The sources of the suffix method beside the text itself."""

    suffix_store_tokens: int = Field(
        default=0,
        ge=0,
        le=2**31,
        description="Tokens of earlier output to keep for each namespace.",
    )


class SuffixDrafter(LookupDrafter):
    """Drafts chains and trees from what was written before: no model.

    Outputs are stored when their requests end, by namespace, and used only for later requests of
    the same namespace. Prompts are used only for their own requests.

    Args:
        store_tokens: tokens of earlier outputs stored for each namespace; 0 stores none.
        corpus: index of fixed texts.
    """

    name = "suffix"
    options = SuffixOptions

    def __init__(self, store_tokens: int = 0, corpus: SuffixAutomaton | None = None) -> None:
        self.store = SuffixStore(store_tokens)
        self._corpus = corpus
        self._known: defaultdict[int, _Known] = defaultdict(lambda: _Known(corpus))
        # Released requests by id, while they exist: a second release must not store an output again.
        self._released: WeakValueDictionary[int, Request] = WeakValueDictionary()

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        """Make a drafter for an engine.

        Raises:
            ConfigError: as `open_corpus` does.
        """
        return cls(setup.read(SuffixOptions).suffix_store_tokens, open_corpus(setup))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'corpus' if self._corpus else ''})"

    def confidence(self, request: Request) -> float:
        """Confidence by the length of the match alone."""
        length = self._longest(request).length
        return CONFIDENCES[bisect_right(_LEAST, length) - 1][1]

    def release(self, request: Request) -> None:
        self._known.pop(request.request_id, None)
        if request.speculative and self._released.get(request.request_id) is not request:
            self._released[request.request_id] = request
            self.store.add(request.hints.namespace, request.output_ids)

    def draft(self, request: Request, plan: Plan) -> Draft:
        source, state, length = self._longest(request)
        if not length:
            return NO_DRAFT
        depth = min(plan.num_tokens, TOKENS_PER_MATCHED * length)
        if plan.is_chain:
            return Draft.chain(source.chain(state, depth, request.stop_token_ids))
        return grow_on_host(request, plan.cut(depth), state, source.children)

    def _longest(self, request: Request) -> _Found:
        known = self._known[request.request_id]
        others = self.store.automata(request.hints.namespace)
        corpus = () if self._corpus is None else (self._corpus,)
        known.update(request.token_ids, (*others, *corpus))
        return known.longest()
