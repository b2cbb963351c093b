"""A checkpoint that runs here: the rows that a server's tokens should follow, and plain answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from forerun.core import Request
from forerun.engine.engine import Engine
from forerun.engine.intake import PromptReader
from forerun.engine.requests import Completion
from forerun.engine.text import Decoder
from forerun.measure.attribution import first_difference
from forerun.params import SamplingParams
from forerun.proof.gather import teacher_forced
from forerun.proof.outside.client import RefusedError
from forerun.proof.outside.reply import Reply, Spoken
from forerun.proof.outside.subject import Body, Subject
from forerun.sampling import Prefix, adjusted
from forerun.theory.inputs import Floats, Ints

# Log probabilities that plain answers report beside the token's own.
_TOP = 5


@dataclass
class Reference(Subject):
    """A checkpoint, decoded plainly.

    Args:
        engine: an engine without a drafter.
        chat: prompts are a user's messages.
    """

    engine: Engine
    chat: bool = False
    name: str = field(default="reference", init=False)
    is_reference: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.model = self.engine.target.name

    @cached_property
    def _prompts(self) -> PromptReader:
        return PromptReader(self.engine.tokenizer, self.engine.target.vocab_size)

    @cached_property
    def _decoder(self) -> Decoder:
        assert self.engine.tokenizer is not None
        return Decoder(self.engine.tokenizer)

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, behind the chat template if the server applies it."""
        if self.chat:
            message = {"role": "user", "content": prompt}
            return list(self._prompts.read(self._prompts.read_messages([message], None)))
        return list(self._prompts.read(prompt))

    def ask(self, prompts: Sequence[str], body: Body, at_once: int = 1) -> list[Reply]:
        """Decode prompts plainly, as one batch.

        Raises:
            EndpointError: for fields that sampling here does not know.
        """
        params = self._params(body)
        encoded = [self.encode(prompt) for prompt in prompts]
        done = self.engine.generate(encoded, params)
        return [self._reply(*pair) for pair in zip(encoded, done, strict=True)]

    def margin(
        self, prompt: str, own: Spoken, other: Spoken, index: int, body: Body
    ) -> float | None:
        """Distance of the two tokens by the reference's own row, penalties and bias included."""
        ids = [[token for token in one.tokens if isinstance(token, int)] for one in (other, own)]
        if any(len(found) < index + 1 for found in ids):
            return None
        target, prompt_ids = self.engine.target, self.encode(prompt)
        found = first_difference(target, None, prompt_ids, ids[0], ids[1], self._params(body))
        return None if found is None else found.gap

    def rows(
        self, prompt: str, token_ids: Sequence[int], params: SamplingParams, allowed: float
    ) -> Iterator[tuple[Floats, Ints, int]]:
        """Rows [n, V] and tokens [n] of an answer, stretch by stretch, and how many the rows exclude.

        Args:
            allowed: distance in log probability below the last token that a row allows, up to which
                rounding may have allowed another one.
        """
        prompt_ids = self.encode(prompt)
        request = Request(0, [*prompt_ids, *token_ids], len(prompt_ids), params, 0, 0)
        with self.engine.idle_cache() as cache:
            for _, start, logits, probs in teacher_forced(self.engine.target, cache, [request]):
                chosen = token_ids[start : start + len(probs)]
                excluded = 0
                for index in (probs[range(len(chosen)), chosen] == 0).nonzero()[:, 0].tolist():
                    end = len(prompt_ids) + start + index
                    before = Request(0, request.token_ids[:end], len(prompt_ids), params, 0)
                    row = adjusted(logits[index : index + 1], [Prefix(before)])[0]
                    least = row[probs[index] > 0].min()
                    excluded += bool(row[chosen[index]] < least - allowed)
                rows = probs.cpu().double().numpy()
                yield rows / rows.sum(-1, keepdims=True), np.array(chosen), excluded

    def _params(self, body: Body) -> SamplingParams:
        values: dict[str, Any] = {**body, "logprobs": _TOP}
        if "response_format" in values:
            raise RefusedError("the reference knows no response_format.")
        bias = values.pop("logit_bias", None) or {}
        return SamplingParams(**values, logit_bias={int(token): bias[token] for token in bias})

    def _reply(self, prompt_ids: Sequence[int], done: Completion) -> Reply:
        told = done.logprobs or ()
        spoken = self.spoken(done.token_ids, [one.logprob for one in told], done.finish_reason)
        top = tuple(
            {self._decoder.decode((token,)): value for token, value in one.top} for one in told
        )
        spoken = replace(spoken, text=done.text, top=top)
        return Reply((spoken,), {"prompt_tokens": len(prompt_ids)})

    def spoken(
        self, token_ids: Sequence[int], logprobs: Sequence[float], reason: str | None
    ) -> Spoken:
        """An answer of these tokens."""
        texts = tuple(self._decoder.decode((token,)) for token in token_ids)
        text = self._decoder.decode(tuple(token_ids))
        reason = None if reason is None else str(reason)
        return Spoken(text, tuple(token_ids), texts, tuple(logprobs), (), reason)
