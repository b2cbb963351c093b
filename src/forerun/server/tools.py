"""Tool calls: the formats that models write, the grammars that force them, and their parsing."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.server.answers import AnswerPart, before_mark
from forerun.server.bodies import ChatBody, Function, NamedTool
from forerun.server.constraints import GrammarVocabulary, bounded
from forerun.server.errors import ApiError

# A call as an object, up to its arguments.
_OBJECT = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
# Mistral's newer form.
_NAMED = re.compile(r"(?P<name>[\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_XML = re.compile(r"<function=(?P<name>[^>\s]+)>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
# Keys of a schema without a type whose values may be other than text.
_OTHER = {"anyOf", "oneOf", "allOf", "$ref"}
# Keys of a whole schema that hold for each of its properties too.
_SHARED = ("$defs", "definitions", "x-guidance")
# A text and its end, for values that are not JSON.
_VALUE = 'value[suffix="\\n</parameter>\\n"]: /(.|\\n)*/'


@dataclass(frozen=True)
class ToolFormat:
    """The form of calls in the answers of a family.

    Args:
        sign: text that the family's templates hold.
        start: mark before the first call; empty if an answer is calls or none.
        end: closing mark of a call; text between the arguments and it is skipped.
        heads: beginnings of a call up to its arguments.
        shape: texts of one call that is forced, with NAME for its name and ARGUMENTS for those, each text a
            token where it is one; empty for XML.
        around: texts before, between and behind the calls that are forced.
        marks: texts with which calls begin, and special tokens inside them.
        id_form: form of a call's id.
    """

    sign: str
    start: str
    end: str
    heads: Sequence[re.Pattern[str]]
    shape: Sequence[str] = ()
    around: Sequence[Sequence[str]] = ((), ("\n",), ())
    marks: Sequence[str] = ("<tool_call>",)
    id_form: str = "call_{:.24}"

    def rules(self, words: GrammarVocabulary, functions: Sequence[Function], several: bool) -> str:
        """Lark rules of forced calls; the first is `calls`."""
        before, between, behind = (" ".join(map(words.literal, texts)) for texts in self.around)
        names = [f"call{number}" for number in range(len(functions))]
        more = f"({between} call)*" if several else ""
        rules = [f"calls: {before} call {more} {behind}", f"call: {' | '.join(names)}"]
        for name, function in zip(names, functions, strict=True):
            schema = bounded(function.parameters or {"type": "object"}, "tools")
            rules.append(f"{name}: {self._rule(words, function.name, schema)}")
        return "\n".join([*rules, _VALUE] if self.heads[0] is _XML else rules)

    def _rule(self, words: GrammarVocabulary, name: str, schema: dict[str, Any]) -> str:
        try:
            if not self.shape:
                return _xml(words, name, schema)
            written = f"%json {json.dumps(schema)}"
        except (AttributeError, TypeError, ValueError):
            message = f"the parameters of tool {name} are not a JSON schema."
            raise ApiError(400, message, param="tools") from None
        texts = [text.replace("NAME", name) for text in self.shape]
        return " ".join(written if text == "ARGUMENTS" else words.literal(text) for text in texts)


def _xml(words: GrammarVocabulary, name: str, schema: dict[str, Any]) -> str:
    required, parts = schema.get("required", ()), [words.literal("<tool_call>")]
    shared = {key: schema[key] for key in _SHARED if key in schema}
    parts.append(json.dumps(f"\n<function={name}>\n"))
    for key, kind in schema.get("properties", {}).items():
        if not _is_text(kind):
            value = f"%json {json.dumps(shared | kind)} " + json.dumps("\n</parameter>\n")
        elif "enum" in kind:
            texts = " | ".join(json.dumps(str(text)) for text in kind["enum"])
            value = f"({texts}) " + json.dumps("\n</parameter>\n")
        elif "maxLength" in kind:
            sizes = f"{{{kind.get('minLength', 0):d},{kind['maxLength']:d}}}"
            value = f"/(.|\\n){sizes}/ " + json.dumps("\n</parameter>\n")
        else:
            value = "value"
        part = json.dumps(f"<parameter={key}>\n") + f" {value}"
        parts.append(part if key in required else f"({part})?")
    return " ".join([*parts, json.dumps("</function>\n"), words.literal("</tool_call>")])


def _is_text(schema: Any) -> bool:
    """True for a parameter whose value is text as it stands, not JSON."""
    if not isinstance(schema, dict) or "type" in schema:
        return not isinstance(schema, dict) or schema["type"] == "string"
    return not _OTHER & schema.keys()


_CALL = ('\n{"name": "NAME", "arguments": ', "ARGUMENTS", "}\n")
FORMATS: Mapping[str, ToolFormat] = {
    "qwen3_coder": ToolFormat("<function=", "<tool_call>", "</tool_call>", (_XML,)),
    "hermes": ToolFormat(
        *("<tool_call>", "<tool_call>", "</tool_call>", (_OBJECT,)),
        ("<tool_call>", *_CALL, "</tool_call>"),
    ),
    "mistral_named": ToolFormat(
        *("[ARGS]", "[TOOL_CALLS]", "", (_NAMED,)),
        ("[TOOL_CALLS]", "NAME", "[ARGS]", "ARGUMENTS"),
        around=((), (), ()),
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        id_form="{:.9}",
    ),
    "mistral": ToolFormat(
        *("[TOOL_CALLS]", "[TOOL_CALLS]", "}", (_OBJECT, _NAMED)),
        tuple(text.strip("\n") for text in _CALL),
        around=(("[TOOL_CALLS]", "["), (", ",), ("]",)),
        marks=("[TOOL_CALLS]",),
        id_form="{:.9}",
    ),
    "llama3": ToolFormat(
        *('"parameters": ', "", "}", (_OBJECT,)),
        ('{"name": "NAME", "parameters": ', "ARGUMENTS", "}"),
        around=((), ("; ",), ()),
        marks=('{"name": ', '{"type": "function"'),
    ),
}
"""The known forms; a template uses the first whose `sign` it contains."""


def format_of(source: str) -> ToolFormat | None:
    """The form of calls by the source of a chat template; None for an unknown one."""
    if "tools" not in source:
        return None
    return next((form for form in FORMATS.values() if form.sign in source), None)


class ToolCallReader:
    """Reads calls out of the text of an answer, however its rounds cut it.

    Args:
        form: their form.
        functions: what may be called.
    """

    def __init__(self, form: ToolFormat, functions: Sequence[Function]) -> None:
        self._form, self._held, self._count, self._depth = form, "", 0, 0
        self._schemas = {f.name: (f.parameters or {}).get("properties") for f in functions}
        self._state: Callable[[bool], bool] = self._text
        self._parts, self._ends, self._quoted, self._name = list[AnswerPart](), form.end, "", ""

    def __call__(self, text: str, final: bool) -> list[AnswerPart]:
        """Text and calls that more of an answer makes certain, in order."""
        self._held += text
        self._parts = []
        while self._state(final):
            pass
        return self._parts

    def _add_text(self, text: str) -> None:
        if text:
            self._parts.append(AnswerPart("text", text))

    def _text(self, final: bool) -> bool:
        """Text up to the mark of a call; each state returns True if another one goes on."""
        start, held = self._form.start, self._held
        if not start:
            begun = held.lstrip()
            if not begun.startswith("{"):
                self._state = self._rest if begun else self._text
                return bool(begun)
            self._held, self._state = begun, self._head
            return True
        certain, after = before_mark(held, start, final)
        self._add_text(certain)
        if after is None:
            self._held = held[len(certain) :]
            return False
        self._held, self._state = after, self._head
        return True

    def _rest(self, _: bool) -> bool:
        self._add_text(self._held)
        self._held = ""
        return False

    def _head(self, final: bool) -> bool:
        """The beginning of a call, up to its arguments."""
        form, held = self._form, self._held.lstrip(" \r\n\t,;[")
        if self._count and held.startswith("]"):
            self._held, self._state = held[1:], self._text
            return True
        for head in form.heads:
            match = head.match(held)
            if match is not None:
                self._open(match["name"])
                self._held = held[match.end() :]
                self._ends = "" if head is _NAMED else form.end
                self._state = self._parameters if head is _XML else self._arguments
                return True
        if _whole(held) or final or (len(form.end) > 1 and form.end in held):
            return self._misread(held)
        return False

    def _misread(self, held: str) -> bool:
        """Read what is held as a call in JSON or else as text; return True for a call."""
        call, size = _whole(held) or ({}, 0)
        if "name" in call and {"arguments", "parameters"} & {*call}:
            given = call.get("arguments", call.get("parameters"))
            self._open(str(call["name"]))
            self._add(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
            self._held, self._state, self._ends = held[size - 1 :], self._end, self._form.end
            return True
        self._add_text(held if self._count else self._form.start + self._held)
        self._held, self._state = "", self._text if self._form.start else self._rest
        return False

    def _open(self, name: str) -> None:
        self._name, self._depth, self._quoted = name, 0, ""
        number = self._form.id_form.format(uuid.uuid4().hex)
        self._parts.append(AnswerPart("call", "", self._count, number, name))
        self._count += 1

    def _add(self, arguments: str) -> None:
        if arguments:
            self._parts.append(AnswerPart("call", arguments, self._count - 1))

    def _arguments(self, _: bool) -> bool:
        """The arguments, an object: all up to the bracket that closes it."""
        for place, letter in enumerate(self._held):
            if self._quoted:
                escaped = self._quoted == "\\"
                self._quoted = '"' if escaped or letter not in '"\\' else letter.strip('"')
            elif letter == '"':
                self._quoted = letter
            else:
                self._depth += (letter in "{[") - (letter in "}]")
            if not self._depth:
                self._add(self._held[: place + 1])
                self._held, self._state = self._held[place + 1 :], self._end
                return True
        self._add(self._held)
        self._held = ""
        return False

    def _parameters(self, final: bool) -> bool:
        """Arguments as XML, each when it is complete."""
        match = _PARAMETER.match(self._held)
        if match is None:
            closed = re.match(r"\s*</function>", self._held)
            if closed is None and not final:
                return False
            self._add("{}" if not self._depth else "}")
            self._held, self._state = self._held[closed.end() if closed else 0 :], self._end
            return True
        schemas = self._schemas.get(self._name)
        schema = schemas.get(match[1]) if isinstance(schemas, dict) else None
        value = json.dumps(_value(match[2], schema), ensure_ascii=False)
        self._add(f"{', ' if self._depth else '{'}{json.dumps(match[1])}: {value}")
        self._held, self._depth = self._held[match.end() :], self._depth + 1
        return True

    def _end(self, final: bool) -> bool:
        """The rest of a call."""
        _, mark, after = self._held.partition(self._ends) if self._ends else ("", "}", self._held)
        if not mark:
            return False
        marked = self._form.start and self._ends != "}"
        self._held, self._state = after, self._text if marked else self._head
        return True


def _whole(text: str) -> tuple[dict[str, Any], int] | None:
    """The object that a text begins with, and its length, if it is complete."""
    try:
        value, size = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return (value, size) if isinstance(value, dict) else None


def _value(text: str, schema: Any) -> Any:
    """An argument by its type: text stays text."""
    if schema is None or _is_text(schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def offered(body: ChatBody, form: ToolFormat | None) -> Sequence[Function]:
    """The functions that an answer may call.

    Raises:
        ApiError: for a choice among others, and for tools that the model cannot call.
    """
    choice, functions = body.tool_choice, [tool.function for tool in body.tools or ()]
    if not functions and choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
    if not functions or choice == "none":
        return ()
    if form is None:
        message = "the model's chat template calls no tools in a known form: "
        raise ApiError(400, f"{message}{', '.join(FORMATS)}.", param="tools")
    if isinstance(choice, NamedTool):
        functions = [named for named in functions if named.name == choice.function.name]
        if not functions:
            raise ApiError(400, "tool_choice names no tool that is given.", param="tool_choice")
    return functions
