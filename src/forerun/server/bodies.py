"""Bodies of requests: every field that is served or ignored; any other is refused by its name.

A field that changes the answer and is not served has no place here, so that it is never half obeyed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from forerun.server.errors import ApiError

TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
_Text = Annotated[str, Field(min_length=1)]


def text_of(content: Any, param: str, joint: str = "\n") -> str:
    """The text of a content: text itself, parts of text, or nothing.

    Raises:
        ApiError: for any other part, naming the field.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "content is text, or parts of text.", param=param)
    return joint.join(map(str, texts))


class Body(BaseModel):
    """A JSON object whose fields are all known, of the declared types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SpeculativeBody(Body):
    """Speculation of one request, within what the server was started with."""

    method: _Text | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=256)


class StreamOptions(Body):
    """Options of a stream beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class Prediction(Body):
    """An expected output, parts of which may come true."""

    type: Literal["content"] = "content"
    content: str | list[dict[str, Any]]


class Function(Body):
    """A function that a model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    # Arguments meet the schema where a call is forced, and are the model's own elsewhere.
    strict: bool | None = None


class Tool(Body):
    """A tool; only functions are served."""

    type: Literal["function"]
    function: Function


class ToolName(Body):
    """Name of a function."""

    name: str


class NamedTool(Body):
    """The tool that an answer must call."""

    type: Literal["function"]
    function: ToolName


class JsonSchemaFormat(Body):
    """A JSON schema under a name."""

    name: str | None = None
    description: str | None = None
    wanted: dict[str, Any] | bool = Field(default=True, alias="schema")
    # A schema is always met.
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class Message(BaseModel):
    """A message of a conversation; a template may read further fields."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: _Text
    content: str | list[dict[str, Any]] | None = None


class CommonBody(Body):
    """Fields that the fronts of all forms share."""

    model: str | None = None
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    top_p: float | None = Field(default=None, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    speculative: bool | SpeculativeBody | None = None
    # No effect on an answer of this server.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class SamplingBody(CommonBody):
    """Fields that chat and completions share."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(default=1, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31)
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    presence_penalty: float | None = Field(default=None, ge=-100.0, le=100.0)
    frequency_penalty: float | None = Field(default=None, ge=-100.0, le=100.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=100.0)
    logit_bias: dict[Annotated[int, Field(strict=False)], float] | None = None
    stop: Annotated[list[str], Field(max_length=64)] | str | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=1024)
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    grammar: _Text | None = None
    return_token_ids: bool | None = None
    return_origins: bool | None = None


class ChatBody(SamplingBody):
    """Body of /v1/chat/completions, to which other chat fronts translate theirs."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    # Obeyed where a call is forced; how many calls a model makes unforced is its own.
    parallel_tool_calls: bool | None = None
    # No effect on an answer of this server.
    modalities: list[Literal["text"]] | None = None
    verbosity: str | None = None


class CompletionBody(SamplingBody):
    """Body of /v1/completions."""

    prompt: str | TokenIds | Annotated[list[str] | list[TokenIds], Field(min_length=1)]
    max_tokens: int | None = Field(default=16, ge=0, le=2**31)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = False
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class TokenizeBody(Body):
    """Body of /tokenize, in llama.cpp's words (content) or vLLM's (prompt, messages)."""

    content: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    model: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    with_pieces: bool = False
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """Body of /detokenize."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    model: str | None = None
