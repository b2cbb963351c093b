"""A sample of a user's prompts, as a model's tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.bench.workloads import built_in, in_turns, read_workload
from forerun.engine.chat import ChatTemplate
from forerun.engine.engine import Engine
from forerun.errors import PromptError
from forerun.training.questions import Question
from forerun.tuning.workbench import Prompt


@dataclass(frozen=True)
class Sample:
    """Questions by category in turns.

    Args:
        questions: whose first turns are asked.
        system: a message before each; None leaves that to the chat template.
    """

    questions: tuple[Question, ...]
    system: str | None = None

    @classmethod
    def read(
        cls, paths: Sequence[str | os.PathLike[str]], limit: int, system: str | None = None
    ) -> Sample:
        """The first questions of all categories, of files and folders, or else of those that come along.

        Raises:
            PromptError: for a file that cannot be read or holds no questions, naming the line.
        """
        questions = read_workload(paths) if paths else built_in()
        return cls(tuple(in_turns(questions)[:limit]), system)

    def encode(self, engine: Engine, max_tokens: int) -> list[Prompt]:
        """The prompts as the model of an engine reads them; those that leave no room for as many tokens
        are left out.

        Raises:
            PromptError: where none is left.
        """
        template = ChatTemplate.of(engine.tokenizer)
        prompts = []
        for number, question in enumerate(self.questions):
            token_ids = self._token_ids(engine, template, question)
            if 0 < len(token_ids) <= engine.max_context - max_tokens:
                prompts.append(Prompt(str(number), question.category, tuple(token_ids)))
        if not prompts:
            raise PromptError(
                f"no prompt leaves room for {max_tokens} tokens in a context of {engine.max_context}; "
                "shorten the prompts, or lower --max-tokens."
            )
        return prompts

    def _token_ids(
        self, engine: Engine, template: ChatTemplate | None, question: Question
    ) -> list[int]:
        text = question.turns[0]
        if template is None:
            assert engine.tokenizer is not None, "loaded by name"
            return list(engine.tokenizer.encode(text))
        system = question.system if question.system is not None else self.system
        before = [] if system is None else [{"role": "system", "content": system}]
        return template.encode([*before, {"role": "user", "content": text}])
