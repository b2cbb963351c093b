"""Servers over toy models, in this process: behind a test client, or on a port of their own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import uvicorn
from starlette.testclient import TestClient
from tokenizers import AddedToken

from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.server.app import build_app
from forerun.server.gate import GateLimits
from forerun.server.listen import Server
from forerun.server.service import EngineService
from forerun.server.state import ServerState
from forerun.testing import ToyModel
from tests.helpers.chat_templates import CHATML, chat_tokenizer
from tests.helpers.layered import LayeredToyModel
from tests.helpers.toy_chat import END, MARKS, TEMPLATE, WORDS, toy_tokenizer
from tests.matrix import DrafterCase

MODEL = "toy"
USER = [{"role": "user", "content": "w1 w2 w1 w2"}]


def served_engine(rows: int = 3, template: str | None = TEMPLATE, **options: Any) -> Engine:
    """An engine of a chat model that drafts by n-grams."""
    most = options.get("max_context", 128)
    return Engine(
        ToyModel(len(MARKS) + len(WORDS), max_context=most),
        NgramDrafter(1, 3),
        SpeculativeConfig(method="ngram", num_speculative_tokens=4, policy="fixed"),
        tokenizer=toy_tokenizer(template),
        max_batch_size=rows,
        **{"max_context": 128, "eos_token_ids": [END], **options},
    )


@cache
def byte_tokenizer(template: str | None) -> Any:
    """A tokenizer of bytes with a chat template, and marks of thoughts and calls among its tokens."""
    tokenizer = chat_tokenizer(template)
    marks = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    special = ["[TOOL_CALLS]", "[ARGS]"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return tokenizer


@cache
def _byte_models(size: int, context: int) -> tuple[LayeredToyModel, ToyModel]:
    return (
        LayeredToyModel(size, max_context=context),
        ToyModel(size, noise=0.3, max_context=context),
    )


def byte_engine(
    case: DrafterCase | None = None, template: str | None = CHATML, context: int = 512
) -> Engine:
    """An engine whose model writes bytes at random, drafted for as in a case of the matrix."""
    tokenizer = byte_tokenizer(template)
    target, draft = _byte_models(len(tokenizer), context)
    config, drafter = dict[str, Any](), None
    if case is not None:
        drafter = case.drafter_for(target, draft)
        config = {"draft_sample_method": case.draft_sample_method, **case.config}
    return Engine(
        target,
        drafter,
        SpeculativeConfig(num_speculative_tokens=4, policy="fixed", **config),
        tokenizer=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        max_batch_size=3,
        max_context=context,
    )


class Client(TestClient):
    """A client of one server, and its state."""

    state: ServerState

    def chat(self, **body: Any) -> Any:
        """The answer to a conversation, or the error."""
        return self.post("/v1/chat/completions", json={"messages": USER, **body}).json()

    def chunks(self, path: str = "/v1/chat/completions", /, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, without its end."""
        body = {**({"messages": USER} if "chat" in path else {}), **body, "stream": True}
        return events_of(self.post(path, json=body).text)


def events_of(text: str) -> list[dict[str, Any]]:
    """The objects of a stream that has ended as OpenAI's do."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def state_of(
    engine: Engine | None = None, deadline: float | None = None, **limits: Any
) -> ServerState:
    made = engine or served_engine()
    return ServerState(EngineService(lambda: made, **limits), [MODEL], deadline)


@contextmanager
def client(state: ServerState | None = None, limits: GateLimits | None = None) -> Iterator[Client]:
    """A client of a server whose model is loaded."""
    state = state or state_of()
    with Client(build_app(state, limits or GateLimits()), raise_server_exceptions=False) as made:
        made.state = state
        wait_for(lambda: state.service.engine is not None)
        yield made


@contextmanager
def listening(
    state: ServerState, limits: GateLimits | None = None, drain: float = 5.0
) -> Iterator[Any]:
    """A server on a free port; yields it and its address."""
    config = uvicorn.Config(
        build_app(state, limits or GateLimits()),
        port=0,
        log_level="error",
        timeout_graceful_shutdown=1,
    )
    server = Server(config, state.service, drain)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started and state.service.engine is not None)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def wait_for(holds: Any, seconds: float = 60.0) -> None:
    """Wait until something holds; a loaded machine may take its time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.002)
