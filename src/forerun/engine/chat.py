"""Conversations: their messages, and the chat template of a tokenizer that turns them into a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from forerun.errors import CheckpointError, ConfigError, PromptError, UnknownNameError, shown
from forerun.options import options

if TYPE_CHECKING:
    from jinja2 import nodes

Message = Mapping[str, Any]
"""A message: `role` and `content`, and whatever else the template reads."""

# Names that a template reads and transformers sets, so that users cannot.
_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# Attribute of tokenizers that open conversations like any text, whatever the template writes.
OPENS_CONVERSATIONS = "opens_conversations"
# Names that a template may be given without reading them by name.
_LISTS = ("tools", "documents")
# Roles of conversations; a template may name others.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_CONVERSATION = 'give a list such as [{"role": "user", "content": "Hello"}]'


@options
class TemplateOptions:
    """Options of the chat template that makes messages a prompt."""

    system: str | None = Field(default=None, description="A system message before the others.")
    template_var: Mapping[str, Any] = Field(
        default_factory=dict,
        description="A variable of the chat template, such as enable_thinking=false.",
    )
    show_prompt: bool = Field(
        default=False, description="Show the prompt as it was sent, on standard error."
    )


def check_messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a conversation, checked.

    Raises:
        PromptError: for anything but a list of mappings with a role and a text.
    """
    try:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError
        messages = list(value)
    except Exception:
        raise PromptError(f"messages are {shown(value)}; {_CONVERSATION}.") from None
    if not messages:
        raise PromptError(f"the conversation is empty; {_CONVERSATION}.")
    if isinstance(messages[0], (list, tuple)):
        raise PromptError(
            "the messages are lists, as of several conversations; give one, or all to Engine.generate."
        )
    return [_checked(index, message) for index, message in enumerate(messages)]


def text_of(message: Message) -> str:
    """The text of a message; parts are joined by line breaks, as in other engines."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else part["text"] for part in content)


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: tokenizer of transformers.
        source: the template's text.
    """

    def __init__(self, tokenizer: Any, source: str) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._special: Mapping[str, Any] = getattr(tokenizer, "special_tokens_map", {})

    @classmethod
    def of(cls, tokenizer: Any) -> ChatTemplate | None:
        """The chat template of a tokenizer; None if it has none, like that of a base model.

        Raises:
            CheckpointError: for several templates without a default, or one that is not text.
        """
        source = getattr(tokenizer, "chat_template", None)
        if isinstance(source, Mapping):
            if "default" not in source:
                raise CheckpointError(
                    f"the tokenizer has the chat templates {', '.join(map(str, source))} and no default; "
                    "set tokenizer.chat_template to one of them."
                )
            source = source["default"]
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(
                f"the tokenizer's chat template is {shown(source)}; it must be text."
            )
        return cls(tokenizer, source)

    @property
    def sha256(self) -> str:
        """Hash by which files name the template that they were made with."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads and a caller may set, such as `enable_thinking`.

        Raises:
            CheckpointError: for a template with a syntax error.
        """
        from jinja2 import meta

        # Jinja also reports names that every branch of a condition sets before they are read.
        names = meta.find_undeclared_variables(self._tree) & _read_before_set(self._tree)
        tokens = {name for name in names if name.endswith("_token")}
        return frozenset(names - _GIVEN - self._special.keys() - tokens - _FUNCTIONS)

    @cached_property
    def _tree(self) -> nodes.Template:
        import jinja2

        try:
            tree: nodes.Template = _environment().parse(self.source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise _not_valid(error) from error
        return tree

    def render(
        self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt as text, up to the start of the model's answer.

        Args:
            messages: the conversation; the text parts of a content are joined by line breaks.
            variables: values for names that the template reads; `tools` and `documents` are also
                passed to it.

        Raises:
            PromptError: for anything but a conversation, and if the template refuses it.
            CheckpointError: for a template with a syntax error.
            UnknownNameError, ConfigError: for a variable that the template does not read.
        """
        from jinja2 import TemplateSyntaxError

        values = self._read(variables)
        checked = check_messages(messages)
        for message in checked:
            if (role := message["role"]) not in ROLES and role not in self.source:
                raise PromptError(
                    f"the role {shown(role)} is unknown; use one of {', '.join(ROLES)}, or one that the "
                    "chat template names."
                )
        conversation = [
            {**message, "content": text_of(message)} if _in_parts(message) else message
            for message in checked
        ]
        try:
            tools = [_schema(tool) for tool in values.pop("tools", None) or ()] or None
            given = {"tools": tools, "documents": None, **self._special, **values}
            text: str = _compiled(self.source).render(
                messages=[_with_reasoning(_plain(message)) for message in conversation],
                add_generation_prompt=True,
                **_plain(given),
            )
            return text
        except TemplateSyntaxError as error:
            raise _not_valid(error) from error
        except Exception as error:
            # A template is a program and may raise any exception.
            raise PromptError(f"the chat template refuses the messages: {_line(error)}.") from error

    def encode(
        self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The prompt as token ids, with at most one BOS at its start.

        With a tokenizer from a GGUF file the prompt starts like any text (as in llama.cpp), whether
        or not the template writes BOS.

        Raises:
            PromptError, UnknownNameError, ConfigError: as `render` does.
        """
        text = self.render(messages, variables)
        token_ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        if getattr(self._tokenizer, OPENS_CONVERSATIONS, False):
            bos = self._tokenizer.bos_token_id
            if self._tokenizer.encode(text, add_special_tokens=True)[:1] == [bos]:
                token_ids.insert(0, bos)
        while _opens_twice(self._tokenizer, token_ids):
            del token_ids[0]
        return token_ids

    def _read(self, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        if variables is None:
            return {}
        if not isinstance(variables, Mapping):
            raise ConfigError(
                f"template variables are {shown(variables)}; they must be a mapping of names."
            )
        if not variables:
            return {}
        allowed = {*self.variables, *(name for name in _LISTS if name in self.source)}
        for name in variables:
            if name in allowed:
                continue
            if not allowed:
                raise ConfigError(f"the chat template reads no variables; leave {shown(name)} out.")
            raise UnknownNameError("template variable", str(name), allowed)
        return dict(variables)


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """A prompt's token ids, opened as the tokenizer opens texts; BOS is not added to a text that has it."""
    token_ids = list(tokenizer.encode(text, add_special_tokens=True))
    bos = getattr(tokenizer, "bos_token", None)
    opened = bos and text.startswith(bos) and _opens_twice(tokenizer, token_ids)
    return token_ids[1:] if opened else token_ids


def _not_valid(error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer's chat template is not valid ({_line(error)}); set tokenizer.chat_template to a "
        "working one, or give the prompt as text."
    )


def _opens_twice(tokenizer: Any, token_ids: list[int]) -> bool:
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and token_ids[:2] == [bos, bos]


def _checked(index: int, message: Any) -> dict[str, Any]:
    where = f"message {index + 1}"
    if not isinstance(message, Mapping):
        raise PromptError(f"{where} is {shown(message)}; {_CONVERSATION}.")
    try:
        entries = {str(key): value for key, value in message.items()}
    except Exception:
        raise PromptError(f"{where} cannot be read; {_CONVERSATION}.") from None
    role = entries.get("role")
    if not isinstance(role, str) or not role:
        problem = "has no role" if "role" not in entries else f"has the role {shown(role)}"
        raise PromptError(f"{where} {problem}; it must be text such as 'user'.")
    content = entries.get("content")
    if content is None and not entries.get("tool_calls"):
        raise PromptError(f"{where} (of {shown(role)}) has no content; it must be text.")
    _check_content(where, content)
    return entries


def _check_content(where: str, content: Any) -> None:
    """Refuse a content that is neither text nor a list of parts of type text."""
    if isinstance(content, Mapping):
        raise PromptError(f"{where} has a part as content; put it into a list.")
    parts = content if isinstance(content, (list, tuple)) else [content]
    for part in parts:
        typed = isinstance(part, Mapping)
        if typed and part.get("type", "text") != "text":
            raise PromptError(
                f"{where} holds a part of type {shown(part.get('type'))}; only text is read."
            )
        text = part.get("text") if typed else part
        if not isinstance(text, str) and (typed or content is not None):
            raise PromptError(f"{where} has the content {shown(content)}; it must be text.")
        try:
            (text or "").encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(f"{where} is not valid UTF-8 ({error.reason}).") from error


def _in_parts(message: Message) -> bool:
    return isinstance(message.get("content"), (list, tuple))


def _line(error: Exception) -> str:
    """The message of a template's or library's error, as one line without a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 200 else f"{text[:197]}...").rstrip(".")


_FUNCTIONS = frozenset(
    {"raise_exception", "strftime_now", "dict", "namespace", "range", "cycler", "joiner", "lipsum"}
)


def _read_before_set(tree: nodes.Node) -> set[str]:
    """The names in a template that are read before they are set."""
    first: dict[str, str] = {}
    for name in _in_order(tree):
        first.setdefault(name.name, name.ctx)
    return {name for name, use in first.items() if use == "load"}


def _in_order(tree: nodes.Node) -> Iterator[nodes.Name]:
    from jinja2 import nodes

    if isinstance(tree, nodes.Name):
        yield tree
    children = list(tree.iter_child_nodes())
    # The value of an assignment is read before its target is set.
    for child in children[::-1] if isinstance(tree, nodes.Assign) else children:
        yield from _in_order(child)


def _plain(value: Any) -> Any:
    """A copy of a value of plain types alone: a template must not reach the methods of other objects."""
    return json.loads(json.dumps(value, default=_stand_in))


def _stand_in(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else f"<{type(value).__name__}>"


def _schema(tool: Any) -> Any:
    """A tool's JSON schema; transformers makes that of a function."""
    if not callable(tool):
        return tool
    from transformers.utils import get_json_schema

    return get_json_schema(tool)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message without empty entries, and with its reasoning under the names that templates read."""
    filled = {name: value for name, value in message.items() if value is not None}
    names = [name for name in ("reasoning_content", "thinking", "reasoning") if name in filled]
    if not names:
        return filled
    return {"thinking": filled[names[0]], **filled, "reasoning_content": filled[names[0]]}


@lru_cache
def _compiled(source: str) -> Any:
    return _environment().from_string(source)


@lru_cache
def _environment() -> Any:
    """Jinja in a sandbox, with the tag, the functions and the filter that transformers adds."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around the assistant's answers."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment
