"""A smaller model that runs ahead, token by token, batched over all sequences that draft."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import torch
import torch.nn.functional as functional
from torch import Tensor

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Exactness, ForwardOutput, Plan, Sequence, Verdict
from forerun.models.cpu import ChainRequest, CpuModel
from forerun.models.running import prefill, run_rows
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_draft

# Rows that miss more tokens than this run their prefill alone, so that nobody pays for its padding.
LARGEST_SHARED_CATCH_UP = 16


@dataclass
class _Row:
    """What one row of the cache holds."""

    request_id: int = -1
    token_ids: list[int] = field(default_factory=list)
    num_committed: int = 0


@dataclass
class _Chain:
    """A draft in the making."""

    sequence: Sequence
    plan: Plan
    token_ids: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    ended: bool = False

    def finish(self) -> Draft:
        drawn = self.plan.drawing is Drawing.DRAW
        return Draft.chain(self.token_ids, torch.stack(self.rows) if drawn else None)


class DraftModelDrafter:
    """Drafts chains with a model of the target's vocabulary.

    Its cache heals itself: before drafting it goes back to what it shares with each sequence and
    runs what is missing, so that nobody has to tell it what was accepted. Prompts are run at the
    first draft, so that a request that never speculates never pays for them.

    Args:
        model: the draft model.
        rows: as many as the target's cache has.
        capacity: tokens a row, drafted ones included.
        vocab_size: the target's, where the two tables of logits are padded to different sizes.
    """

    name = "draft_model"
    exactness = Exactness.DISTRIBUTIONAL
    drawings = frozenset(Drawing)
    draws_trees = False
    needs_draft_model = True
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self, model: CausalLM, rows: int, capacity: int, vocab_size: int | None = None
    ) -> None:
        self.model = model
        self.vocab_size: int | None = vocab_size or model.vocab_size
        self.rows: int | None = rows
        self.capacity = min(capacity, model.max_context)
        self.cache = model.new_cache(rows, self.capacity)
        self._rows = [_Row() for _ in range(rows)]
        self._chains = model if isinstance(model, CpuModel) else None

    @classmethod
    def build(cls, setup: DrafterSetup) -> DraftModelDrafter:
        model = setup.load_draft_model()
        return cls(model, setup.rows, setup.capacity, setup.target.vocab_size)

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        chains = [_Chain(*pair) for pair in zip(sequences, plans, strict=True)]
        growing = [chain for chain in chains if self._room(chain) > 0]
        if self._chains is not None and growing and _in_one_call(growing, randomness):
            return self._propose_in_one_call(self._chains, chains, growing)
        logits = self._catch_up([chain.sequence for chain in growing]) if growing else None
        while growing and logits is not None:
            self._draw(growing, logits, randomness)
            growing = [chain for chain in growing if self._grows(chain)]
            logits = self._extend(growing) if growing else None
        return [chain.finish() if chain.token_ids else NO_DRAFT for chain in chains]

    def observe(
        self, sequences: Several[Sequence], verdicts: Several[Verdict], output: ForwardOutput
    ) -> None:
        """Nothing to learn: the next catch-up sees what was committed."""

    def release(self, sequence: Sequence) -> None:
        if self._rows[sequence.row].request_id == sequence.request_id:
            self._rows[sequence.row] = _Row()
            self.cache.trim(sequence.row, 0)

    def _propose_in_one_call(
        self, model: CpuModel, chains: list[_Chain], growing: list[_Chain]
    ) -> list[Draft]:
        """The same, all steps of all chains in one call of the model."""
        requests = [
            ChainRequest(
                chain.sequence.row,
                self._missing(chain.sequence),
                self._room(chain),
                chain.plan.drawing,
                chain.sequence,
            )
            for chain in growing
        ]
        assert self.vocab_size is not None
        drafted = model.draft_chains(self.cache, requests, self.vocab_size)
        drafts = {id(chain): draft for chain, draft in zip(growing, drafted, strict=True)}
        for request, draft in zip(requests, drafted, strict=True):
            held = self._rows[request.row]
            held.token_ids.extend(request.pending)
            # The last token has been drawn and not run.
            held.token_ids.extend(draft.token_ids)
            del held.token_ids[self.cache.length(request.row) :]
        return [drafts.get(id(chain), NO_DRAFT) for chain in chains]

    def _room(self, chain: _Chain) -> int:
        """Tokens that the plan and the draft model's context allow."""
        return min(chain.plan.num_tokens, self.capacity - len(chain.sequence))

    def _grows(self, chain: _Chain) -> bool:
        return not chain.ended and len(chain.token_ids) < self._room(chain)

    def _draw(self, chains: list[_Chain], logits: Tensor, randomness: Randomness) -> None:
        tokens, probs = draw_draft(
            logits,
            [Prefix(chain.sequence, tuple(chain.token_ids)) for chain in chains],
            [chain.plan.drawing for chain in chains],
            [len(chain.token_ids) for chain in chains],
            randomness,
        )
        for chain, token, row in zip(chains, tokens, probs, strict=True):
            # Nothing comes after a stop token, nor where a mask lets nothing follow.
            chain.ended = token is None or token in chain.sequence.stop_token_ids
            if token is None:
                continue
            chain.token_ids.append(token)
            if chain.plan.drawing is Drawing.DRAW:
                chain.rows.append(row)

    def _extend(self, chains: list[_Chain]) -> Tensor:
        """Run the newest drafted token of each chain; logits [B, V]."""
        latest = [[chain.token_ids[-1]] for chain in chains]
        return self._run([chain.sequence.row for chain in chains], latest)

    def _catch_up(self, sequences: list[Sequence]) -> Tensor:
        """Bring the rows to the end of their sequences; logits after the last tokens, [B, V]."""
        missing = [self._missing(sequence) for sequence in sequences]
        return self._run([sequence.row for sequence in sequences], missing)

    def _missing(self, sequence: Sequence) -> list[int]:
        """Cut a row back to what it shares with its sequence; the tokens that it lacks, few enough to
        be run beside those of other rows."""
        held = self._row_of(sequence)
        shared = self._shared_length(held, sequence)
        self.cache.trim(sequence.row, shared)
        del held.token_ids[shared:]
        rest = sequence.token_ids[shared:]
        if len(rest) > LARGEST_SHARED_CATCH_UP:
            prefill(self.model, self.cache, sequence.row, rest[:-1])
            held.token_ids.extend(rest[:-1])
            rest = rest[-1:]
        held.num_committed = len(sequence)
        return rest

    def _row_of(self, sequence: Sequence) -> _Row:
        """The row of a sequence, emptied if it still holds another request."""
        if self._rows[sequence.row].request_id != sequence.request_id:
            self._rows[sequence.row] = _Row(sequence.request_id)
            self.cache.trim(sequence.row, 0)
        return self._rows[sequence.row]

    @staticmethod
    def _shared_length(held: _Row, sequence: Sequence) -> int:
        """How many tokens of the row agree with the sequence, at least one being left to run."""
        # Committed tokens never change, so only those drafted since are compared.
        shared = min(held.num_committed, len(held.token_ids))
        limit = min(len(held.token_ids), len(sequence) - 1)
        while shared < limit and held.token_ids[shared] == sequence.token_ids[shared]:
            shared += 1
        return min(shared, limit)

    def _run(self, rows: list[int], token_ids: list[list[int]]) -> Tensor:
        output = run_rows(self.model, self.cache, rows, token_ids, logits_for="last")
        for row, tokens in zip(rows, token_ids, strict=True):
            self._rows[row].token_ids.extend(tokens)
        assert output.logits is not None
        assert self.vocab_size is not None
        logits = output.logits[:, 0, : self.vocab_size]
        padding = self.vocab_size - logits.shape[-1]
        return functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits


def _in_one_call(chains: list[_Chain], randomness: Randomness) -> bool:
    """Whether nothing has to be asked between the steps: no penalties, no masks, no record of keys."""
    return randomness.by_key_alone and not any(chain.sequence.params.adjusts for chain in chains)
