"""Chat templates of published models, without their parts on tools, and what they make of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import processors

from tests.helpers.made_tokenizers import CODE, PROSE, byte_level

ASKED = [
    {"role": "user", "content": "Why is the sky blue?"},
    {"role": "assistant", "content": "Light scatters."},
    {"role": "user", "content": "  And red?\n"},
]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *ASKED]

LLAMA_3_2 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

GEMMA_2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + "
    "message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{'<start_of_turn>model\\n'}}{% endif %}"
)

PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}"
)

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}"
)

DEEPSEEK_V2 = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}"
    "{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}"
    "{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ 'Assistant:' }}{% endif %}"
)


@dataclass(frozen=True)
class Published:
    """A template, the special tokens of its tokenizer, and its prompt for a conversation.

    Args:
        opens: whether the tokenizer puts its BOS before every text.
    """

    template: str
    prompt: str
    special: dict[str, str]
    messages: list[dict[str, str]]
    variables: frozenset[str] = frozenset()
    opens: bool = False


_SPACES = "  And red?\n"
_CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n"
    "<|im_start|>assistant\nLight scatters.<|im_end|>\n<|im_start|>user\n"
    + _SPACES
    + "<|im_end|>\n"
    "<|im_start|>assistant\n"
)
_END = {"eos_token": "<|im_end|>"}
PUBLISHED = {
    "llama-3.2": Published(
        LLAMA_3_2,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 1 Jan 2026\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy is the sky blue?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nLight scatters.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnd red?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        WITH_SYSTEM,
        frozenset({"date_string", "custom_tools", "tools_in_user_message"}),
        opens=True,
    ),
    "qwen3": Published(QWEN3, _CHATML, _END, WITH_SYSTEM, frozenset({"enable_thinking"})),
    "mistral": Published(
        MISTRAL,
        f"<s>[INST] Why is the sky blue? [/INST]Light scatters.</s>[INST] {_SPACES} [/INST]",
        {"bos_token": "<s>", "eos_token": "</s>"},
        ASKED,
        opens=True,
    ),
    "gemma-2": Published(
        GEMMA_2,
        "<bos><start_of_turn>user\nWhy is the sky blue?<end_of_turn>\n<start_of_turn>model\n"
        "Light scatters.<end_of_turn>\n<start_of_turn>user\nAnd red?<end_of_turn>\n"
        "<start_of_turn>model\n",
        {"bos_token": "<bos>", "eos_token": "<eos>"},
        ASKED,
        opens=True,
    ),
    "phi-3": Published(
        PHI_3,
        "<|system|>\nBe brief.<|end|>\n<|user|>\nWhy is the sky blue?<|end|>\n<|assistant|>\n"
        f"Light scatters.<|end|>\n<|user|>\n{_SPACES}<|end|>\n<|assistant|>\n",
        {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
        WITH_SYSTEM,
    ),
    "smollm2": Published(
        SMOLLM2,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n" + _CHATML.partition("<|im_end|>\n")[2],
        {"bos_token": "<|im_start|>", **_END},
        ASKED,
    ),
    "chatml": Published(CHATML, _CHATML, _END, WITH_SYSTEM),
    "deepseek-v2": Published(
        DEEPSEEK_V2,
        "<｜begin▁of▁sentence｜>Be brief.\n\nUser: Why is the sky blue?\n\nAssistant: "
        f"Light scatters.<｜end▁of▁sentence｜>User: {_SPACES}\n\nAssistant:",
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
        WITH_SYSTEM,
        opens=True,
    ),
}


def tokenizer_of(published: Published) -> Any:
    """A byte-level tokenizer with a published template and its special tokens."""
    return chat_tokenizer(published.template, published.special, opens=published.opens)


def chat_tokenizer(
    template: str | None, special: dict[str, str] | None = None, *, opens: bool = False
) -> Any:
    """A byte-level tokenizer with a chat template.

    Args:
        special: special tokens by transformers' names.
        opens: whether it puts its BOS before every text.
    """
    special = {"eos_token": "<|end|>", **(special or {})}
    tokenizer = byte_level(400, PROSE + CODE, special["eos_token"])
    tokenizer.add_special_tokens(special)
    if opens:
        bos = special["bos_token"]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", None, [(bos, tokenizer.bos_token_id)]
        )
    tokenizer.chat_template = template
    return tokenizer
