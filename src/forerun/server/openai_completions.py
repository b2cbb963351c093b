"""/v1/completions in OpenAI's form, with echoed prompts and their log probabilities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

from fastapi import FastAPI
from starlette.requests import Request as HttpRequest

from forerun.core import Hints
from forerun.engine.requests import TokenLogprob
from forerun.server.answers import Answer, AnswerChoice, Piece
from forerun.server.bodies import CompletionBody
from forerun.server.constraints import grammar_of
from forerun.server.errors import ApiError
from forerun.server.openai_chat import Writer, finite
from forerun.server.respond import STREAMS, AnswerResponse
from forerun.server.service import EngineRequest
from forerun.server.state import ServerState, TokenNames


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/completions", response_model=None, responses=STREAMS)
    async def completions(body: CompletionBody, request: HttpRequest) -> AnswerResponse:
        """Complete one prompt or several, given as text or token ids."""
        if body.stream and body.echo:
            raise ApiError(400, "echo does not stream; leave one of the two out.", param="echo")
        if not body.max_tokens and not body.echo:
            raise ApiError(400, "max_tokens is 0, which needs echo: true.", param="max_tokens")
        writer = CompletionWriter(state, body, "cmpl", "text_completion", "text_completion")
        make = partial(_make, state, body, request.state.namespace)
        return AnswerResponse(state, request, body, make, writer)


def _make(
    state: ServerState, body: CompletionBody, namespace: str
) -> tuple[Sequence[EngineRequest], dict[str, Any]]:
    params = state.sampling(body)
    params["max_tokens"] = body.max_tokens or 1
    if body.logprobs is not None:
        params["logprobs"] = body.logprobs
    single = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
    given = [body.prompt] if single else body.prompt
    prompts = [state.prompts.read(cast("str | list[int]", prompt)) for prompt in given]
    scored = body.logprobs if body.echo else None
    grammar, hints = grammar_of(body), Hints(namespace=namespace)
    grammars = () if grammar is None else (grammar,)
    requests = state.repeated(body, prompts, params, grammars, hints=hints, prompt_logprobs=scored)
    return requests, {"per_prompt": body.n or 1}


class CompletionWriter(Writer):
    """Writes an answer as OpenAI's text completion, whole or as a stream."""

    body: CompletionBody

    def choice(self, index: int, choice: AnswerChoice) -> dict[str, Any]:
        assert choice.end is not None
        done, keeps = choice.end.completion, bool(self.body.max_tokens)
        text = choice.text("text") if keeps else ""
        scored = _scored(choice) if keeps else []
        if self.body.echo:
            text = self.state.tokens.decode(done.prompt_ids) + text
            # The first token of a text has no probability.
            scored = [None, *(done.prompt_logprobs or ()), *scored]
        first = done.prompt_ids[0]
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(scored, 0, first),
            "finish_reason": choice.end.reason,
            **self.extras(choice.events),
        }

    async def stream(self, answer: Answer) -> AsyncIterator[str]:
        offsets = defaultdict[int, int](int)
        async for piece in answer:
            text = "".join(part.text for part in piece.parts)
            extras = self.extras(piece.events)
            # Tokens whose text is held back are reported all the same.
            if text or extras or piece.end is not None or self.body.logprobs is not None:
                made = {
                    "index": piece.index,
                    "text": text,
                    "logprobs": self._logprobs(_scored(piece), offsets[piece.index]),
                    "finish_reason": piece.end and piece.end.reason,
                }
                yield self.chunk(answer, made | extras, piece.end)
            offsets[piece.index] += len(text)
        yield self.last_chunk(answer)

    def _logprobs(
        self, scored: Sequence[TokenLogprob | None], offset: int, first: int = 0
    ) -> dict[str, Any] | None:
        """OpenAI's four lists; None among `scored` is the token `first`, which has no probability."""
        if self.body.logprobs is None:
            return None
        names = self.state.tokens
        texts = [names(first if token is None else token.token_id)[0] for token in scored]
        values = [None if token is None else finite(token.logprob) for token in scored]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": [None if token is None else _top(names, token) for token in scored],
            "text_offset": list(accumulate(map(len, texts), initial=offset))[:-1],
        }


def _top(names: TokenNames, token: TokenLogprob) -> dict[str, float]:
    """Alternatives by their text, best first, the token itself among them."""
    alternatives: dict[str, float] = {}
    for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
        alternatives.setdefault(names(token_id)[0], finite(logprob))
    return alternatives


def _scored(part: AnswerChoice | Piece) -> list[TokenLogprob | None]:
    return [event.logprob for event in part.events if event.logprob is not None]
