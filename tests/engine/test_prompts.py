"""Prompts of every kind: one gives a completion, several a list, and all the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from forerun.core import Hints
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.errors import ConfigError, ForerunError, PromptError, UnknownNameError
from forerun.params import SamplingParams
from forerun.testing import ToyModel
from tests.helpers.chat_templates import ASKED, PUBLISHED, tokenizer_of

TOKENIZER = tokenizer_of(PUBLISHED["chatml"])
TOKENIZER.pad_token = TOKENIZER.eos_token
ONE = SamplingParams(temperature=0.0, max_tokens=3)
TEXT = "the dog sleeps"
IDS: list[int] = TOKENIZER.encode(TEXT)
OTHER: list[int] = TOKENIZER.encode("the quick brown fox")


def engine(**options: Any) -> Engine:
    model = ToyModel(len(TOKENIZER), max_context=256)
    return Engine(model, tokenizer=TOKENIZER, **options)


SINGLE = {
    "text": TEXT,
    "ids": IDS,
    "tuple": tuple(IDS),
    "iterator": iter(IDS),
    "array": np.array(IDS),
    "tensor": torch.tensor(IDS),
}


@pytest.mark.parametrize("prompt", SINGLE.values(), ids=SINGLE.keys())
def test_one_prompt_gives_one_completion(prompt: Any) -> None:
    completion = engine().generate(prompt, ONE)
    assert isinstance(completion, Completion)
    assert list(completion.prompt_ids) == IDS


SEVERAL = {
    "texts": [TEXT, "the quick brown fox"],
    "lists of ids": [IDS, OTHER],
    "iterator": iter([TEXT, OTHER]),
    "a tokenizer's ids": TOKENIZER([TEXT, "the quick brown fox"])["input_ids"],
    "all kinds": [TEXT, torch.tensor(OTHER)],
}


@pytest.mark.parametrize("prompts", SEVERAL.values(), ids=SEVERAL.keys())
def test_several_prompts_give_a_list(prompts: Any) -> None:
    completions = engine().generate(prompts, ONE)
    assert [list(completion.prompt_ids) for completion in completions] == [IDS, OTHER]


def test_a_list_stays_a_list() -> None:
    for prompts in ([TEXT], [IDS], torch.tensor([IDS]), [ASKED]):
        completions: Any = engine().generate(prompts, ONE)
        assert isinstance(completions, list)
        assert len(completions) == 1
    assert engine().generate([]) == []


def test_messages_are_templated_wherever_a_prompt_may_be() -> None:
    template = ChatTemplate.of(TOKENIZER)
    assert template is not None
    expected = tuple(template.encode(ASKED))
    one = engine(max_batch_size=2)
    assert one.generate(ASKED, ONE).prompt_ids == expected
    assert one.generate([ASKED, IDS], ONE)[0].prompt_ids == expected
    assert one.chat(ASKED, ONE).prompt_ids == expected
    number = one.add(ASKED, ONE)
    one.step()
    assert one.completion(number).prompt_ids == expected
    for stream in (one.stream(ASKED, ONE), one.stream_plain(ASKED, ONE)):
        assert stream.completion.prompt_ids == expected


def test_a_chat_sets_the_variables_of_its_template() -> None:
    tokenizer = tokenizer_of(PUBLISHED["qwen3"])
    one = Engine(ToyModel(len(tokenizer), max_context=256), tokenizer=tokenizer)
    completion = one.chat(ASKED, ONE, template_vars={"enable_thinking": False})
    assert tokenizer.decode(completion.prompt_ids).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(UnknownNameError, match="enable_thinking"):
        one.chat(ASKED, ONE, template_vars={"thinking": False})


def test_the_next_turn_runs_only_what_is_new() -> None:
    one = engine()
    first = one.chat(ASKED, ONE)
    more = [{"role": "assistant", "content": first.text}, {"role": "user", "content": "More."}]
    second = one.chat([*ASKED, *more], ONE)
    # The line break that opens the answer may be joined with it.
    assert second.stats.num_cached_tokens >= len(first.prompt_ids) - 2
    assert engine().chat([*ASKED, *more], ONE).token_ids == second.token_ids


def test_a_base_model_takes_no_messages() -> None:
    tokenizer = tokenizer_of(PUBLISHED["chatml"])
    tokenizer.chat_template = None
    one = Engine(ToyModel(len(tokenizer)), tokenizer=tokenizer)
    with pytest.raises(PromptError, match="no chat template, as that of a base model"):
        one.chat(ASKED)
    with pytest.raises(ConfigError, match="a conversation needs a tokenizer"):
        Engine(ToyModel(7)).chat(ASKED)


def test_a_conversation_that_is_too_long_says_by_how_much() -> None:
    length = len(engine().chat(ASKED, ONE).prompt_ids)
    with pytest.raises(PromptError, match=r": 3 tokens too many; .*drop the oldest messages"):
        engine(max_context=length - 2).chat(ASKED)
    assert engine(max_context=length + 1).chat(ASKED).prompt_ids


CALLS: dict[str, Callable[..., Any]] = {
    "generate": lambda one, **sampling: one.generate(TEXT, **sampling),
    "generate a list": lambda one, **sampling: one.generate([TEXT], **sampling)[0],
    "chat": lambda one, **sampling: one.chat(ASKED, **sampling),
    "stream": lambda one, **sampling: finished(one.stream(TEXT, **sampling)),
    "stream_plain": lambda one, **sampling: finished(one.stream_plain(TEXT, **sampling)),
    "add": lambda one, **sampling: stepped(one, one.add(TEXT, **sampling)),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def finished(stream: Any) -> Completion:
    list(stream)
    completion: Completion = stream.completion
    return completion


def stepped(one: Engine, number: int) -> Completion:
    while one.has_work:
        one.step()
    return one.completion(number)


@calls
def test_sampling_options_are_keywords(call: Callable[..., Any]) -> None:
    plain = call(engine(), temperature=0.0, max_tokens=4)
    assert len(plain.token_ids) == 4
    greedy = SamplingParams(temperature=0.0)
    for options in (
        {"params": greedy, "max_tokens": 4},
        {"params": {"temperature": 0, "max_tokens": 4}},
    ):
        assert call(engine(), **options).token_ids == plain.token_ids
    one = engine(sampling_defaults={"temperature": 0.0, "max_tokens": 2})
    assert len(call(one).token_ids) == 2
    assert call(one, max_tokens=4).token_ids == plain.token_ids


@calls
def test_an_option_that_does_not_exist_is_named(call: Callable[..., Any]) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'temperature'"):
        call(engine(), temprature=0)
    with pytest.raises(UnknownNameError, match="Did you mean 'max_tokens'"):
        call(engine(), max_new_tokens=3)
    with pytest.raises(ConfigError, match="top_k is 'all'"):
        call(engine(), top_k="all")
    with pytest.raises(ConfigError, match="params are 7"):
        call(engine(), params=7)


@pytest.mark.parametrize("name", ["do_sample", "stream", "tools", "num_return_sequences"])
@calls
def test_options_of_other_libraries_say_where_ours_are(call: Callable[..., Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not a sampling parameter"):
        call(engine(), **{name: True})


def test_texts_where_one_prompt_is_expected() -> None:
    with pytest.raises(PromptError, match=r"list of texts .* Engine\.generate"):
        engine().stream([TEXT, TEXT])  # type: ignore[arg-type]


def test_a_template_variable_among_sampling_options_is_explained() -> None:
    tokenizer = tokenizer_of(PUBLISHED["qwen3"])
    one = Engine(ToyModel(len(tokenizer), max_context=256), tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"template_vars={'enable_thinking'"):
        one.chat(ASKED, enable_thinking=False)  # type: ignore[call-arg]


def test_complete_parameters_are_used_as_they_are() -> None:
    one = engine(sampling_defaults={"max_tokens": 2, "temperature": 0.0})
    assert len(one.generate(TEXT, SamplingParams(seed=1, max_tokens=5)).token_ids) == 5


def test_each_prompt_may_have_its_own() -> None:
    params: list[SamplingParams | dict[str, Any]] = [ONE, {"max_tokens": 2}]
    first, second = engine().generate([IDS, OTHER], params, temperature=0)
    assert (len(first.token_ids), len(second.token_ids)) == (3, 2)
    with pytest.raises(ConfigError, match="2 prompts but 1 sets"):
        engine().generate([IDS, OTHER], [ONE])
    with pytest.raises(ConfigError, match="hints are Hints, not str"):
        engine().generate(TEXT, ONE, hints="said before")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 prompts but 2 hints"):
        engine().generate(TEXT, ONE, hints=[Hints(), Hints()])


def test_no_stop_strings_may_be_none() -> None:
    assert (
        engine().generate(TEXT, ONE, stop=None).token_ids == engine().generate(TEXT, ONE).token_ids
    )


def test_defaults_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="temprature"):
        engine(sampling_defaults={"temprature": 0})
    with pytest.raises(ConfigError, match="mapping"):
        engine(sampling_defaults=7)


BAD = {
    "a message": {"role": "user", "content": "Hi"},
    "a tokenizer's output": TOKENIZER(TEXT),
    "a list of them": [TOKENIZER(TEXT)],
    "None": None,
    "a number": 7,
    "bytes": b"ab",
    "numbers that are not whole": [1.5],
    "ids and text": [1, "a"],
    "no message": [{"role": "user"}],
    "empty": [[]],
}


@pytest.mark.parametrize("prompt", BAD.values(), ids=BAD.keys())
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    for call in (engine().generate, engine().stream, engine().add, engine().stream_plain):
        with pytest.raises(ForerunError) as refusal:
            call(prompt)
        assert "\n" not in str(refusal.value)


def test_a_tokenizer_of_another_model_is_found_out() -> None:
    with pytest.raises(PromptError, match=r"token id \d+; this model's ids are 0 to 6"):
        Engine(ToyModel(7), tokenizer=TOKENIZER).generate(TEXT)


def test_seeds_are_whole_numbers() -> None:
    one = engine()
    one.use_seeds(lambda: "x")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="a seed of the source is 'x'"):
        one.generate(TEXT)


def test_a_tokenizers_output_is_not_a_prompt_and_its_ids_are() -> None:
    with pytest.raises(PromptError, match="give input_ids"):
        engine().generate(TOKENIZER(TEXT))
    assert engine().generate(TOKENIZER(TEXT)["input_ids"], ONE).token_ids
