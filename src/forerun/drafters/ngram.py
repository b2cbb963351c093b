"""Prompt lookup: what followed the same few tokens before is proposed again.

Saxena, "Prompt Lookup Decoding", 2023; the longest match first, the latest of equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Exactness, ForwardOutput, Plan, Sequence, Verdict
from forerun.errors import ConfigError
from forerun.randomness import Randomness


class _Index:
    """Where each n-gram of a sequence was last seen, grown as the sequence grows."""

    def __init__(self, sizes: range) -> None:
        self.sizes = sizes
        self.follows: dict[tuple[int, ...], int] = {}
        self.indexed = 0

    def update(self, token_ids: list[int]) -> None:
        """Index every n-gram that has a token after it."""
        for end in range(max(self.indexed, 1), len(token_ids)):
            for size in self.sizes:
                if size <= end:
                    self.follows[tuple(token_ids[end - size : end])] = end
        self.indexed = len(token_ids)

    def match(self, token_ids: list[int]) -> int | None:
        """Where the text goes on after the latest earlier copy of its longest known ending."""
        for size in reversed(self.sizes):
            if size < len(token_ids):
                follows = self.follows.get(tuple(token_ids[-size:]))
                if follows is not None:
                    return follows
        return None


class NgramDrafter:
    """Drafts a chain from the sequence itself: no model, no memory to speak of.

    Args:
        prompt_lookup_min, prompt_lookup_max: the n-gram sizes to look for.

    Raises:
        ConfigError: unless 1 <= min <= max.
    """

    name = "ngram"
    exactness = Exactness.DISTRIBUTIONAL
    drawings = frozenset({Drawing.TOP})
    draws_trees = False
    needs_draft_model = False
    hidden_layers: tuple[int, ...] = ()
    vocab_size: int | None = None
    rows: int | None = None

    def __init__(self, prompt_lookup_min: int = 2, prompt_lookup_max: int = 4) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {prompt_lookup_min} and prompt_lookup_max "
                f"{prompt_lookup_max}; give 1 <= min <= max."
            )
        self.sizes = range(prompt_lookup_min, prompt_lookup_max + 1)
        self._indexes: dict[int, _Index] = {}

    @classmethod
    def build(cls, setup: DrafterSetup) -> NgramDrafter:
        options = setup.options
        return cls(options["prompt_lookup_min"], options["prompt_lookup_max"])

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        pairs = zip(sequences, plans, strict=True)
        return [self._lookup(sequence, plan.num_tokens) for sequence, plan in pairs]

    def observe(
        self, sequences: Several[Sequence], verdicts: Several[Verdict], output: ForwardOutput
    ) -> None:
        """Nothing to learn: the next lookup indexes what was committed."""

    def release(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence.request_id, None)

    def _lookup(self, sequence: Sequence, count: int) -> Draft:
        if count == 0:
            return NO_DRAFT
        index = self._indexes.setdefault(sequence.request_id, _Index(self.sizes))
        index.update(sequence.token_ids)
        start = index.match(sequence.token_ids)
        if start is None:
            return NO_DRAFT
        # A copy that runs into the end of the text goes on with its own beginning: a period.
        period = len(sequence) - start
        copied = [sequence.token_ids[start + step % period] for step in range(count)]
        # Nothing comes after a stop token.
        stops = (at + 1 for at, token in enumerate(copied) if token in sequence.stop_token_ids)
        return Draft.chain(copied[: next(stops, count)])
