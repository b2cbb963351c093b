"""Answers many questions with a model, given ones or its own, lot by lot.

The output depends on the questions and the settings alone, not on the size of a lot: conversations are
numbered, each request has its own seed, and repeated prompts are recognized in the order of the numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.core import FinishReason
from forerun.engine.chat import ChatTemplate, Message, encode_text
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.errors import PromptError
from forerun.measure.questions import Question
from forerun.params import SamplingParams
from forerun.training.conversations import Record
from forerun.training.settings import DataSettings

# A request's seed is made of the settings' seed, the conversation's number and the part drawn.
_ITEM_BITS, _PART_BITS = 32, 8
# Conversations answered together for each row of the engine: the last rows of each lot run alone.
_LOT = 4
# Placeholder for the user's text, at which the rendered template is cut.
_MARK = "forerun-user-text"
# Prompts that the model writes keep this most likely share.
_PROMPT_TOP_P = 0.95
# Minimum tokens that a base model writes of a text before its "answer" begins.
_SHORTEST_TEXT = 8
# Words in a row that identify a text (Brown et al., arXiv 2005.14165, appendix C).
LONGEST_RUN = 13
# A question of fewer words is kept out only if it is the whole prompt.
SHORTEST_RUN = 4
# Scripts without spaces: every character is a word.
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")


@dataclass
class Exchange:
    """A question and its answers so far.

    Args:
        item: number of the conversation.
        question: the question.
        prompt_ids: prompt of the turn to answer, as token ids.
        messages: messages up to that turn.
        records: one record for each answer.
        skipped: reason for which the conversation is left out; empty if it is not.
    """

    item: int
    question: Question
    prompt_ids: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    skipped: str = ""


class Answering:
    """Runs an engine that answers questions.

    Args:
        engine: an engine without a drafter; from now on it draws with seeds set here.
        settings: sampling settings and limits.
        questions: questions to answer; None lets the model write them.
        system, variables: system message and variables of the chat template.
        kept_out: questions that must not be asked.
        seen: keys of prompts that have occurred before; see `key_of`.

    Raises:
        ForerunError: for a system message or variables that the template does not take.
    """

    def __init__(
        self,
        engine: Engine,
        settings: DataSettings,
        questions: Sequence[Question] | None,
        system: str | None,
        variables: Mapping[str, Any],
        kept_out: KeptOut,
        seen: set[str],
    ) -> None:
        self._engine, self._settings, self._questions = engine, settings, questions
        self._system, self._variables = system, variables
        self._kept_out, self._seen = kept_out, seen
        self._tokenizer: Any = engine.tokenizer
        self._template = ChatTemplate.of(self._tokenizer)
        self._opening = self._find_opening()

    def conversations(self, first: int, wanted: int) -> Iterator[Exchange]:
        """Yield conversations in order, starting with number `first`, skipped ones included.

        Ends after `wanted` answered conversations, or after the last question.

        Raises:
            ForerunError: the error that a request failed with.
        """
        while wanted > 0:
            count = min(wanted, _LOT * self._engine.max_batch_size)
            if self._questions is not None:
                count = min(count, len(self._questions) - first)
            if count <= 0:
                return
            lot = self._ask(range(first, first + count))
            first += count
            for exchange in lot:
                exchange.skipped = exchange.skipped or self._objection(exchange)
            open_turns = [exchange for exchange in lot if not exchange.skipped]
            wanted -= len(open_turns)
            while open_turns:
                open_turns = self._answer(open_turns)
            yield from lot

    def _find_opening(self) -> Opening:
        if self._template is None:
            if self._system is not None or self._variables:
                raise PromptError(
                    "a system message and template variables need a chat template, and the tokenizer has "
                    "none (a base model); leave them out."
                )
            return text_opening(self._tokenizer, self._engine.eos_token_ids)
        if self._questions is None:
            return chat_opening(self._tokenizer, self._template, self._system, self._variables)
        # Raise now for a template that would refuse every question.
        self._template.encode(asking("Hello", self._system), self._variables)
        return Opening(())

    def _ask(self, items: range) -> list[Exchange]:
        """Conversations with their questions, which the model writes now if none are given."""
        if self._questions is not None:
            return [Exchange(item, self._questions[item]) for item in items]
        completions = self._complete(
            [self._seed(item, 0) for item in items],
            [list(self._opening.token_ids)] * len(items),
            [self._writing(item) for item in items],
        )
        return [self._written(item, own) for item, own in zip(items, completions, strict=True)]

    def _answer(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Answer the next turn of each conversation; returns those that have another turn."""
        completions = self._complete(
            [self._seed(exchange.item, 1 + len(exchange.records)) for exchange in exchanges],
            [exchange.prompt_ids for exchange in exchanges],
            [self._answering(exchange.item) for exchange in exchanges],
        )
        pairs = zip(exchanges, completions, strict=True)
        return [exchange for exchange, completion in pairs if self._goes_on(exchange, completion)]

    def _complete(
        self,
        seeds: Sequence[int],
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
    ) -> list[Completion]:
        following = iter(seeds)
        self._engine.use_seeds(lambda: next(following))
        return self._engine.generate(prompts, params)

    def _seed(self, item: int, part: int) -> int:
        """Seed of a request; part 0 of a conversation is the question that the model writes."""
        return (((self._settings.seed << _ITEM_BITS) + item) << _PART_BITS) + part

    def _writing(self, item: int) -> SamplingParams:
        most = self._settings.prompt_tokens
        if self._template is None:
            # The texts of a base model are cut at varying lengths, so answers begin at places of all kinds.
            shortest = min(_SHORTEST_TEXT, most)
            most = shortest + item * 37 % (most - shortest + 1)
        return SamplingParams(
            temperature=1.0,
            top_p=_PROMPT_TOP_P,
            max_tokens=most,
            stop=self._opening.stop,
            stop_token_ids=self._opening.stop_token_ids,
        )

    def _answering(self, item: int) -> SamplingParams:
        settings = self._settings
        return SamplingParams(
            temperature=settings.temperature_of(item),
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
        )

    def _written(self, item: int, written: Completion) -> Exchange:
        """A conversation whose question is the text that the model wrote."""
        stopped = written.finish_reason is FinishReason.STOP
        if self._template is None:
            question = Question((written.text,), "sampled", "sampled")
            prompt_ids = [*written.prompt_ids, *written.token_ids]
            return Exchange(item, question, prompt_ids, skipped="ended" if stopped else "")
        question = Question((written.text.strip(),), "magpie", "magpie")
        return Exchange(item, question, skipped="" if stopped else "unfinished")

    def _objection(self, exchange: Exchange) -> str:
        """Reason for which a conversation is left out; empty if it is not."""
        question = exchange.question
        if not all(normalized(turn) for turn in question.turns):
            return "empty"
        system = self._system if question.system is None else question.system
        exchange.messages = asking(question.turns[0], system)
        try:
            exchange.prompt_ids = exchange.prompt_ids or self._encoded(exchange)
        except PromptError:
            return "refused"
        if not self._fits(exchange):
            return "too_long"
        if any(self._kept_out.holds(turn) for turn in question.turns):
            return "kept_out"
        key = key_of(question.text)
        if key in self._seen:
            return "duplicate"
        self._seen.add(key)
        return ""

    def _encoded(self, exchange: Exchange) -> list[int]:
        if self._template is not None:
            return self._template.encode(exchange.messages, self._variables)
        return encode_text(self._tokenizer, str(exchange.messages[-1]["content"]))

    def _fits(self, exchange: Exchange) -> bool:
        room = self._engine.max_context - len(exchange.prompt_ids)
        return bool(exchange.prompt_ids) and room >= self._settings.max_tokens

    def _goes_on(self, exchange: Exchange, completion: Completion) -> bool:
        """Record an answer, and set the prompt of the next turn; False if there is none."""
        question, turn = exchange.question, len(exchange.records)
        record = Record(
            source=question.source,
            category=question.category,
            prompt_ids=list(completion.prompt_ids),
            answer_ids=list(completion.token_ids),
            temperature=self._settings.temperature_of(exchange.item),
            finish=str(completion.finish_reason),
            seed=self._seed(exchange.item, 1 + turn),
            prompt=question.turns[turn],
            answer=completion.text,
            item=exchange.item,
            turn=turn,
        )
        # A base model has no turns, and a conversation does not continue after an answer that was cut.
        cut = completion.finish_reason is not FinishReason.STOP or self._template is None
        last = cut or turn + 1 == len(question.turns)
        more = not last and self._next_turn(exchange, completion.text, question.turns[turn + 1])
        exchange.records.append(replace(record, more=more))
        return more

    def _next_turn(self, exchange: Exchange, answer: str, question: str) -> bool:
        """Set the prompt of the next turn; False if that turn cannot be asked."""
        turn = [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        exchange.messages = [*exchange.messages, *turn]
        try:
            exchange.prompt_ids = self._encoded(exchange)
        except PromptError:
            return False
        return self._fits(exchange)


@dataclass(frozen=True)
class Opening:
    """The beginning of a prompt that a model writes.

    Args:
        token_ids: tokens that the model continues.
        stop_token_ids, stop: tokens and strings that end the prompt, besides the end of a text.
    """

    token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


def asking(question: str, system: str | None) -> list[Message]:
    """Messages of a conversation that begins with a question."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": question}]


def chat_opening(
    tokenizer: Any, template: ChatTemplate, system: str | None, variables: Mapping[str, Any]
) -> Opening:
    """The chat template up to the user's text, as an opening.

    The prompt ends at the template's first token after the text. If that is no special token, the prompt
    ends at the first word after the text.

    Raises:
        PromptError: for a template that refuses the messages, or does not show the text exactly once.
        UnknownNameError, ConfigError: for a variable that the template does not read.
    """
    text = template.render(asking(_MARK, system), variables)
    before, mark, after = text.partition(_MARK)
    if not mark or _MARK in after:
        raise PromptError(
            "the chat template does not write a user's text once and as it is, so the model cannot go on "
            "from there; give a file of prompts."
        )
    # A space before the text belongs to the text's first token; line breaks do not.
    token_ids = tuple(tokenizer.encode(before.rstrip(" "), add_special_tokens=False))
    if not token_ids:
        return text_opening(tokenizer, ())
    behind = tokenizer.encode(after, add_special_tokens=False)
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", ())}
    if behind and behind[0] in special:
        return Opening(token_ids, (behind[0],))
    return Opening(token_ids, (), tuple(after.split()[:1]))


def text_opening(tokenizer: Any, eos_token_ids: Iterable[int]) -> Opening:
    """The opening of a text for a base model: BOS, else an end-of-text token, else a line break."""
    bos = getattr(tokenizer, "bos_token_id", None)
    first = [bos] if bos is not None else sorted(eos_token_ids)[:1]
    return Opening(tuple(first or encode_text(tokenizer, "\n")))


def normalized(text: str) -> str:
    """A text without differences of case, spaces and Unicode forms."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> list[str]:
    """The words of a text, normalized, without punctuation."""
    return _WORD.findall(normalized(text))


def key_of(text: str) -> str:
    """Words of a text in one string, equal for prompts that repeat each other."""
    return " ".join(words_of(text)) or normalized(text)


class KeptOut:
    """Questions that training must not see.

    A text matches a question if the two are equal after `normalized`, or share 13 words in a row. A
    question of 4 to 12 words matches if all its words occur in a row.

    Args:
        questions: texts of the questions, every turn by itself.
    """

    def __init__(self, questions: Iterable[str]) -> None:
        self._texts: set[str] = set()
        self._runs: dict[int, set[str]] = {}
        for question in questions:
            self._texts.add(normalized(question))
            words = words_of(question)
            length = min(len(words), LONGEST_RUN)
            if length >= SHORTEST_RUN:
                self._runs.setdefault(length, set()).update(_runs(words, length))

    def holds(self, text: str) -> bool:
        """True if a text is, or contains, one of the questions."""
        if normalized(text) in self._texts:
            return True
        words = words_of(text)
        return any(
            not known.isdisjoint(_runs(words, length)) for length, known in self._runs.items()
        )


def _runs(words: list[str], length: int) -> Iterator[str]:
    """All runs of `length` words."""
    return (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
