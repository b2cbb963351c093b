"""Times of streams count the tokens that a server reports, whatever chunks they come in."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks.serve_speed import Times, of_server, row
from tests.helpers.served import listening, served_engine, state_of


def test_time_per_token_divides_by_the_reported_tokens() -> None:
    times = Times()
    # Four chunks with text of nine tokens, and as many tokens each in a chunk of its own.
    times.add(0.0, [(1.0, 1), (2.0, 1), (3.0, 1), (5.0, 1)], 9)
    times.add(0.0, [(1.0 + place / 2, 1) for place in range(9)])
    assert times.tokens == 18
    assert times.each == [0.5, 0.5]


def test_a_stream_without_text_has_tokens_but_no_times() -> None:
    times = Times()
    times.add(1.0, [], 3)
    times.add(1.0, [(2.0, 0)], 2)
    assert (times.tokens, times.first, times.between, times.each) == (5, [], [], [])


def test_all_tokens_of_a_server_are_counted() -> None:
    limits = {"max_tokens": 9, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    with listening(state_of(served_engine())) as (_, url):
        times = of_server(url, limits, os.getpid())(["w1", "w2 w3"])
    assert times.tokens == 18
    assert len(times.first) == len(times.each) == 2
    assert len(times.between) == 16


def test_a_refusal_is_reported_in_one_line() -> None:
    with listening(state_of(served_engine())) as (_, url), pytest.raises(SystemExit) as failure:
        of_server(url, {"max_tokens": -1}, os.getpid())(["w1"])
    text = str(failure.value)
    assert text.startswith(f"{url} brought no token; it answered: HTTP/1.1 400 Bad Request {{")
    assert "max_tokens" in text
    assert "\n" not in text


def test_an_error_in_a_stream_is_reported() -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"error": {"message": "out of memory"}}\n\n')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        server.timeout = 10.0
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(SystemExit, match=r"failed in a stream: .*out of memory"):
            of_server(url, {"max_tokens": 9})(["w1"])
        thread.join()


def test_a_turn_of_one_token_a_stream_has_a_row() -> None:
    times = Times(seconds=2.0)
    times.add(1.0, [(2.0, 1)])
    assert row(1, "plain", [times], [])[4:8] == ["1000.0", "1000.0", "–", "–"]
