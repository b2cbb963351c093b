"""A later prompt begins with the tokens that were generated, and has the text that the template gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forerun.cli.conversation import Conversation
from forerun.engine.chat import ChatTemplate
from tests.helpers.chat_templates import PUBLISHED, tokenizer_of

QUESTION = {"role": "user", "content": "Why is the sky blue?"}
NEXT = {"role": "user", "content": "And red?"}
# Their prompts end where the text of an answer begins, and this special token ends it.
GOES_ON = {
    "chatml": "<|im_end|>",
    "smollm2": "<|im_end|>",
    "llama-3.2": "<|eot_id|>",
    "phi-3": "<|end|>",
    "gemma-2": "<end_of_turn>",
}


def opened(name: str) -> tuple[Any, ChatTemplate, Conversation]:
    tokenizer = tokenizer_of(PUBLISHED[name])
    tokenizer.add_tokens([GOES_ON[name]] if name in GOES_ON else [], special_tokens=True)
    template = ChatTemplate.of(tokenizer)
    assert template is not None
    return tokenizer, template, Conversation(tokenizer, template, {}, [])


def answer(tokenizer: Any, text: str, *, ended: bool = True) -> Any:
    """One that spells its text letter by letter, which no tokenizer would."""
    token_ids = [token for c in text for token in tokenizer.encode(c, add_special_tokens=False)]
    end = [tokenizer.eos_token_id] if ended else []
    return SimpleNamespace(token_ids=tuple(token_ids + end), text=text)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("text", ["Light scatters.", " spaced \n", "", "日本 🙂"])
@pytest.mark.parametrize("ended", [True, False])
def test_the_text_is_the_templates(name: str, text: str, ended: bool) -> None:
    tokenizer, template, conversation = opened(name)
    first = conversation.prompt(QUESTION)
    conversation.keep(QUESTION, first, answer(tokenizer, text, ended=ended))
    second = conversation.prompt(NEXT)
    assert second.text == template.render([*conversation.messages, NEXT])
    encoded = template.encode([*conversation.messages, NEXT])
    assert tokenizer.decode(second.token_ids) == tokenizer.decode(encoded)


@pytest.mark.parametrize("name", GOES_ON)
def test_the_tokens_are_those_that_were_generated(name: str) -> None:
    tokenizer, template, conversation = opened(name)
    before: list[int] = []
    for _ in range(3):
        prompt = conversation.prompt(QUESTION)
        assert prompt.token_ids[: len(before)] == before
        said = answer(tokenizer, "Light scatters.", ended=False)
        conversation.keep(QUESTION, prompt, said)
        before = prompt.token_ids + list(said.token_ids)
    # Encoded anew the text has other tokens.
    assert template.encode([*conversation.messages, NEXT])[: len(before)] != before


def test_an_answer_that_a_stop_string_has_cut_is_encoded_anew() -> None:
    tokenizer, template, conversation = opened("chatml")
    cut = answer(tokenizer, "Light scatters.")
    cut.text = "Light"
    conversation.keep(QUESTION, conversation.prompt(QUESTION), cut)
    expected = template.encode([*conversation.messages, NEXT])
    assert conversation.prompt(NEXT).token_ids == expected


def test_turns_are_dropped_from_the_oldest_on() -> None:
    tokenizer, template, conversation = opened("chatml")
    conversation.set_system("Be brief.")
    for content in ("one", "two"):
        question = {"role": "user", "content": content}
        conversation.keep(question, conversation.prompt(question), answer(tokenizer, "yes"))
    conversation.drop_oldest()
    assert [message["content"] for message in conversation.messages] == ["Be brief.", "two", "yes"]
    expected = template.encode([*conversation.messages, NEXT])
    assert conversation.prompt(NEXT).token_ids == expected
    alone = template.encode([conversation.messages[0], NEXT])
    assert conversation.prompt(NEXT, alone=True).token_ids == alone
    conversation.drop_oldest()
    assert [message["content"] for message in conversation.messages] == ["Be brief."]
