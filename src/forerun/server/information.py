"""Routes that tell about the server and its model, and translate between text and tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI

from forerun import __version__
from forerun.server.bodies import DetokenizeBody, TokenizeBody
from forerun.server.chat import prompt_of
from forerun.server.errors import WITH_BODY, ApiError, published
from forerun.server.state import ServerState


def add_routes(app: FastAPI, state: ServerState) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Ok, or 503 while the model loads and the server shuts down."""
        state.service.ready()
        return {"status": "ok"}

    @app.get("/v1/models")
    @app.get("/models", include_in_schema=False)
    async def models() -> dict[str, Any]:
        """The model under each of its names."""
        return {"object": "list", "data": [_model(state, name) for name in state.names]}

    @app.get("/v1/models/{name:path}", responses=published(404))
    async def model(name: str) -> dict[str, Any]:
        """The model by one of its names."""
        state.check_model(name)
        return _model(state, name)

    @app.get("/props")
    async def props() -> dict[str, Any]:
        """Description of the server as llama.cpp gives it, which editors read."""
        return _props(state)

    @app.post("/tokenize", responses=WITH_BODY)
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """Token ids of a text or a conversation."""
        state.check_model(body.model)
        return await asyncio.to_thread(_tokenize, state, body)

    @app.post("/detokenize", responses=WITH_BODY)
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        """Text of token ids."""
        state.check_model(body.model)
        if any(token >= state.engine.target.vocab_size for token in body.tokens):
            most = state.engine.target.vocab_size - 1
            raise ApiError(400, f"the model's token ids are 0 to {most}.", param="tokens")
        text = await asyncio.to_thread(state.tokens.decode, body.tokens)
        return {"content": text, "prompt": text}


def _model(state: ServerState, name: str) -> dict[str, Any]:
    engine, template = state.engine, state.template
    config = engine.config
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "forerun",
        "root": engine.target.name,
        "max_model_len": engine.max_context,
        "capabilities": {
            "chat": template is not None,
            "completion": True,
            "tools": state.tool_format is not None,
            "reasoning": template is not None and "</think>" in template.source,
            "vision": False,
        },
        "speculative": None
        if config.method is None
        else {"method": config.method, "num_speculative_tokens": config.num_speculative_tokens},
        "exactness": engine.exactness.value,
        "meta": {"n_ctx": engine.max_context, "n_vocab": engine.target.vocab_size},
    }


def _props(state: ServerState) -> dict[str, Any]:
    engine, template = state.engine, state.template
    return {
        "default_generation_settings": {
            "n_ctx": engine.max_context,
            "params": engine.sampling_defaults,
        },
        "total_slots": engine.max_batch_size,
        "model_alias": state.names[0],
        "model_path": state.names[0],
        "modalities": {"vision": False, "audio": False},
        "chat_template": "" if template is None else template.source,
        "bos_token": getattr(engine.tokenizer, "bos_token", None) or "",
        "eos_token": getattr(engine.tokenizer, "eos_token", None) or "",
        "build_info": f"forerun-{__version__}",
        "is_sleeping": False,
    }


def _tokenize(state: ServerState, body: TokenizeBody) -> dict[str, Any]:
    given = [source for source in (body.content, body.prompt, body.messages) if source is not None]
    if len(given) != 1:
        raise ApiError(400, "give one of content, prompt and messages.")
    if body.messages is not None:
        token_ids = prompt_of(state, body.messages, body.chat_template_kwargs)
    else:
        # llama.cpp adds no special tokens unless asked, vLLM does unless told not to.
        adds = body.add_special or body.add_special_tokens
        if adds is None:
            adds = body.prompt is not None
        text = str(given[0])
        token_ids = list(state.prompts.read(text) if adds else state.prompts.read_prediction(text))
    found: dict[str, Any] = {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": state.engine.max_context,
    }
    if body.with_pieces:
        found["tokens"] = [{"id": token, "piece": state.tokens(token)[0]} for token in token_ids]
    if body.return_token_strs:
        found["token_strs"] = [state.tokens(token)[0] for token in token_ids]
    return found
