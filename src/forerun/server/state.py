"""State that all fronts share: the engine's service, the model's names, its tokenizer and its limits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import Request as HttpRequest

from forerun.core import Hints
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.engine.intake import PromptReader
from forerun.engine.text import Decoder
from forerun.models.tokenizer import byte_letters
from forerun.server.bodies import SamplingBody, SpeculativeBody
from forerun.server.constraints import GrammarMask, GrammarVocabulary
from forerun.server.errors import ApiError
from forerun.server.respond import AnswerResponse, Form, Make
from forerun.server.service import EngineRequest, EngineService
from forerun.server.tools import ToolFormat, format_of


@dataclass
class ServerState:
    """State of a server.

    Args:
        service: runs the engine.
        names: names of the model; the first one is shown.
        deadline: seconds that a request may take; None sets no limit.
        paced: a stream has the tokens of a round one by one, over the time that it took.
    """

    service: EngineService
    names: Sequence[str]
    deadline: float | None = None
    paced: bool = False
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def engine(self) -> Engine:
        """The engine, once it is loaded.

        Raises:
            ApiError: before that, and while the server shuts down.
        """
        return self.service.ready()

    @cached_property
    def prompts(self) -> PromptReader:
        return PromptReader(self.engine.tokenizer, self.engine.target.vocab_size)

    @cached_property
    def template(self) -> ChatTemplate | None:
        return ChatTemplate.of(self.engine.tokenizer)

    @cached_property
    def tokens(self) -> TokenNames:
        return TokenNames(self.engine.tokenizer)

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        return None if self.template is None else format_of(self.template.source)

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        return GrammarVocabulary(self.engine)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return self.tokens.decode(token_ids)

    @property
    def fingerprint(self) -> str:
        return f"forerun-{self.started:x}"

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no model is loaded by a request.

        Raises:
            ApiError: naming those that are.
        """
        if name is not None and name not in self.names:
            raise ApiError(
                404,
                f"The model `{name[:80]}` does not exist; this server has {', '.join(self.names)}.",
                param="model",
                code="model_not_found",
            )

    def answer(
        self, request: HttpRequest, body: SamplingBody, make: Make, form: Form
    ) -> AnswerResponse:
        """The response to a body.

        Raises:
            ApiError: for another model, and while the server cannot answer.
        """
        self.service.ready()
        self.check_model(body.model)
        return AnswerResponse(self, make, request.state.namespace, form)

    def sampling(self, body: SamplingBody) -> dict[str, Any]:
        """Sampling parameters by name, as far as the body gives them."""
        given = {name: getattr(body, name) for name in _SAMPLING}
        params = {name: value for name, value in given.items() if value is not None}
        if body.top_k == -1:
            params["top_k"] = 0
        if body.top_p == 0.0:
            # OpenAI allows it; the most likely token alone is left.
            params |= {"top_p": 1.0, "top_k": 1}
        stop = params.pop("stop", [])
        params["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
        if body.logit_bias:
            params["logit_bias"] = self._bias(body.logit_bias)
        # Without a limit an answer goes on to the end of the context.
        params["max_tokens"] = body.max_tokens or None
        return params

    def _bias(self, given: Mapping[str, float]) -> dict[int, float]:
        try:
            return {int(token): bias for token, bias in given.items()}
        except ValueError:
            message = "logit_bias maps token ids, as text, to numbers."
            raise ApiError(400, message, param="logit_bias") from None

    def speculation(self, body: SamplingBody, hints: Hints) -> tuple[bool, Hints]:
        """Decide whether a body's requests are drafted for; return that and their hints.

        Raises:
            ApiError: for speculation that the server was not started with.
        """
        asked, config = body.speculative, self.engine.config
        if asked is None or isinstance(asked, bool):
            return asked is not False, hints
        assert isinstance(asked, SpeculativeBody)
        if asked.method not in (None, config.method):
            served = config.method or "none: it was started without speculation"
            message = f"the server drafts by method {served}, not {asked.method[:40]}."
            raise ApiError(400, message, param="speculative.method")
        count, most = asked.num_speculative_tokens, config.num_speculative_tokens
        if count is not None and most is not None and count > most:
            message = f"num_speculative_tokens is {count}; the server was started with {most}."
            raise ApiError(400, message, param="speculative.num_speculative_tokens")
        return count != 0, Hints(hints.prediction, hints.namespace, count)

    def repeated(
        self,
        body: SamplingBody,
        prompts: Sequence[Sequence[int]],
        params: dict[str, Any],
        grammars: Sequence[dict[str, Any]] = (),
        **more: Any,
    ) -> list[EngineRequest]:
        """Requests for `n` answers to each prompt; the seed of answer i is seed + i.

        Raises:
            ApiError: for grammars that are not valid, and speculation that is not served.
        """
        matcher = self.vocabulary.compiled(grammars) if grammars else None
        if matcher is not None and body.ignore_eos:
            message = "an answer by a grammar has an end; leave ignore_eos out."
            raise ApiError(400, message, param="ignore_eos")

        def mask(size: int) -> dict[str, Any]:
            return {} if matcher is None else {"mask": GrammarMask(matcher, size)}

        seed, hints = params.get("seed"), more.pop("hints", Hints())
        speculative, hints = self.speculation(body, hints)
        count = body.n or 1
        seeds = [{} if seed is None else {"seed": seed + i} for i in range(count)]
        return [
            EngineRequest(ids, params | own | mask(len(ids)), speculative, hints, **more)
            for ids in prompts
            for own in seeds
        ]


_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos"),
)


class TokenNames:
    """Text and bytes of single tokens.

    Args:
        tokenizer: tokenizer of transformers, or another one with `decode`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._decoder = Decoder(tokenizer)
        self.decode = self._decoder.decode
        self.special = self._decoder.special
        self._names = {number: name for name, number in self.special.items()}
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        letters = byte_letters() if self._decoder.joins else []
        self._bytes = {letter: byte for byte, letter in enumerate(letters)}
        self._known: dict[int, tuple[str, bytes]] = {}

    def __call__(self, token_id: int) -> tuple[str, bytes]:
        """Text of a token, and its bytes, which need not be whole characters."""
        if token_id not in self._known:
            self._known[token_id] = self._find(token_id)
        return self._known[token_id]

    def _find(self, token_id: int) -> tuple[str, bytes]:
        if token_id in self._names:
            return self._names[token_id], self._names[token_id].encode()
        text = self._decoder.decode((token_id,))
        letters = None if self._fast is None else self._fast.id_to_token(token_id)
        if letters is not None and self._decoder.is_byte(token_id):
            return text, bytes([int(letters[3:5], 16)])
        if letters and all(letter in self._bytes for letter in letters):
            return text, bytes(self._bytes[letter] for letter in letters)
        # Alone, such a token is decoded without its space.
        if letters and "▁" in letters and not self._decoder.joins:
            text = letters.replace("▁", " ")
        return text, text.encode()
