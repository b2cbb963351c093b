"""Answers many questions with a model, given ones or its own, with all rows of its engine busy.

The output depends on the questions and the settings alone. Conversations are numbered, each request has
its own seed, repeated prompts are recognized in the order of the numbers, and conversations are returned
in that order.
"""

from __future__ import annotations

from collections import deque
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
from forerun.training.overlap import KeptOut, key_of, normalized
from forerun.training.settings import DataSettings

# A request's seed is made of the settings' seed, the conversation's number and the part drawn.
_ITEM_BITS, _PART_BITS = 32, 8
# Placeholder for the user's text, at which the rendered template is cut.
_MARK = "forerun-user-text"
# Prompts that the model writes keep this most likely share.
_PROMPT_TOP_P = 0.95
# Minimum tokens that a base model writes of a text before its "answer" begins.
_SHORTEST_TEXT = 8


@dataclass
class Exchange:
    """A question and its answers so far.

    Args:
        item: number of the conversation.
        question: the question; None until the model has written it.
        written: completion in which the model wrote the question.
        prompt_ids: prompt of the turn to answer, as token ids.
        messages: messages up to that turn.
        records: one record for each answer.
        skipped: reason for which the conversation is left out; empty if it is not.
        done: True if no further answer will come.
    """

    item: int
    question: Question | None = None
    written: Completion | None = None
    prompt_ids: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    skipped: str = ""
    done: bool = False


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
        self._jobs: dict[int, Exchange] = {}
        # Both in the order of their numbers: not yet returned, and not yet written by the model.
        self._open: deque[Exchange] = deque()
        self._undecided: deque[Exchange] = deque()
        self._ready: deque[Exchange] = deque()
        self._next = self._wanted = 0
        self._next_seed = 0
        engine.use_seeds(lambda: self._next_seed)

    def conversations(self, first: int, wanted: int) -> Iterator[Exchange]:
        """Yield conversations in order, starting with number `first`, skipped ones included.

        Ends after `wanted` answered conversations, or after the last question.

        Raises:
            ForerunError: the error that a request failed with.
        """
        self._next, self._wanted = first, wanted
        try:
            while self._fill():
                self._engine.step()
                for number in self._engine.ended:
                    self._end(self._jobs.pop(number), self._engine.completion(number))
                yield from self._finished()
            yield from self._finished()
        finally:
            for number in self._jobs:
                self._engine.cancel(number)
                self._engine.completion(number)
            self._jobs.clear()

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

    def _fill(self) -> bool:
        """Start requests in all free rows; True if any request runs."""
        while len(self._jobs) < self._engine.max_batch_size:
            conversation = self._ready.popleft() if self._ready else self._begin()
            if conversation is None:
                break
            self._start(conversation)
        return bool(self._jobs)

    def _begin(self) -> Exchange | None:
        """The next conversation to start a request for; None if there is none now."""
        # The model never writes more prompts at once than answers are still wanted.
        while self._wanted > len(self._undecided):
            questions, item = self._questions, self._next
            if questions is not None and item >= len(questions):
                return None
            self._next += 1
            conversation = Exchange(item, None if questions is None else questions[item])
            self._open.append(conversation)
            if questions is None:
                self._undecided.append(conversation)
                return conversation
            self._decide(conversation)
            if self._ready:
                return self._ready.popleft()
        return None

    def _start(self, conversation: Exchange) -> None:
        writes = conversation.question is None
        part = 0 if writes else 1 + len(conversation.records)
        self._next_seed = self._seed(conversation.item, part)
        params = self._writing(conversation.item) if writes else self._answering(conversation.item)
        prompt = list(self._opening.token_ids) if writes else conversation.prompt_ids
        self._jobs[self._engine.add(prompt, params)] = conversation

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

    def _end(self, conversation: Exchange, completion: Completion) -> None:
        """Process the completion of a conversation's request."""
        if completion.error is not None:
            raise completion.error
        if conversation.question is not None:
            self._answered(conversation, completion)
            return
        conversation.written = completion
        while self._undecided and self._undecided[0].written is not None:
            conversation = self._undecided.popleft()
            self._read_written(conversation, conversation.written)

    def _read_written(self, conversation: Exchange, written: Completion | None) -> None:
        """Make the text that the model wrote the question."""
        assert written is not None
        stopped = written.finish_reason is FinishReason.STOP
        if self._template is None:
            conversation.question = Question((written.text,), "sampled", "sampled")
            conversation.prompt_ids = [*written.prompt_ids, *written.token_ids]
            conversation.skipped = "ended" if stopped else ""
        else:
            conversation.question = Question((written.text.strip(),), "magpie", "magpie")
            conversation.skipped = "" if stopped else "unfinished"
        self._decide(conversation)

    def _decide(self, conversation: Exchange) -> None:
        """Queue a conversation for its answer, or mark it as skipped."""
        conversation.skipped = conversation.skipped or self._objection(conversation)
        conversation.done = bool(conversation.skipped)
        if not conversation.done:
            self._wanted -= 1
            self._ready.append(conversation)

    def _objection(self, conversation: Exchange) -> str:
        question = conversation.question
        assert question is not None
        if not all(normalized(turn) for turn in question.turns):
            return "empty"
        system = self._system if question.system is None else question.system
        conversation.messages = asking(question.turns[0], system)
        try:
            conversation.prompt_ids = conversation.prompt_ids or self._encoded(conversation)
        except PromptError:
            return "refused"
        if not self._fits(conversation):
            return "too_long"
        if any(self._kept_out.holds(turn) for turn in question.turns):
            return "kept_out"
        key = key_of(question.text)
        if key in self._seen:
            return "duplicate"
        self._seen.add(key)
        return ""

    def _encoded(self, conversation: Exchange) -> list[int]:
        if self._template is not None:
            return self._template.encode(conversation.messages, self._variables)
        return encode_text(self._tokenizer, str(conversation.messages[-1]["content"]))

    def _fits(self, conversation: Exchange) -> bool:
        room = self._engine.max_context - len(conversation.prompt_ids)
        return bool(conversation.prompt_ids) and room >= self._settings.max_tokens

    def _answered(self, conversation: Exchange, completion: Completion) -> None:
        """Record an answer, and continue with the next turn if there is one."""
        question, turn = conversation.question, len(conversation.records)
        assert question is not None
        conversation.records.append(
            Record(
                source=question.source,
                category=question.category,
                prompt_ids=list(completion.prompt_ids),
                answer_ids=list(completion.token_ids),
                temperature=self._settings.temperature_of(conversation.item),
                finish=str(completion.finish_reason),
                seed=self._seed(conversation.item, 1 + turn),
                prompt=question.turns[turn],
                answer=completion.text,
                item=conversation.item,
                turn=turn,
            )
        )
        # A base model has no turns, and a conversation does not continue after an answer that was cut.
        cut = completion.finish_reason is not FinishReason.STOP or self._template is None
        if cut or turn + 1 == len(question.turns) or not self._next_turn(conversation, completion):
            conversation.done = True
            return
        conversation.records[-1] = replace(conversation.records[-1], more=True)
        # It goes first, because its row still holds the earlier turns.
        self._ready.appendleft(conversation)

    def _next_turn(self, conversation: Exchange, completion: Completion) -> bool:
        """Set the prompt of the next turn; False if that turn cannot be asked."""
        assert conversation.question is not None
        asked = conversation.question.turns[len(conversation.records)]
        conversation.messages = [
            *conversation.messages,
            {"role": "assistant", "content": completion.text},
            {"role": "user", "content": asked},
        ]
        try:
            conversation.prompt_ids = self._encoded(conversation)
        except PromptError:
            return False
        return self._fits(conversation)

    def _finished(self) -> Iterator[Exchange]:
        """Yield the next conversations in order, as far as they are done."""
        while self._open and self._open[0].done:
            yield self._open.popleft()


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
    before, found, after = text.partition(_MARK)
    if not found or _MARK in after:
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
