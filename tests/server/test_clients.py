"""Clients of others, unmodified, over HTTP: their answers are those of plain requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.served import MODEL, byte_engine, byte_tokenizer, listening, state_of
from tests.matrix import DRAFTERS
from tests.server.test_tools import TOOLS, WEATHER, template_of

TEXT = "Is it warm?"
# What clients warn about is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")
ASKED: Any = [{"role": "user", "content": TEXT}]
LIMITS: dict[str, Any] = {"seed": 5, "temperature": 0.7, "max_tokens": 20}
TEMPLATE = template_of("hermes")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening(state_of(byte_engine(DRAFTERS[0], TEMPLATE, 1024))) as (_, address):
        yield f"{address}/v1"


def asked(url: str, **body: Any) -> Any:
    """The message of the same question by plain HTTP."""
    found = httpx.post(f"{url}/chat/completions", json={"messages": ASKED, **LIMITS, **body})
    return found.json()["choices"][0]["message"]


def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    ask: Any = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "any", "messages": ASKED}
    text = asked(url)["content"]
    assert litellm.completion(**ask, **LIMITS).choices[0].message.content == text
    chunks = litellm.completion(**ask, **LIMITS, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    limits = LIMITS | {"max_tokens": 400}
    called = litellm.completion(**ask, **limits, tools=TOOLS, tool_choice="required")
    functions = [call.function for call in called.choices[0].message.tool_calls]
    plain = asked(url, max_tokens=400, tools=TOOLS, tool_choice="required")["tool_calls"]
    assert [one.arguments for one in functions] == [one["function"]["arguments"] for one in plain]


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")

    def chat(**more: Any) -> Any:
        return langchain.ChatOpenAI(model=MODEL, base_url=url, api_key="any", **LIMITS | more)

    text = asked(url)["content"]
    assert chat().invoke(TEXT).content == text
    assert "".join(chunk.content for chunk in chat().stream(TEXT)) == text
    schema = {"title": "weather", "description": "Weather.", **WEATHER}
    for method in ("json_schema", "function_calling"):
        ask = chat(max_tokens=400).with_structured_output(schema, method=method)
        found: Any = ask.invoke(TEXT)
        assert set(found) == {"city", "unit", "days"}


def test_llm(url: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    model = {"model_id": "served", "model_name": MODEL, "api_base": url}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    options = [one for name, value in LIMITS.items() for one in ("-o", name, str(value))]
    command = [sys.executable, "-m", "llm", "-m", "served", "--key", "any", *options, TEXT]
    home = {**os.environ, "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
    for more in ([], ["--no-stream"]):
        done = subprocess.run([*command, *more], env=home, capture_output=True, check=False)
        assert not done.returncode, done.stderr.decode()
        assert done.stdout.decode().rstrip("\n") == asked(url)["content"].rstrip("\n")


def test_lm_eval(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figure of a local task is the one in this process."""
    lm_eval = pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows: list[dict[str, Any]] = [
        {
            "question": f"{number} and",
            "choices": [f" {number + 1}", " no", " a b"],
            "gold": number % 3,
        }
        for number in range(12)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = byte_tokenizer(TEMPLATE)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    task = {
        "task": "local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{gold}}",
        "doc_to_choice": "{{choices}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": MODEL,
            "base_url": f"{url}/completions",
            "tokenizer": str(tmp_path / "tokenizer"),
            "tokenizer_backend": "huggingface",
        },
        tasks=[task],
        bootstrap_iters=0,
    )
    engine = byte_engine(None, TEMPLATE, 1024)

    def likelihood(row: dict[str, Any], choice: str) -> float:
        ids = tokenizer.encode(row["question"], add_special_tokens=False)
        own = tokenizer.encode(choice, add_special_tokens=False)
        number = engine.add([*ids, *own], {"max_tokens": 1}, prompt_logprobs=0)
        while engine.has_work:
            engine.step()
        scored = engine.completion(number).prompt_logprobs or ()
        return sum(one.logprob for one in scored[-len(own) :])

    right = 0
    for row in rows:
        likelihoods = [likelihood(row, choice) for choice in row["choices"]]
        right += likelihoods.index(max(likelihoods)) == row["gold"]
    assert found["results"]["local"]["acc,none"] == right / len(rows)
