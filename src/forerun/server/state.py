"""State that all fronts share: the engine's service, the model's names, its tokenizer and its limits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forerun.core import Hints
from forerun.drafters.translation import SpelledVocabulary
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.engine.intake import PromptReader
from forerun.engine.text import Decoder
from forerun.errors import IncompatibleDraftError
from forerun.server.bodies import SamplingBody, SpeculativeBody
from forerun.server.constraints import GrammarMask, GrammarVocabulary
from forerun.server.errors import ApiError
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

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no model is loaded by a request.

        Raises:
            ApiError: naming those that are.
        """
        if name is not None and name not in self.names:
            own = ", ".join(self.names)
            message = f"The model `{name[:80]}` does not exist; this server has {own}."
            raise ApiError(404, message, param="model", code="model_not_found")

    def sampling(self, body: SamplingBody) -> dict[str, Any]:
        """Sampling parameters by name, as far as the body gives them."""
        params = body.model_dump(include=_SAMPLING, exclude_none=True)
        if body.top_k == -1:
            params["top_k"] = 0
        if body.top_p == 0.0:
            # OpenAI allows it; the most likely token alone is left.
            params |= {"top_p": 1.0, "top_k": 1}
        stop = params.pop("stop", [])
        params["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
        return params

    def speculation(self, body: SamplingBody, hints: Hints) -> tuple[bool, Hints]:
        """Decide whether a body's requests are drafted for; return that and their hints.

        Raises:
            ApiError: for speculation that the server was not started with.
        """
        wanted, config = body.speculative, self.engine.config
        if not isinstance(wanted, SpeculativeBody):
            return wanted is not False, hints
        if wanted.method is not None and wanted.method != config.method:
            served = config.method or "none: it was started without speculation"
            message = f"the server drafts by method {served}, not {wanted.method[:40]}."
            raise ApiError(400, message, param="speculative.method")
        count, most = wanted.num_speculative_tokens, config.num_speculative_tokens
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

        if "logprobs" in params:
            # It takes a while: here, in a worker's thread, no stream waits for it.
            _ = self.tokens.bytes_of
        seed, hints = params.get("seed"), more.pop("hints", Hints())
        speculative, hints = self.speculation(body, hints)
        count = body.n or 1
        seeds = [{} if seed is None else {"seed": seed + i} for i in range(count)]
        return [
            EngineRequest(ids, params | own | mask(len(ids)), speculative, hints, **more)
            for ids in prompts
            for own in seeds
        ]


_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos"),
}


class TokenNames:
    """Text and bytes of single tokens.

    Args:
        tokenizer: tokenizer of transformers, or another one with `decode`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, decoder = tokenizer, Decoder(tokenizer)
        self.decode = decoder.decode
        self._special = {number: name for name, number in decoder.special.items()}

    @cached_property
    def bytes_of(self) -> Mapping[int, bytes]:
        """Bytes of all tokens; empty for a tokenizer whose decoder joins words or is not known."""
        if getattr(getattr(self._tokenizer, "backend_tokenizer", None), "decoder", None) is None:
            return {}
        with suppress(IncompatibleDraftError):
            return SpelledVocabulary(self._tokenizer).bytes_of
        return {}

    def __call__(self, token_id: int) -> tuple[str, bytes]:
        """Text of a token, and its bytes, which need not be whole characters."""
        if token_id in self._special:
            return self._special[token_id], self._special[token_id].encode()
        content = self.bytes_of.get(token_id)
        if content is None:
            text = self.decode((token_id,))
            return text, text.encode()
        return content.decode(errors="replace"), content
