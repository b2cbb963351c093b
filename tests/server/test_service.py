"""Many requests at once: admission, cancellation, failures, draining, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from forerun.drafters.ngram import NgramDrafter
from forerun.engine.engine import Engine
from forerun.errors import CheckpointError
from forerun.server.errors import ApiError
from forerun.server.service import EngineRequest, EngineService
from tests.helpers.covering import covering
from tests.helpers.served import (
    MODEL,
    USER,
    client,
    events_of,
    listening,
    served_engine,
    state_of,
    wait_for,
)

LONG: dict[str, Any] = {"ignore_eos": True, "temperature": 0.0}
Body = dict[str, Any]
CHAT = "/v1/chat/completions"
# A body of each form of an answer that does not end by itself soon.
FORMS: dict[str, tuple[str, Body]] = {
    "chat": (CHAT, {"messages": USER, **LONG}),
    "several": (CHAT, {"messages": USER, "n": 2, "logprobs": True, **LONG}),
    "completions": ("/v1/completions", {"prompt": "w1 w2", "max_tokens": 100, **LONG}),
    "echo": ("/v1/completions", {"prompt": [5] * 40, "echo": True, "logprobs": 1, "stream": False}),
    "responses": ("/v1/responses", {"input": "w1 w2", "temperature": 0.0}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 100, "temperature": 0.0}),
}


def before_step(engine: Engine, do: Callable[[], object]) -> None:
    """Call `do` before each round."""
    scheduler: Any = engine._scheduler
    step = scheduler.step
    scheduler.step = lambda: (do(), step())


class Held:
    """An engine whose rounds run one by one, when they are let."""

    def __init__(self, **options: Any) -> None:
        self.engine = served_engine(**options)
        self.allowed = threading.Semaphore(0)
        before_step(self.engine, lambda: self.allowed.acquire(timeout=20))

    def let(self, count: int = 10_000) -> None:
        self.allowed.release(count)


def leave(client: httpx.Client, path: str, body: Body) -> None:
    """Read an answer until nothing comes any more."""
    with client.stream("POST", path, json=body, timeout=1.0) as response:
        for _ in response.iter_bytes():
            pass


def is_free(engine: Engine | None) -> bool:
    """True if nothing waits, runs, or is remembered."""
    assert engine is not None
    scheduler = engine._scheduler
    idle = not scheduler.waiting and all(row is None for row in scheduler.rows)
    return idle and not engine._added.running


def test_seeded_answers_are_those_of_requests_alone() -> None:
    """Mixed requests at once, streams among them, through more requests than rows."""
    bodies: list[Body] = [
        {
            "messages": [
                {"role": "user", "content": " ".join(f"w{(i * j) % 20}" for j in range(i))}
            ],
            "seed": i,
            "temperature": (0.0, 0.8, 1.3)[i % 3],
            "max_tokens": 5 + i,
            "stream": i % 2 == 0,
            "speculative": i % 5 != 0,
        }
        for i in range(1, 25)
    ]
    with client() as one:

        def text(body: Body) -> str:
            response = one.post("/v1/chat/completions", json=body)
            if not body["stream"]:
                return str(response.json()["choices"][0]["message"]["content"])
            deltas = [event["choices"][0]["delta"] for event in events_of(response.text)]
            return "".join(delta.get("content", "") for delta in deltas)

        with ThreadPoolExecutor(12) as pool:
            together = list(pool.map(text, bodies))
    engine = served_engine()
    for body, found in zip(bodies, together, strict=True):
        names = ("seed", "temperature", "max_tokens")
        alone = engine.chat(body["messages"], **{name: body[name] for name in names})
        assert found == alone.text
    wait_for(lambda: is_free(one.state.service.engine))
    assert one.state.service.open == 0


def test_openais_own_client_is_served() -> None:
    import openai

    state = state_of()
    with listening(state) as (_, url), openai.OpenAI(base_url=f"{url}/v1", api_key="x") as own:
        assert [model.id for model in own.models.list()] == [MODEL]
        asked: Any = {"model": MODEL, "messages": USER, "seed": 3, "max_tokens": 9}
        whole = own.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
        parts = list(
            own.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == (
            whole.choices[0].message.content
        )
        assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
        text = own.completions.create(model=MODEL, prompt=[5, 6], max_tokens=3, echo=True)
        assert text.choices[0].text.startswith("w1 w2")
        with pytest.raises(openai.BadRequestError, match="context"):
            own.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "w1 " * 200}]
            )
        with pytest.raises(openai.NotFoundError):
            own.chat.completions.create(model="other", messages=asked["messages"])


@pytest.mark.parametrize(("form", "stream", "waits"), covering(FORMS, [True, False], [True, False]))
def test_a_client_that_goes_frees_its_row(form: str, stream: bool, waits: bool) -> None:
    """A running request ends within a round, and one that waits for a row ends too."""
    held = Held(rows=1)
    state = state_of(held.engine)
    path, body = FORMS[form]
    body = {"stream": stream, **body}
    with listening(state) as (_, url), httpx.Client(base_url=url) as http:
        first = threading.Thread(
            target=lambda: http.post(
                "/v1/chat/completions", json={"messages": USER, "max_tokens": 1}, timeout=60
            )
        )
        if waits:
            first.start()
            wait_for(lambda: state.service.open == 1)
        with pytest.raises(httpx.TimeoutException), httpx.Client(base_url=url) as other:
            leave(other, path, body)
        # The request is known to be gone before the round that runs has ended.
        wait_for(lambda: state.service.open == int(waits))
        held.let(1)
        if waits:
            first.join()
        wait_for(lambda: is_free(held.engine) and state.service.open == 0)
        held.let()
        kept = http.post(CHAT, json={"messages": USER, "max_tokens": 1}).json()
        # Another form's text begins otherwise.
        if waits or path == CHAT:
            assert kept["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_full_queue_asks_to_come_back() -> None:
    held = Held(rows=1)
    state = state_of(held.engine, max_queue=1)
    with client(state) as one, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(one.chat, max_tokens=1) for _ in range(2)]
        wait_for(lambda: state.service.open == 2)
        full = one.post("/v1/chat/completions", json={"messages": USER})
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "queue_full"
        assert int(full.headers["Retry-After"]) >= 1
        held.let()
        assert all(done.result()["object"] == "chat.completion" for done in waiting)
        wait_for(lambda: state.service.open == 0)
        never = one.post("/v1/chat/completions", json={"messages": USER, "n": 3})
        assert never.status_code == 400
        assert one.chat(max_tokens=1)["object"] == "chat.completion"


def test_a_key_has_its_share() -> None:
    held = Held(rows=2)
    state = state_of(held.engine, max_per_key=1)
    with client(state) as one, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.chat, max_tokens=1)
        wait_for(lambda: state.service.open == 1)
        assert one.chat()["error"]["code"] == "rate_limit_exceeded"
        held.let()
        waiting.result()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_deadline_ends_a_request(stream: bool) -> None:
    held = Held(rows=1)
    state = state_of(held.engine, deadline=0.3)
    with client(state) as one:
        response = one.post("/v1/chat/completions", json={"messages": USER, "stream": stream})
        held.let()
        error = json.loads(response.text.removeprefix("data: "))["error"]
        assert error["code"] == "timeout"
        assert response.status_code == (200 if stream else 504)
        wait_for(lambda: is_free(held.engine))


def test_a_request_that_fails_ends_alone() -> None:
    state = state_of()

    async def ask(requests: list[EngineRequest]) -> list[str]:
        texts = [""] * len(requests)
        job = await state.service.submit(requests)
        try:
            async for update in job:
                texts[update.index] += "".join(event.text for event in update.events)
        finally:
            state.service.end(job)
        return texts

    def fails(*_: Any) -> None:
        raise RuntimeError("the secret of another request")

    async def both() -> list[Any]:
        good = EngineRequest([5, 6], {"temperature": 0.0, "max_tokens": 9})
        bad = EngineRequest([5, 6], {"mask": fails, "max_tokens": 9})
        refused = EngineRequest([5, 6], {"max_tokens": 0})
        asked = ([good], [bad], [good, refused])
        return await asyncio.gather(*map(ask, asked), return_exceptions=True)

    state.service.start()
    wait_for(lambda: state.service.engine is not None)
    first, second, third = asyncio.run(both())
    assert first == [served_engine().generate([5, 6], temperature=0.0, max_tokens=9).text]
    assert isinstance(second, ApiError)
    assert second.status == 500
    assert "secret" not in second.message
    assert isinstance(third, ApiError)
    assert third.status == 400
    wait_for(lambda: is_free(state.service.engine))
    assert state.service.open == 0
    state.service.close()


def test_jobs_of_two_event_loops_have_their_updates() -> None:
    held, counts = Held(rows=2), list[int]()
    service = state_of(held.engine).service

    async def ask() -> int:
        job = await service.submit([EngineRequest([5, 6], {"max_tokens": 9, **LONG})])
        return sum([len(update.events) async for update in job])

    def run() -> None:
        counts.append(asyncio.run(ask()))

    service.start()
    wait_for(lambda: service.engine is not None)
    for _ in range(2):
        threading.Thread(target=run, daemon=True).start()
    wait_for(lambda: service.open == 2)
    held.let()
    wait_for(lambda: counts == [9, 9], seconds=30)
    service.close()


def test_a_round_that_fails_ends_all_and_the_server_goes_on() -> None:
    engine, fail = served_engine(), [True]

    def raise_first() -> None:
        if fail:
            raise RuntimeError("of this round")

    before_step(engine, raise_first)
    with client(state_of(engine)) as one:
        assert one.chat(max_tokens=3)["error"]["type"] == "server_error"
        fail.clear()
        assert one.chat(max_tokens=3)["object"] == "chat.completion"


def test_health_tells_of_loading_and_of_failing_to() -> None:
    from forerun.server.app import build_app
    from forerun.server.state import ServerState
    from tests.helpers.served import Client

    go = threading.Event()

    def load() -> Engine:
        go.wait()
        raise CheckpointError("there is no such model.")

    service = EngineService(load)
    with Client(build_app(ServerState(service, [MODEL]))) as one:
        assert one.get("/health").status_code == 503
        loading = one.post("/v1/chat/completions", json={"messages": USER})
        assert loading.status_code == 503
        assert "Retry-After" in loading.headers
        go.set()
        wait_for(lambda: service.failure is not None)
        assert isinstance(service.failure, CheckpointError)


@pytest.mark.parametrize("in_time", [True, False], ids=["finished", "cut"])
def test_a_server_drains(in_time: bool) -> None:
    """What runs is finished, or ends with an error; what is new is refused."""
    held = Held(rows=1)
    state = state_of(held.engine)
    body = {"messages": USER, "stream": True, "max_tokens": 20, **LONG}
    with (
        listening(state, drain=60.0 if in_time else 0.0) as (server, url),
        httpx.Client(base_url=url, timeout=60) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        held.let(2)
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.should_exit = True
        wait_for(lambda: state.service.draining)
        if in_time:
            assert httpx.get(f"{url}/health").status_code == 503
            held.let()
        else:
            # The end of the service waits for the round that runs.
            wait_for(lambda: not state.service._inbox.empty())
            held.let(1)
        rest = [line for line in lines if line]
    if in_time:
        assert rest[-1] == "data: [DONE]"
    else:
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["type"] == "unavailable_error"


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine = served_engine(rows=2, max_context=4096 * 2)
    long = engine.add([5, 6] * 2048, max_tokens=4)
    engine.step()
    short = engine.add([5, 6, 7], max_tokens=4)
    rounds = 0
    while not engine.completion(short).token_ids:
        engine.step()
        rounds += 1
    assert rounds <= 3
    assert not engine.completion(long).token_ids


def test_a_title_does_not_take_the_row_of_the_conversation() -> None:
    """Two rows, an old text in one: a short request that shares little goes there."""
    engine = served_engine(rows=2, max_context=1024)
    old, talk = [4] + [7] * 200, [4, 5] + [6, 9] * 100
    engine.generate([old, talk], max_tokens=1)
    engine.generate(talk, max_tokens=1)
    engine.generate([4, 5, *[8] * 20], max_tokens=1)
    again = engine.generate([*talk, 11, 12], max_tokens=1)
    assert again.stats.num_cached_tokens >= len(talk) - 1


def test_tokens_leave_before_the_next_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that waits for the client to have the last round's tokens gets them."""
    prompt, received, drafts, late = [5, 6], [0], [0], list[int]()
    propose = NgramDrafter.propose

    def wait(drafter: NgramDrafter, requests: Any, *others: Any) -> Any:
        emitted = len(requests[0]) - len(prompt)
        drafts[0] += 1
        try:
            wait_for(lambda: received[0] == emitted or late, seconds=10)
        except AssertionError:
            late.append(emitted)
        return propose(drafter, requests, *others)

    # As a draft model: tokens need not leave before a lookup.
    monkeypatch.setattr(NgramDrafter, "looks_up", False)
    monkeypatch.setattr(NgramDrafter, "propose", wait)
    service = state_of().service

    async def ask() -> None:
        job = await service.submit([EngineRequest(prompt, {"max_tokens": 30, **LONG})])
        async for update in job:
            received[0] += len(update.events)
        service.end(job)

    service.start()
    wait_for(lambda: service.engine is not None)
    asyncio.run(ask())
    service.close()
    assert received == [30]
    assert drafts[0] > 2
    assert not late


def test_slow_readers_hold_nobody_up() -> None:
    state = state_of()
    body = {"messages": USER, "stream": True, "max_tokens": 60, **LONG}
    with listening(state) as (_, url), httpx.Client(base_url=url, timeout=60) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as slow:
            other = httpx.post(
                f"{url}/v1/chat/completions", json={"messages": USER, "max_tokens": 2}
            )
            assert other.status_code == 200
            time.sleep(0.1)
            text = "".join(slow.iter_text())
        assert events_of(text)[-1]["choices"][0]["finish_reason"] == "length"


def test_metrics_count_the_first_token_of_each_client_that_goes() -> None:
    state = state_of()
    body = {"messages": USER, "stream": True, "max_tokens": 90, **LONG}
    with listening(state) as (_, url), httpx.Client(base_url=url, timeout=60) as http:
        for _ in range(12):
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                while "content" not in next(lines):
                    pass
            wait_for(lambda: state.service.open == 0)
        assert "forerun:time_to_first_token_seconds_count 12.0" in http.get("/metrics").text


def test_metrics_count_what_went_out() -> None:
    with client() as one:
        for _ in range(2):
            one.chat(max_tokens=30, **LONG)
        text = one.get("/metrics").text
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(found["forerun:generation_tokens_total"]) == 60
    assert float(found['forerun:request_success_total{finished_reason="length"}']) == 2
    assert float(found["forerun:time_to_first_token_seconds_count"]) == 2
    assert float(found["forerun:inter_token_latency_seconds_count"]) == 58
    drafted = float(found["forerun:spec_decode_num_draft_tokens_total"])
    assert drafted >= float(found["forerun:spec_decode_num_accepted_tokens_total"]) > 0
    assert float(found["forerun:num_requests_running"]) == 0
