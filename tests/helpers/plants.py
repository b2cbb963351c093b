"""Defects of published servers, planted in an engine behind forerun's own server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from forerun.core import Batch, Draft, ForwardOutput, Plan, Request, Verdict
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.randomness import Purpose, Randomness
from forerun.sampling import Prefix, warp
from forerun.testing import ToyModel
from forerun.testing.toy import ToyCache
from forerun.verification import TargetRows
from forerun.verification.decision import Decision
from forerun.verification.token import TokenRule
from tests.helpers.defects import RecoversFromTarget
from tests.helpers.toy_chat import END, MARKS, WORDS, toy_tokenizer

VOCAB, CONTEXT, ROWS = len(MARKS) + len(WORDS), 256, 4
TARGET = ToyModel(VOCAB, sharpness=1.5, max_context=CONTEXT)
DRAFT = ToyModel(VOCAB, sharpness=1.5, noise=2.0, max_context=CONTEXT)


class AcceptsByMatch(TokenRule):
    """Accepts a drafted token where it is the target's most likely one."""

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        right = super().decide(draft, target_probs)
        best = target_probs[:-1].argmax(-1)
        match = (torch.tensor(draft.token_ids, dtype=torch.long) == best).to(target_probs)
        return replace(right, accept=match, emit=target_probs)


class ChangesRows(TokenRule):
    """Verifies by rows that differ from the target's."""

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        changed = [
            self.changed(
                rows.probs(index).clone(), rows.logits(index), rows.prefix(index, len(draft) - 1)
            )
            for index, draft in enumerate(drafts)
        ]
        return super().verify(
            drafts, TargetRows.of_probs(changed, drafts, requests), requests, randomness
        )

    def changed(self, probs: Tensor, logits: Tensor, last: Prefix) -> Tensor:
        raise NotImplementedError


class ForgetsBonusPenalties(ChangesRows):
    """Draws the bonus token without penalties."""

    def changed(self, probs: Tensor, logits: Tensor, last: Prefix) -> Tensor:
        if len(probs) > 1:
            probs[-1:] = warp(
                logits[-1:], [_with(last, presence_penalty=0.0, frequency_penalty=0.0)]
            )
        return probs


class DropsTemperature(ChangesRows):
    """Warps all rows of a round but the first at temperature 1."""

    def changed(self, probs: Tensor, logits: Tensor, last: Prefix) -> Tensor:
        if len(probs) > 1:
            probs[1:] = warp(logits[1:], [_with(last, temperature=1.0)] * (len(probs) - 1))
        return probs


def _with(prefix: Prefix, **params: Any) -> Prefix:
    request = replace(prefix.request, params=replace(prefix.params, **params))
    return Prefix(request, prefix.drafted)


class IgnoresTopP(DraftModelDrafter):
    """Draws within top-p and records the rows without it."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = super().propose(requests, plans, randomness)
        return [self._with_rows(*pair) for pair in zip(requests, drafts, strict=True)]

    def _with_rows(self, request: Request, draft: Draft) -> Draft:
        if draft.probs is None:
            return draft
        model: ToyModel = self.model  # type: ignore[assignment]
        prefixes = [tuple(draft.tokens_to(node)) for node in range(-1, len(draft) - 1)]
        logits = torch.stack([model.next_logits([*request.token_ids, *p]) for p in prefixes])
        open_request = replace(request, params=replace(request.params, top_p=1.0))
        return replace(draft, probs=warp(logits, [Prefix(open_request, p) for p in prefixes]))


class ReusesUniform(Randomness):
    """Draws the recovered or bonus token with the number that tested the first drafted one."""

    def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
        return super().uniform(
            seed, position, Purpose.ACCEPT if purpose is Purpose.EMIT else purpose, node
        )


class OffByOne(ToyModel):
    """Verifies every token of a round by the row of the token before, as with a cache one short."""

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        output = super().forward(batch, cache)
        if output.logits is None or not 1 < batch.width <= 5:
            return output
        return replace(output, logits=torch.cat([output.logits[:, :1], output.logits[:, :-1]], 1))


class StaleCache(ToyCache):
    """Keeps a rejected token in place of the last one that was accepted."""

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        run = self.token_ids[row][length:]
        super().keep(row, length, path)
        if len(path) < len(run):
            self.token_ids[row][-1] = run[len(path)]


class KeepsRejected(ToyModel):
    """Attends to what a cache holds wrongly."""

    def new_cache(self, rows: int, capacity: int) -> ToyCache:
        return StaleCache(rows, capacity)


def engine_of(
    target: ToyModel = TARGET,
    drafter: type[DraftModelDrafter] = DraftModelDrafter,
    rule: TokenRule | None = None,
    randomness: Randomness | None = None,
    method: str = "token",
) -> Engine:
    """An engine that drafts three tokens, with a part that is defective or not."""
    engine = Engine(
        target,
        drafter(DRAFT, ROWS, CONTEXT),
        SpeculativeConfig(num_speculative_tokens=3, rejection_sample_method=method, policy="fixed"),
        tokenizer=toy_tokenizer(),
        eos_token_ids=[END],
        max_batch_size=ROWS,
        max_context=CONTEXT,
        randomness=randomness,
    )
    if rule is not None:
        engine.rules["token"] = rule
    return engine


def plain_engine(seed: int = 0) -> Engine:
    """An engine of the target alone, or of another model."""
    return Engine(
        ToyModel(VOCAB, sharpness=1.5, seed=seed, max_context=CONTEXT),
        tokenizer=toy_tokenizer(),
        eos_token_ids=[END],
        max_batch_size=ROWS,
        max_context=CONTEXT,
    )


PLANTS: dict[str, Callable[[], Engine]] = {
    "accepts the argmax draft by match": lambda: engine_of(rule=AcceptsByMatch()),
    "skips the residual": lambda: engine_of(rule=RecoversFromTarget()),
    "forgets the bonus token's penalties": lambda: engine_of(rule=ForgetsBonusPenalties()),
    "reuses a uniform": lambda: engine_of(randomness=ReusesUniform()),
    "drops temperature after the first token": lambda: engine_of(rule=DropsTemperature()),
    "ignores top-p in the draft's row": lambda: engine_of(drafter=IgnoresTopP),
    "off by one in the cache": lambda: engine_of(
        OffByOne(VOCAB, sharpness=1.5, max_context=CONTEXT)
    ),
    "keeps a rejected token in the cache": lambda: engine_of(
        KeepsRejected(VOCAB, sharpness=1.5, max_context=CONTEXT)
    ),
}
SAMPLED = SamplingParams(temperature=0.7, top_p=0.7, presence_penalty=0.8)
"""Sampling parameters under which every plant changes something."""
