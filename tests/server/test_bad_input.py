"""What no well-behaved client sends: the server refuses it in its envelope, goes on, and keeps no row."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.server.app import build_app
from forerun.server.gate import GateLimits
from tests.helpers.served import (
    MODEL,
    USER,
    byte_engine,
    client,
    listening,
    served_engine,
    state_of,
    wait_for,
)

POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
LIMITS = GateLimits(body_bytes=1 << 20, body_seconds=0.3)
Connection = tuple[Any, socket.socket]


@contextmanager
def connected(limits: GateLimits = LIMITS) -> Iterator[Connection]:
    """A server's state, and a connection to it without a client's manners."""
    state = state_of()
    with listening(state, limits) as (_, url):
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as wire:
            wire.settimeout(30.0)
            yield state, wire
        assert httpx.get(f"{url}/health").is_success
        wait_for(lambda: state.service.open == 0)


def answer(wire: socket.socket) -> tuple[int, str]:
    """Status and the rest of what comes back."""
    found = b""
    with suppress(ConnectionError):
        while more := wire.recv(65536):
            found += more
    head = found.decode(errors="replace")
    return int(head.split(" ", 2)[1]), head


def test_a_body_of_100_mb_is_refused_by_its_length() -> None:
    with connected() as (_, wire):
        wire.sendall(POST + b"Content-Length: 100000000\r\n\r\n{")
        status, said = answer(wire)
    assert status == 413
    assert "longer than 1048576 bytes" in said


def test_a_body_without_a_length_is_cut_off() -> None:
    chunk, sent = b"10000\r\n" + b" " * 65536 + b"\r\n", 0
    with connected() as (_, wire):
        wire.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            while sent < 100_000_000:
                wire.sendall(chunk)
                sent += len(chunk)
        status, _ = answer(wire)
    assert (status, sent < 100_000_000) == (413, True)


def test_a_slow_body_is_not_waited_for() -> None:
    with connected() as (_, wire):
        wire.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        assert answer(wire)[0] == 408


def test_a_client_may_vanish_at_any_byte() -> None:
    body = json.dumps({"messages": USER, "max_tokens": 20, "stream": True}).encode()
    whole = POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    state = state_of()
    with listening(state) as (_, url):
        address = httpx.URL(url)
        for size in (*range(1, len(whole), 17), len(whole)):
            with socket.create_connection((address.host, address.port)) as wire:
                wire.sendall(whole[:size])
        wait_for(lambda: state.service.open == 0)
        assert httpx.get(f"{url}/health").is_success


@pytest.mark.parametrize(
    "line",
    [
        b"X-Request-Id: a%0d%0aSet-Cookie: b=c",
        b"X-Request-Id: a\tSet-Cookie: b=c",
        b"X-Request-Id: \xc3\xa4",
        b"X-Request-Id: " + b"a" * 1000,
    ],
    ids=["escaped", "tab", "letters", "long"],
)
def test_a_header_is_not_carried_into_the_response(line: bytes) -> None:
    with connected() as (_, wire):
        wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + line)
        wire.sendall(b"\r\n\r\n")
        status, said = answer(wire)
    assert status == 200
    assert "cookie" not in said.lower()
    assert "x-request-id: req_" in said


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/v1/models/../../../etc/passwd",
        "/v1/models/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "//etc/passwd",
        "/v1/models/http://example.org/model",
    ],
)
def test_a_path_leads_to_no_file(path: str) -> None:
    with connected() as (_, wire):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        wire.sendall(request.encode())
        status, said = answer(wire)
    assert status in (400, 404)
    assert "root:" not in said


@pytest.mark.parametrize(
    "content", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 9]
)
def test_what_is_not_http_is_refused(content: bytes) -> None:
    with connected() as (_, wire):
        wire.sendall(content)
        wire.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionError):
            found = wire.recv(65536)
    assert not found or found.startswith(b"HTTP/1.1 4")


def test_a_thousand_at_once_are_answered_or_asked_to_come_back() -> None:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=build_app(one.state))
        body = {"messages": USER, "max_tokens": 2}
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as many:
            asked = [many.post("/v1/chat/completions", json=body) for _ in range(1000)]
            return await asyncio.gather(*asked)

    with client(state_of(max_queue=200)) as one:
        found = asyncio.run(ask())
        assert one.chat(max_tokens=1)["model"] == MODEL
        assert one.state.service.open == 0
    codes = [response.status_code for response in found]
    assert {*codes} == {200, 429}
    assert all(r.headers.get("retry-after") for r in found if r.status_code == 429)


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /(a|b)*a(a|b){2000}/",
        'start: s\ns: s s s | s s | "a" | ',
        "start: /(.{0,1000}x){0,1000}/",
        "start: /[a-z]{1,1000000}/",
    ],
    ids=["states", "ambiguous", "nested", "long"],
)
def test_a_dear_grammar_ends(grammar: str) -> None:
    """By an answer or by an error that names it; another request is served meanwhile and after it."""
    with client(state_of(byte_engine())) as one:
        found = one.chat(grammar=grammar, max_tokens=30)
        assert "choices" in found or found["error"]["type"] == "invalid_request_error"
        assert one.chat(max_tokens=2)["model"] == MODEL
        assert one.state.service.open == 0


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": USER, "ignore_eos": True, "return_origins": True}),
        ("/v1/completions", {"prompt": "w1", "ignore_eos": True, "return_token_ids": True}),
        ("/v1/messages", {"messages": USER}),
        ("/v1/responses", {"input": "w1 w2"}),
    ],
    ids=["chat", "completions", "messages", "responses"],
)
def test_a_reader_that_never_reads_ends_by_the_deadline(path: str, asked: dict[str, Any]) -> None:
    state = state_of(served_engine(max_context=1 << 13, eos_token_ids=[]), deadline=1.0)
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    content = json.dumps({**asked, "stream": True, "temperature": 0.0, limit: 8000}).encode()
    with listening(state) as (_, url):
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as wire:
            wire.sendall(POST.replace(b"/v1/chat/completions", path.encode()))
            wire.sendall(f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
            wait_for(lambda: state.service.open == 1)
            wait_for(lambda: state.service.open == 0)
        assert httpx.get(f"{url}/health").is_success


@pytest.mark.slow  # `tests/cli/test_streams.py` holds the stream that it talks to.
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_for_its_log_ends_no_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "forerun", "serve", "-m", "zoo", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"

    def loaded() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/health").is_success
        return False

    with open("/dev/full", "w") as full:
        process = subprocess.Popen([*command, "--max-context", "256"], stdout=full, stderr=full)
    try:
        wait_for(loaded, 300.0)
        done = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 3})
        assert done.json()["usage"]["completion_tokens"] == 3
    finally:
        process.terminate()
    assert process.wait() == 0
