"""The frozen target that heads learn from: provides hidden states and probabilities.

States are never stored on disk. For a small model on a large text they are terabytes, and computing them
costs no more than reading them would. States that fit into memory are kept there, so from the second epoch
on the target's layers need not run, which saves half the time of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import CausalLM
from forerun.core import Batch, LogitsFor
from forerun.errors import ConfigError
from forerun.heads.layers import borrowed_rows
from forerun.models.memory import available_bytes
from forerun.training.conversations import Example, ExampleBatch
from forerun.training.losses import CHUNK, compiled, filled

# Share of the initially free memory that stays free.
LEFT_FREE = 0.5
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Lesson:
    """Output of the target for a batch of conversations, on the target's device.

    Args:
        batch: the conversations.
        hidden: hidden states by layer, [B, S, hidden_size], as in `ForwardOutput.hidden`.
        rows: index of the row of `probs` that predicts each token of an answer, [B, S]; -1 for other
            tokens.
        probs: the target's probabilities over the draft's vocabulary, [R, Vd] in bfloat16.
        best: the target's most probable token as an index into the draft's vocabulary, [R]; -1 for a
            token outside it. None but for held-out text.
    """

    batch: ExampleBatch
    hidden: dict[int, Tensor]
    rows: Tensor
    probs: Tensor
    best: Tensor | None = None

    def features(self, layers: Sequence[int]) -> Tensor:
        """Hidden states of some layers side by side, [B, S, len(layers) * hidden_size]."""
        return torch.cat([self.hidden[layer] for layer in layers], dim=-1)


class Teacher:
    """The target as a teacher: provides its hidden states and its rows for training texts.

    Args:
        model: the target, in any precision and on any backend. If its output head cannot be run alone,
            the logits of whole batches are held.
        hidden_layers: hidden layers to provide.
        draft_ids: the target's ids of the draft's vocabulary, ascending, [Vd].
    """

    def __init__(self, model: CausalLM, hidden_layers: Sequence[int], draft_ids: Tensor) -> None:
        self.model, self.hidden_layers = model, tuple(hidden_layers)
        self.draft_ids = draft_ids.to(model.device)
        self._head = _runs_alone(model)
        last = (model.num_layers,) if self._head else ()
        self._layers = tuple(dict.fromkeys((*self.hidden_layers, *last)))
        self._states: dict[Example, Tensor] = {}
        self._spare = LEFT_FREE * available_bytes(CPU)
        # log Σ exp of the logits of each token of an answer. With it, only the output rows of the draft's
        # vocabulary are needed when the text occurs again.
        self._sums: dict[Example, Tensor] = {}
        few = self._head and len(draft_ids) < model.vocab_size
        self._rows = borrowed_rows(model, self.draft_ids) if few else None
        index = torch.full((model.vocab_size,), -1, dtype=torch.long)
        index[draft_ids] = torch.arange(len(draft_ids))
        self._index = index.to(model.device)

    @torch.no_grad()
    def show(self, batch: ExampleBatch, *, held_out: bool = False) -> Lesson:
        """Run the target on a batch.

        Args:
            batch: batch of conversations.
            held_out: True for the most probable tokens, and probabilities at `ExampleBatch.temperatures`;
                else they are at temperature 1.
        """
        batch = batch.to(self.model.device)
        if self._head:
            hidden: Mapping[int, Tensor] = self._states_of(batch)
            shown = hidden[self.model.num_layers]
        else:
            hidden, shown = self._run(batch.conversations)
        where = batch.answers.nonzero(as_tuple=True)
        # A token is predicted by the state of the token before it.
        states = shown[where[0], where[1] - 1]
        index = torch.full_like(batch.token_ids, -1)
        index[where] = torch.arange(len(states), device=index.device)
        most_probable = None
        if held_out:
            probs, most_probable, _ = self._probs(states, batch.temperatures, best=True)
        elif all(c in self._sums for c in batch.conversations):
            sums = torch.cat([self._sums[c] for c in batch.conversations])
            probs = self._probs_by_sums(states, sums)
        else:
            ones = torch.ones(len(states), device=index.device)
            probs, _, sums = self._probs(states, ones, best=False)
            if self._rows is not None:
                counts = [len(c.answer_ids) for c in batch.conversations]
                self._sums.update(zip(batch.conversations, torch.split(sums, counts), strict=True))
        own = {layer: hidden[layer] for layer in self.hidden_layers}
        return Lesson(batch, own, index, probs, most_probable)

    def _states_of(self, batch: ExampleBatch) -> dict[int, Tensor]:
        """Hidden states by layer, [B, S, hidden_size], from memory for texts seen before.

        They are 0 past the ends of texts.
        """
        new = tuple(c for c in batch.conversations if c not in self._states)
        made: dict[Example, Tensor] = {}
        if new:
            hidden, _ = self._run(new)
            every = torch.stack([hidden[layer] for layer in self._layers], dim=2).cpu()
            made = {c: rows[: len(c)] for c, rows in zip(new, every, strict=True)}
            # Texts share their batch's memory: allocations for each text would fragment it.
            if available_bytes(CPU) > self._spare:
                self._states |= made
        texts = [made[c] if c in made else self._states[c] for c in batch.conversations]
        padded = pad_sequence(texts, batch_first=True).to(self.model.device)
        return {layer: padded[:, :, at] for at, layer in enumerate(self._layers)}

    def _run(self, conversations: Sequence[Example]) -> tuple[Mapping[int, Tensor], Any]:
        """Hidden states by layer, [B, S, hidden_size], and logits if the output head cannot run alone."""
        texts = [[*c.prompt_ids, *c.answer_ids] for c in conversations]
        cache = self.model.new_cache(len(texts), max(map(len, texts)))
        wanted: LogitsFor = "none" if self._head else "all"
        rows = range(len(texts))
        run = Batch.after(cache, rows, texts, hidden_layers=self._layers, logits_for=wanted)
        output = self.model.forward(run, cache)
        return output.hidden, output.logits

    def _probs(
        self, states: Tensor, temperatures: Tensor, best: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Probabilities over the draft's vocabulary, the most probable tokens, and log Σ exp of logits.

        Args:
            states: states after the last layer, or logits if the output head cannot run alone.
            temperatures: temperature of each row.
            best: True to find the most probable tokens.
        """
        device, count = states.device, len(states)
        probs = torch.empty(count, len(self.draft_ids), dtype=torch.bfloat16, device=device)
        sums = torch.empty(count, device=device)
        most_probable = None
        if best:
            most_probable = torch.empty(count, dtype=torch.long, device=device)
        softmax = compiled(_softmax_of, self.model.vocab_size)
        for part in _chunks(count):
            logits = states[part]
            if self._head:
                logits = self.model.lm_head(self.model.final_norm(states[None, part]))[0]
            if most_probable is not None:
                most_probable[part] = self._index[logits.float().argmax(-1)]
            full, own = filled(CHUNK, logits, temperatures[part])
            made = softmax(full, self.draft_ids, own)
            probs[part], sums[part] = (rows[: len(logits)] for rows in made)
        return probs, most_probable, sums

    def _probs_by_sums(self, states: Tensor, sums: Tensor) -> Tensor:
        """Probabilities as in `_probs` at temperature 1, from known log Σ exp of the logits.

        Only the output rows of the draft's vocabulary are used.
        """
        assert self._rows is not None
        probs = states.new_empty(len(states), len(self.draft_ids), dtype=torch.bfloat16)
        shares = compiled(_shares_of, len(self.draft_ids))
        for part in _chunks(len(states)):
            logits = self.model.final_norm(states[None, part])[0] @ self._rows.T
            full, own = filled(CHUNK, logits, sums[part])
            probs[part] = shares(full, own)[: len(logits)]
        return probs


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, count, CHUNK)]


def _runs_alone(model: CausalLM) -> bool:
    """True if the final norm and the output head of a model can be run without the rest."""
    try:
        model.final_norm(
            torch.zeros(1, 1, model.hidden_size, dtype=model.dtype, device=model.device)
        )
    except ConfigError:
        return False
    return True


def _softmax_of(logits: Tensor, ids: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of some tokens, [n, len(ids)] in bfloat16, and log Σ exp of all logits, [n].

    The logits are [n, V], the temperatures [n].
    """
    wide = logits.float() / temperatures[:, None]
    sums = wide.logsumexp(-1)
    return (wide[:, ids] - sums[:, None]).exp().bfloat16(), sums


def _shares_of(logits: Tensor, sums: Tensor) -> Tensor:
    """Probabilities [n, Vd] in bfloat16 from some tokens' logits and log Σ exp of all logits."""
    return (logits.float() - sums[:, None]).exp().bfloat16()
