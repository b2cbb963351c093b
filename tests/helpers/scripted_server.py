"""An OpenAI-compatible server with a fixed answer, and bad habits to choose from."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("w1 ", "w2 ", "w3 ", "w4 ", "w5 ", "w6 ", "w7 ", "w8 ")


@dataclass
class Script:
    """Habits of a server.

    Args:
        refuses: fields of a body that it answers with 400.
        chat_only: it has no /v1/completions.
        busy: answers with 429 that it gives first.
        delay: seconds before an answer.
        broken: its streams are not UTF-8.
        wrong: the answer's second word where speculation is on.
        prefill: the answer to requests of one word.
        logprob: of every word.
        prompt_tokens: that it counts, as usage.
        most: requests after which it gives only status 500.
        build: its version, by /props.
    """

    refuses: tuple[str, ...] = ()
    chat_only: bool = False
    busy: int = 0
    delay: float = 0.0
    broken: bool = False
    wrong: str | None = None
    prefill: str | None = None
    logprob: float = -0.5
    prompt_tokens: int = 6
    most: int = 10**9
    build: str = "b1"
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and content."""
        chat = "chat" in path
        if self.chat_only and not chat:
            return 404, {"error": {"message": "no such path"}}
        for name in self.refuses:
            if name in body:
                return 400, {"error": {"message": f"{name} is unknown"}}
        if self.busy:
            self.busy -= 1
            return 429, {}
        if len(self.bodies) >= self.most:
            return 500, {"error": {"message": "out of memory"}}
        self.bodies.append(body)
        time.sleep(self.delay)
        words = list(WORDS[: body.get("max_tokens", len(WORDS))])
        if self.wrong is not None and body.get("speculative", True):
            words[1:2] = [self.wrong]
        if self.prefill is not None and len(words) == 1:
            words = [self.prefill]
        text = "".join(words)
        choice: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
        choice["finish_reason"] = "length"
        if body.get("logprobs"):
            top = [{"token": name, "logprob": -3.0} for name in ("x", "y")]
            choice["logprobs"] = {
                "content": [
                    {
                        "token": word,
                        "logprob": self.logprob,
                        "top_logprobs": [{"token": word, "logprob": self.logprob}, *top],
                    }
                    for word in words
                ]
            }
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": len(words)}
        return 200, {"choices": [choice] * body.get("n", 1), "usage": usage}


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """The address of a server with these habits."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "scripted/1"

        def do_GET(self) -> None:
            content = {"data": [{"id": "model"}], "build_info": script.build}
            self.reply(200, json.dumps(content).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = script.answer(self.path, body)
            sent = json.dumps(content).encode()
            if body.get("stream") and status == 200:
                said = json.dumps(content["choices"][0].get("text")).encode()
                said = said.replace(b"w3", b"\xff") if script.broken else said
                sent = b'data: {"choices": [{"text": ' + said + b"}]}\n\ndata: [DONE]\n\n"
            self.reply(status, sent)

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
