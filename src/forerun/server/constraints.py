"""Constraints on an answer, as masks: JSON, JSON schemas and grammars, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from forerun.server.bodies import SamplingBody
from forerun.server.errors import ApiError

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from torch import Tensor

    from forerun.engine.engine import Engine

# Deeper chains of rules and references overflow the stack of llguidance, which counts neither.
MOST_BYTES, MOST_RULES, MOST_REFERENCES = 1 << 18, 1000, 500
# Enough for what people write; a grammar that needs more is refused, or ends its request.
_LIMITS: dict[str, Any] = {
    "max_grammar_size": 200_000,
    "max_lexer_states": 50_000,
    "verbose_errors": False,
}
# Without a limit, a model may write whitespace until it reaches max_tokens.
_JSON = {"whitespace_pattern": r"[ \n\t\r]{1,40}"}


def grammar_of(body: SamplingBody) -> dict[str, Any] | None:
    """The grammar that a body asks for, in llguidance's form; None for free text.

    Raises:
        ApiError: for two at once, or one that is too large.
    """
    form = body.response_format
    if form is not None and form.type != "text":
        if body.grammar is not None:
            raise ApiError(400, "give one of grammar and response_format.", param="grammar")
        if form.type == "json_object":
            schema: Any = {"type": "object"}
        elif form.json_schema is None:
            message = "response_format json_schema needs json_schema.schema."
            raise ApiError(400, message, param="response_format")
        else:
            schema = form.json_schema.wanted
        return {"json_schema": bounded(schema, "response_format")}
    if body.grammar is None:
        return None
    from llguidance import grammar_from

    if len(body.grammar) > MOST_BYTES or body.grammar.count("\n") > MOST_RULES:
        message = f"the grammar is longer than {MOST_BYTES} bytes or {MOST_RULES} lines."
        raise ApiError(400, message, param="grammar")
    try:
        # Lark's form, or that of llama.cpp, which is translated.
        return {"lark_grammar": grammar_from("grammar", body.grammar)}
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the grammar is not valid: {error}.", param="grammar") from None


def bounded(schema: Any, param: str) -> Any:
    """A JSON schema of bounded size, with this server's options set in it.

    Raises:
        ApiError: for one that is too large.
    """
    written = json.dumps(schema)
    if len(written) > MOST_BYTES or written.count('"$ref"') > MOST_REFERENCES:
        message = (
            f"the schema is longer than {MOST_BYTES} bytes or has over {MOST_REFERENCES} $ref."
        )
        raise ApiError(400, message, param=param)
    return {**schema, "x-guidance": _JSON} if isinstance(schema, dict) else schema


class GrammarVocabulary:
    """The tokens of a model, as grammars see them.

    Args:
        engine: its tokenizer must work on bytes, and its texts must end with a token.
    """

    def __init__(self, engine: Engine) -> None:
        from llguidance import LLTokenizer

        backend: Any = getattr(engine.tokenizer, "backend_tokenizer", None)
        ends = sorted(engine.eos_token_ids)
        try:
            size = engine.target.vocab_size
            self._tokens = LLTokenizer(backend.to_str(), size, ends)
        except (AttributeError, ValueError) as error:
            message = f"grammars do not work with this model's tokenizer ({str(error)[:200]})."
            raise ApiError(501, message) from None
        self._added = {
            token.content: number for number, token in backend.get_added_tokens_decoder().items()
        }

    def literal(self, text: str) -> str:
        """A Lark string, or a token's reference if the text is a special token."""
        number = self._added.get(text)
        return json.dumps(text, ensure_ascii=False) if number is None else f"<[{number}]>"

    def until(self, mark: str) -> str:
        """A rule `before` in Lark's form: any text up to a mark, and that."""
        if mark in self._added:
            return f"before: /(.|\\n)*/ {self.literal(mark)}"
        return f"before[suffix={json.dumps(mark)}]: /(.|\\n)*/"

    def compiled(self, grammars: Sequence[dict[str, Any]]) -> LLMatcher:
        """A matcher of the first grammar, which may refer to the others.

        Raises:
            ApiError: for a grammar that is not valid, cannot be met or is too large.
        """
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**_LIMITS)
        matcher = LLMatcher(
            self._tokens, json.dumps({"grammars": grammars}), log_level=0, limits=limits
        )
        matcher.compute_bitmask()
        _check(matcher)
        return matcher


class GrammarMask:
    """A mask hook: the tokens that a grammar allows after those of an answer.

    Args:
        matcher: of the grammar, at its start.
        num_prompt_tokens: tokens before the answer.
    """

    def __init__(self, matcher: LLMatcher, num_prompt_tokens: int) -> None:
        self._start, self._num_prompt_tokens = matcher, num_prompt_tokens
        self._matcher, self._tokens = matcher.deep_copy(), list[int]()

    def __call__(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        import torch

        self._go_to(committed, drafted)
        allowed = bytearray(self._matcher.compute_logit_bias())
        _check(self._matcher)
        return torch.frombuffer(allowed, dtype=torch.uint8) > 0

    def forced(self, committed: Sequence[int]) -> list[int]:
        """The tokens next to come, as far as the grammar leaves no choice."""
        self._go_to(committed, ())
        return list(self._matcher.compute_ff_tokens())

    def _go_to(self, committed: Sequence[int], drafted: Sequence[int]) -> None:
        """Have the matcher behind these tokens, from where it is."""
        tokens = [*committed[self._num_prompt_tokens :], *drafted]
        # Nearly always it stands behind committed tokens, and only drafted ones differ.
        before = min(len(tokens) - len(drafted), len(self._tokens))
        before = before if self._tokens[:before] == tokens[:before] else 0
        pairs = zip(self._tokens[before:], tokens[before:], strict=False)
        shared = before + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        back = len(self._tokens) - shared
        if self._matcher.is_error() or (back and not self._matcher.rollback(back)):
            self._matcher, shared = self._start.deep_copy(), 0
        taken = self._matcher.try_consume_tokens(tokens[shared:])
        self._tokens = tokens[: shared + taken]
        _check(self._matcher)
        if len(self._tokens) < len(tokens):
            raise ApiError(400, "the grammar does not allow the text so far.", code="grammar")


def _check(matcher: LLMatcher) -> None:
    """Raise the error of a matcher.

    Raises:
        ApiError: if it has one.
    """
    if matcher.is_error():
        reason = matcher.get_error().partition("\n<")[0].strip().rstrip(".")[:300]
        message = f"the grammar cannot be met or is too large: {reason}."
        raise ApiError(400, message, code="grammar")
