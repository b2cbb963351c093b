"""Chat and completions in OpenAI's form: to the byte, and equal to the engine's own answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from forerun.core import Hints
from forerun.drafters.translation import SpelledVocabulary
from tests.helpers.served import (
    MODEL,
    USER,
    Client,
    byte_engine,
    client,
    served_engine,
    state_of,
)

SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "seed": 7}


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    with client() as made:
        yield made


def solo(seed: int = 7, **params: Any) -> Any:
    return served_engine().chat(USER, temperature=1.0, max_tokens=12, seed=seed, **params)


def test_an_answer_is_the_engines_own(served: Client) -> None:
    found, alone = served.chat(**SAMPLED), solo()
    assert found["object"] == "chat.completion"
    assert found["id"].startswith("chatcmpl-")
    assert found["model"] == MODEL
    (choice,) = found["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": alone.text, "refusal": None}
    assert choice["finish_reason"] == str(alone.finish_reason)
    usage = found["usage"]
    assert usage["prompt_tokens"] == len(alone.prompt_ids)
    assert usage["completion_tokens"] == len(alone.token_ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_is_that_of_openai(served: Client) -> None:
    chunks = served.chunks(**SAMPLED)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == solo().text
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [str(solo().finish_reason)]
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_reports_its_usage_if_asked(served: Client) -> None:
    chunks = served.chunks(**SAMPLED, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(solo().token_ids)
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_spec_tokens"] == 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_reports_its_usage_so_far_if_asked(served: Client, path: str) -> None:
    """As vLLM does, and as GuideLLM asks."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**SAMPLED, "return_token_ids": True, "stream_options": options}
    chunks = served.chunks(path, **({"prompt": "w1 w2"} if "chat" not in path else {}), **body)
    count = 0
    for chunk in chunks:
        ids = [token for choice in chunk["choices"] for token in choice.get("token_ids", ())]
        count += len(ids)
        # A chunk may say who speaks before its round's tokens come.
        assert chunk["usage"]["completion_tokens"] == count or not ids
    assert count == chunks[-1]["usage"]["completion_tokens"] > 1


def test_n_answers_have_seeds_that_follow_each_other(served: Client) -> None:
    found = served.chat(**SAMPLED, n=3)
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert texts == [solo(7 + index).text for index in range(3)]
    assert found["usage"]["prompt_tokens"] == len(solo().prompt_ids)
    chunks = served.chunks(**SAMPLED, n=3)
    streamed = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts


def test_log_probabilities_are_the_engines(served: Client) -> None:
    found = served.chat(**SAMPLED, logprobs=True, top_logprobs=2)
    entries = found["choices"][0]["logprobs"]["content"]
    alone = solo(logprobs=2)
    assert [one["logprob"] for one in entries] == [one.logprob for one in alone.logprobs]
    assert [len(one["top_logprobs"]) for one in entries] == [2] * len(entries)
    for one in entries:
        assert bytes(one["bytes"]).decode() == one["token"]
    streamed = [
        entry
        for chunk in served.chunks(**SAMPLED, logprobs=True, top_logprobs=2)
        for entry in (chunk["choices"][0]["logprobs"] or {"content": ()})["content"]
    ]
    assert streamed == entries


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 1.5),
        ("frequency_penalty", 0.7),
        ("repetition_penalty", 1.3),
        ("top_k", 3),
        ("top_p", 0.6),
        ("min_p", 0.2),
        ("stop", "w3"),
        # The limit on the number of stop strings does not apply to the length of one.
        ("stop", "x" * 65),
        ("stop", ["w3"]),
        ("stop_token_ids", [9]),
        ("ignore_eos", True),
    ],
)
def test_sampling_fields_reach_the_engine(served: Client, field: str, value: Any) -> None:
    found = served.chat(**SAMPLED, **{field: value})
    assert found["choices"][0]["message"]["content"] == solo(**{field: value}).text


def test_a_bias_is_by_token_id(served: Client) -> None:
    found = served.chat(**SAMPLED, logit_bias={"9": 100})
    assert found["choices"][0]["message"]["content"] == solo(logit_bias={9: 100.0}).text
    assert set(found["choices"][0]["message"]["content"].split()) == {"w5"}


def test_variables_reach_the_template(served: Client) -> None:
    loud = served.chat(**SAMPLED, chat_template_kwargs={"loud": True})
    alone = served_engine().chat(
        USER, temperature=1.0, max_tokens=12, seed=7, template_vars={"loud": True}
    )
    assert loud["usage"]["prompt_tokens"] == len(alone.prompt_ids) == len(solo().prompt_ids) + 1
    assert loud["choices"][0]["message"]["content"] == alone.text


def test_speculation_is_a_matter_of_each_request(served: Client) -> None:
    greedy = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
    usual, without = served.chat(**greedy), served.chat(**greedy, speculative=False)
    short = served.chat(**greedy, speculative={"method": "ngram", "num_speculative_tokens": 1})
    texts = [one["choices"][0]["message"]["content"] for one in (usual, without, short)]
    assert len(set(texts)) == 1
    assert usual["timings"]["draft_n"] > 0
    assert without["timings"]["draft_n"] == 0
    assert "metrics" not in without
    steps = short["metrics"]["speculative_decoding"]
    assert steps["num_draft_tokens"] == steps["num_spec_steps"]
    figures = usual["metrics"]["speculative_decoding"]
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"]
    weighted = sum(n * steps for n, steps in enumerate(figures["acceptance_histogram"]))
    assert weighted == figures["num_accepted_draft_tokens"] == usual["timings"]["draft_n_accepted"]


def test_paced_streams_bring_single_tokens(served: Client) -> None:
    body: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
    body |= {"return_token_ids": True, "logprobs": True}
    with client(replace(state_of(), paced=True)) as one:
        paced, usual, whole = one.chunks(**body), served.chunks(**body), one.chat(**body)

    def tokens(chunks: list[dict[str, Any]]) -> list[list[int]]:
        choices = [chunk["choices"][0] for chunk in chunks]
        return [choice["token_ids"] for choice in choices if "token_ids" in choice]

    assert {len(ids) for ids in tokens(paced)} == {1}
    assert max(len(ids) for ids in tokens(usual)) > 1
    found = [[one for ids in tokens(chunks) for one in ids] for chunks in (paced, usual)]
    assert found == [whole["choices"][0]["token_ids"]] * 2
    assert paced[-1]["choices"][0]["finish_reason"] == "length"


def test_origins_are_told_on_request(served: Client) -> None:
    found = served.chat(temperature=0.0, max_tokens=30, return_origins=True, return_token_ids=True)
    alone = served_engine().chat(USER, temperature=0.0, max_tokens=30)
    (choice,) = found["choices"]
    assert choice["token_origins"] == [str(one) for one in alone.origins]
    assert choice["token_ids"] == list(alone.token_ids)


def test_cached_tokens_are_counted() -> None:
    with client() as one:
        first, second = one.chat(**SAMPLED), one.chat(**SAMPLED)
    told = [got["usage"]["prompt_tokens_details"]["cached_tokens"] for got in (first, second)]
    assert told == [0, first["usage"]["prompt_tokens"] - 1]
    assert first["choices"] == second["choices"]


def test_a_prediction_is_counted_as_the_clients() -> None:
    from forerun.drafters.prediction import PredictionDrafter
    from forerun.engine.config import SpeculativeConfig
    from forerun.engine.engine import Engine
    from forerun.testing import ToyModel
    from tests.helpers.toy_chat import END, MARKS, WORDS, toy_tokenizer

    alone = served_engine().chat(USER, temperature=0.0, max_tokens=20, ignore_eos=True)
    engine = Engine(
        ToyModel(len(MARKS) + len(WORDS)),
        PredictionDrafter(),
        SpeculativeConfig(method="prediction", num_speculative_tokens=4, policy="fixed"),
        tokenizer=toy_tokenizer(),
        eos_token_ids=[END],
        max_context=128,
    )
    prediction = {"type": "content", "content": alone.text}
    with client(state_of(engine)) as one:
        found = one.chat(temperature=0.0, max_tokens=20, ignore_eos=True, prediction=prediction)
    details = found["usage"]["completion_tokens_details"]
    assert found["choices"][0]["message"]["content"] == alone.text
    assert details["accepted_prediction_tokens"] > 0
    told = details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
    assert told == len(engine._intake.prompts.read_prediction(alone.text))


def test_prompts_of_completions_come_in_four_forms(served: Client) -> None:
    ids = [5, 6, 5, 6]
    body = {"temperature": 1.0, "max_tokens": 8, "seed": 3}
    texts = []
    for prompt in ("w1 w2 w1 w2", ids, ["w1 w2 w1 w2"] * 2, [ids, ids]):
        found = served.post("/v1/completions", json={"prompt": prompt, **body}).json()
        assert found["object"] == "text_completion"
        texts += [choice["text"] for choice in found["choices"]]
    assert texts == [served_engine().generate(ids, temperature=1.0, max_tokens=8, seed=3).text] * 6
    streamed = served.chunks("/v1/completions", prompt=ids, **body)
    assert "".join(one["choices"][0]["text"] for one in streamed) == texts[0]


def test_an_echoed_prompt_has_its_log_probabilities(served: Client) -> None:
    ids = [5, 6, 7, 8]
    body = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    # A second time, when the prompt is in the cache.
    for _ in range(2):
        found = served.post("/v1/completions", json=body).json()
        scored = found["choices"][0]["logprobs"]
        assert scored["tokens"][:4] == ["w1", "w2", "w3", "w4"]
        assert scored["token_logprobs"][0] is scored["top_logprobs"][0] is None
        for place in range(1, 5):
            told: Any = served_engine().generate(
                ids[:place], temperature=0.0, max_tokens=1, logprobs=24
            )
            by_id = dict(told.logprobs[0].top)
            token = ids[place] if place < 4 else told.token_ids[0]
            assert scored["token_logprobs"][place] == pytest.approx(by_id[token], abs=1e-5)
            best = max(scored["top_logprobs"][place].values())
            assert best == pytest.approx(max(by_id.values()), abs=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_tokens_are_read_outside_the_event_loop(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop = list[bool]()

    def spelled(tokenizer: Any) -> SpelledVocabulary:
        in_loop.append(asyncio._get_running_loop() is not None)
        return SpelledVocabulary(tokenizer)

    monkeypatch.setattr("forerun.server.state.SpelledVocabulary", spelled)
    bodies: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/chat/completions", {"messages": USER, "logprobs": True}),
        ("/v1/completions", {"prompt": "ab", "logprobs": 1}),
    )
    for path, body in bodies:
        with client(state_of(byte_engine())) as one:
            assert one.post(path, json={**body, "max_tokens": 2, "stream": stream}).is_success
    assert in_loop == [False, False]


def test_an_echo_may_generate_nothing(served: Client) -> None:
    body = {"prompt": "w1 w2 w3", "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = served.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == "w1 w2 w3"
    assert choice["logprobs"]["tokens"] == ["w1", "w2", "w3"]


def test_a_namespace_shares_no_prefix() -> None:
    engine = served_engine(rows=1)
    prompt = list(range(4, 20))
    for namespace, cached in (("a", 0), ("a", 15), ("b", 0), ("b", 15)):
        done = engine.generate(prompt, max_tokens=1, hints=Hints(namespace=namespace))
        assert done.stats.num_cached_tokens == cached
