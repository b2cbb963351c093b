"""A model goes on where a user's text begins, and its text is over where the template goes on."""

from __future__ import annotations

import pytest

from forerun.engine.chat import ChatTemplate
from forerun.errors import PromptError
from forerun.training.answering import asking, chat_opening, text_opening
from tests.helpers.chat_templates import PUBLISHED, chat_tokenizer, tokenizer_of
from tests.helpers.made_tokenizers import TOKENIZERS

TEXT = "Why is the sky blue?"
ENDS = {
    "llama-3.2": "<|eot_id|>",
    "mistral": "[/INST]",
    "gemma-2": "<end_of_turn>",
    "phi-3": "<|end|>",
    "deepseek-v2": "Assistant:",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_opening_and_a_text_are_the_beginning_of_its_prompt(name: str) -> None:
    tokenizer = tokenizer_of(PUBLISHED[name])
    end = ENDS.get(name, "<|im_end|>")
    if "<" in end:
        tokenizer.add_special_tokens({"additional_special_tokens": [end]})
    template = ChatTemplate.of(tokenizer)
    assert template is not None
    opening = chat_opening(tokenizer, template, None, {})
    prompt = template.render(asking(TEXT, None))
    written = tokenizer.decode(opening.token_ids)
    assert prompt.startswith(written)
    before, _, after = prompt.partition(TEXT)
    assert before.rstrip(" ") == written
    assert after.strip().startswith(end)
    if "<" in end:
        assert opening.stop_token_ids == (tokenizer.convert_tokens_to_ids(end),)
        assert opening.stop == ()
    else:
        assert (opening.stop_token_ids, opening.stop) == ((), (end,))


def test_a_system_message_and_variables_come_before() -> None:
    tokenizer = tokenizer_of(PUBLISHED["llama-3.2"])
    template = ChatTemplate.of(tokenizer)
    assert template is not None
    opening = chat_opening(tokenizer, template, "Be kind.", {"date_string": "1 Jan 2026"})
    written = tokenizer.decode(opening.token_ids)
    assert "Be kind." in written
    assert "1 Jan 2026" in written


@pytest.mark.parametrize(
    "source",
    ["{{ messages | length }}", "{{ messages[0].content * 2 }}", "{{ raise_exception('no') }}"],
)
def test_templates_that_do_not_show_the_text(source: str) -> None:
    tokenizer = chat_tokenizer(source)
    template = ChatTemplate.of(tokenizer)
    assert template is not None
    with pytest.raises(PromptError):
        chat_opening(tokenizer, template, None, {})


def test_texts_begin_with_bos_or_after_another() -> None:
    assert text_opening(TOKENIZERS["marks"], [2]).token_ids == (1,)
    assert text_opening(TOKENIZERS["bytes"], [0]).token_ids == (0,)
    line = TOKENIZERS["bytes"].encode("\n")
    assert text_opening(TOKENIZERS["bytes"], []).token_ids == tuple(line)
