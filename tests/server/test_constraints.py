"""JSON, schemas and grammars: always met, by the same text as plain decoding with the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.engine.requests import Completion
from forerun.server.constraints import GrammarMask, GrammarVocabulary
from tests.helpers.chat_templates import CHATML
from tests.helpers.served import Client, byte_engine, byte_tokenizer, client, state_of
from tests.matrix import DRAFTERS, SOME_DRAFTERS, DrafterCase

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Roma", "Ulm"]},
        "days": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
BY_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
GRAMMAR = 'start: ("ab" | "ac" | /[xyz]{2,9}/)* "."'
GBNF = 'root ::= ("ab" | "ac" | [xyz]+)* "."'
THINKS = CHATML + "{# </think> #}"
OPENS = (
    CHATML.replace("<|im_start|>assistant\\n' }}{% endif %}", "<think>' }}{% endif %}")
    + "{# </think> #}"
)


def both(one: Client, **body: Any) -> dict[str, Any]:
    """The choice of an answer, which is that of plain decoding, and the parts of its stream joined."""
    asked = {"seed": 3, "max_tokens": 200, **body}
    choice = one.chat(**asked)["choices"][0]
    assert one.chat(**asked, speculative=False)["choices"][0] == choice
    deltas = [chunk["choices"][0]["delta"] for chunk in one.chunks(**asked)]
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
    return choice


@pytest.mark.parametrize("case", SOME_DRAFTERS)
def test_an_answer_meets_its_grammar_with_any_drafter(case: DrafterCase) -> None:
    with client(state_of(byte_engine(case))) as one:
        choice = both(one, **BY_SCHEMA)
        assert choice["finish_reason"] == "stop"
        found = json.loads(choice["message"]["content"])
        assert {*found} == {"city", "days"}
        assert found["city"] in SCHEMA["properties"]["city"]["enum"]  # type: ignore[index]
        text = both(one, grammar=GRAMMAR, seed=4)["message"]["content"]
        assert text.endswith(".")
        assert {*text} <= {*"abcxyz."}


def rounds_of(engine: Engine, **params: Any) -> tuple[Completion, list[TimedRound]]:
    """A request's answer by SCHEMA, and its rounds."""
    prompt, rounds = list(b"w1 w2"), list[TimedRound]()
    matcher = GrammarVocabulary(engine).compiled([{"json_schema": SCHEMA}])
    engine.watch_rounds(rounds.append)
    speculative = params.pop("speculative", True)
    own = {"seed": 3, "max_tokens": 200, "mask": GrammarMask(matcher, len(prompt)), **params}
    number = engine.add(prompt, own, speculative=speculative)
    while engine.has_work:
        engine.step()
    return engine.completion(number), rounds


@pytest.mark.parametrize("stop", [(), ('ays"',)], ids=["", "stop"])
@pytest.mark.parametrize("case", SOME_DRAFTERS)
def test_tokens_that_a_grammar_forces_are_drafted(case: DrafterCase, stop: tuple[str, ...]) -> None:
    """With any drafter, and in plain rounds; the text is that of plain decoding."""
    engine = byte_engine(case)
    done, rounds = rounds_of(engine, stop=stop)
    plain, _ = rounds_of(engine, stop=stop, speculative=False)
    assert (done.token_ids, done.text) == (plain.token_ids, plain.text)
    fresh = GrammarVocabulary(engine).compiled([{"json_schema": SCHEMA}])
    prompt, committed, forced_rounds = list(done.prompt_ids), list(done.prompt_ids), 0
    for number, past in enumerate(rounds):
        [draft], [verdict] = past.drafts, past.verdicts
        forced = GrammarMask(fresh, len(prompt)).forced(committed)
        # The last rounds have no room for all; a drawn draft may end before all of them.
        if number < len(rounds) - 1 and draft.probs is None and draft.hidden is None:
            assert draft.holds(forced)
            assert verdict.num_accepted >= len(forced)
            forced_rounds += bool(forced)
        committed += verdict.token_ids
    assert tuple(committed[len(prompt) :]) == done.token_ids
    given = [
        past.drafts[0].probs is not None or past.drafts[0].hidden is not None for past in rounds
    ]
    assert forced_rounds or any(given)


def test_forced_tokens_save_rounds_even_beside_a_drafter_without_drafts() -> None:
    def count(forced: bool, method: str, **params: Any) -> int:
        with pytest.MonkeyPatch.context() as patch:
            if not forced:
                patch.delattr(GrammarMask, "forced")
            [case] = [case for case in DRAFTERS if case.name == method]
            done, rounds = rounds_of(byte_engine(case), **params)
        assert done.finish_reason == "stop"
        return len(rounds)

    # Without a prediction method `prediction` has no draft: all rounds are plain.
    assert count(True, "prediction") < count(False, "prediction")
    assert count(True, "ngram") <= count(False, "ngram")
    plain = count(True, "ngram", speculative=False)
    assert plain == count(False, "ngram", speculative=False) > count(True, "ngram")


def test_tokens_that_a_grammar_forces_are_not_the_clients_prediction() -> None:
    [case] = [case for case in DRAFTERS if case.name == "prediction"]
    case = replace(case, config={**case.config, "method": "prediction"})
    prediction = {"type": "content", "content": "~~~~"}
    with client(state_of(byte_engine(case))) as one:
        found = one.chat(temperature=0.0, prediction=prediction, **BY_SCHEMA)
    assert found["timings"]["draft_n_accepted"] > 0
    assert found["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_a_mask_whose_forced_tokens_fail_costs_its_request_nothing() -> None:
    class Broken(GrammarMask):
        def forced(self, committed: Sequence[int]) -> list[int]:
            raise ValueError(len(committed))

    engine = byte_engine(DRAFTERS[0])
    matcher = GrammarVocabulary(engine).compiled([{"json_schema": SCHEMA}])
    done, _ = rounds_of(engine, mask=Broken(matcher, 5))
    assert done.text == rounds_of(engine)[0].text


@pytest.mark.parametrize("template", [THINKS, OPENS], ids=["may think", "thinks"])
def test_a_grammar_holds_after_the_thought(template: str) -> None:
    """The mark that ends a thought may lie inside a draft; the grammar holds right behind it."""
    ends = thoughts = 0
    with client(state_of(byte_engine(DRAFTERS[0], template))) as one:
        mark = byte_tokenizer(template).convert_tokens_to_ids("</think>")
        for seed in range(4):
            bias = {"logit_bias": {str(mark): 6.0}}
            message = both(one, grammar=GRAMMAR, seed=seed, **bias)["message"]
            assert {*message["content"]} <= {*"abcxyz."}
            ends += message["content"].endswith(".")
            thoughts += "reasoning_content" in message
    assert ends
    assert thoughts or template == THINKS


def test_a_stop_string_cuts_what_a_grammar_writes() -> None:
    with client(state_of(byte_engine(DRAFTERS[0]))) as one:
        whole = both(one, **BY_SCHEMA)["message"]["content"]
        cut = both(one, **BY_SCHEMA, stop='"days')["message"]["content"]
    assert whole.startswith(cut)
    assert cut == whole.partition('"days')[0]


def test_any_object_is_json_and_a_grammar_of_llama_cpp_is_read() -> None:
    with client(state_of(byte_engine())) as one:
        text = both(one, grammar=GBNF)["message"]["content"]
        assert {*text} <= {*"abcxyz."}
        text = both(one, response_format={"type": "json_object"}, max_tokens=400)["message"]
        assert text["content"].startswith("{")
        both(one, response_format={"type": "text"}, max_tokens=5)
        done = one.post("/v1/completions", json={"prompt": "a", "grammar": GRAMMAR, "seed": 1})
        assert {*done.json()["choices"][0]["text"]} <= {*"abcxyz."}


def test_a_mask_is_that_of_a_fresh_matcher() -> None:
    """However the hook is asked about: forwards, backwards, about drafts that are discarded."""
    engine = byte_engine()
    matcher = GrammarVocabulary(engine).compiled([{"json_schema": SCHEMA}])
    draw, hook, text = random.Random(1), GrammarMask(matcher, 2), list[int]()
    for _ in range(150):
        found = hook([7, 7, *text[:3]], text[3:])
        assert torch.equal(found, GrammarMask(matcher, 2)([7, 7, *text], ()))
        allowed = found.nonzero().flatten().tolist()
        ended = allowed == [*engine.eos_token_ids]
        if ended or draw.random() < 0.3:
            del text[draw.randrange(len(text) + 1) :]
        else:
            text.append(draw.choice(allowed))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"grammar": "start: missing"}, None),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "start: " + "(" * 5000}, None),
        ({"grammar": "\n".join(f"a{n}: a{n + 1}" for n in range(5000))}, "grammar"),
        ({"grammar": 'start: "a"', **BY_SCHEMA}, "grammar"),
        ({"grammar": 'start: "a"', "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ],
    ids=range(8),
)
def test_a_grammar_that_cannot_be_served_is_refused(body: Any, param: str | None) -> None:
    with client(state_of(byte_engine())) as one:
        error = one.chat(**body)["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert one.state.service.open == 0


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        {"type": "nothing"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(3000)}},
        {"type": "integer", "multipleOf": 999999999, "minimum": -(10**18), "maximum": 10**18},
    ],
    ids=range(6),
)
def test_a_schema_that_cannot_be_met_is_refused(schema: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    with client(state_of(byte_engine())) as one:
        assert one.chat(response_format=form)["error"]["type"] == "invalid_request_error"


def test_a_grammar_without_a_way_on_ends_its_request_alone() -> None:
    """The marks of thoughts are tokens; as text they cannot be written."""
    with client(state_of(byte_engine())) as one:
        error = one.chat(grammar='start: "a" "<think>"', max_tokens=9)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "grammar")
        assert one.chat(max_tokens=3)["object"] == "chat.completion"


def test_a_tokenizer_without_bytes_takes_no_grammar() -> None:
    with client() as one:
        error = one.chat(grammar=GRAMMAR)["error"]
        assert "tokenizer" in error["message"]
