"""One target, loaded once, and an engine for each setting."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

from forerun.bench.contestants import Drafting
from forerun.bench.runs import EncodedPrompt, run_plain
from forerun.bench.settings import Setting
from forerun.contracts import Policy
from forerun.engine.chat import ChatTemplate, encode_text
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.model_options import CONTEXT_STEP
from forerun.errors import PromptError
from forerun.files import CACHE_VARIABLE
from forerun.measure.questions import Question
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.progress import report


@dataclass(frozen=True)
class Prepared:
    """Prompts that fit the context, and the number of turns that do not.

    Args:
        prompts: in the order of the questions, a turn each.
        too_long: turns that leave no room for an answer in the context.
        template: whether the model's chat template made them.
    """

    prompts: tuple[EncodedPrompt, ...]
    too_long: int
    template: bool


def prepare(
    engine: Engine,
    questions: Sequence[Question],
    params: SamplingParams,
    *,
    raw: bool = False,
    system: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Prepared:
    """Prompts of questions: one for each turn, up to the first turn that does not fit the context.

    Args:
        engine: answers earlier turns, greedily and plainly, so that all methods see the same text.
        params: of the answers.
        raw: send texts as they are, without the chat template.
        system: a system message before those questions that have none.
        variables: of the chat template.

    Raises:
        PromptError: where none of them fits the context.
    """
    template = None if raw else ChatTemplate.of(engine.tokenizer)
    greedy = replace(params, temperature=0.0, seed=None)

    def encode(messages: list[dict[str, str]]) -> tuple[int, ...]:
        if template is None:
            text = "\n\n".join(message["content"] for message in messages)
            return tuple(encode_text(engine.tokenizer, text))
        return tuple(template.encode(messages, variables))

    prompts: list[EncodedPrompt] = []
    too_long = 0
    for number, question in enumerate(questions):
        first = question.system or system
        messages = [{"role": "system", "content": first}] if first else []
        several = len(question.turns) > 1
        for turn, text in enumerate(question.turns):
            messages.append({"role": "user", "content": text})
            token_ids = encode(messages)
            if engine.max_context - len(token_ids) < (params.max_tokens or 1):
                too_long += len(question.turns) - turn
                break
            name = f"{question.question_id}/{turn + 1}" if several else question.question_id
            prompts.append(EncodedPrompt(name, question.category, token_ids, question.prediction))
            if turn + 1 < len(question.turns):
                answer = run_plain(engine, prompts[-1:], greedy).completions[0].text
                messages.append({"role": "assistant", "content": answer})
        report("preparing prompts", number + 1, len(questions))
    if not prompts:
        raise PromptError(
            f"no prompt leaves room for {params.max_tokens} tokens of output in a context of "
            f"{engine.max_context}; raise --max-context or lower --max-tokens."
        )
    return Prepared(tuple(prompts), too_long, template is not None)


@dataclass
class Workshop:
    """Maker of engines; within `forerun.models.checkpoint.loading_once` all of them share one target.

    Args:
        checkpoint: of the target.
        placement: dtype, device, backend and kv_dtype, as `forerun.load` takes them.
        max_context: of prompt and output at most; None for the usual one.
    """

    checkpoint: Checkpoint
    placement: dict[str, Any]
    max_context: int | None = None

    def prepare(
        self, questions: Sequence[Question], params: SamplingParams, **options: Any
    ) -> Prepared:
        """Prompts of questions; `options` go to `prepare`."""
        return prepare(self._engine(False, self.max_context, 1), questions, params, **options)

    def engine(
        self,
        speculative: Any,
        prepared: Prepared,
        params: SamplingParams,
        batch: int,
        policy: Policy | None = None,
    ) -> Engine:
        """An engine with room for the prompts and their outputs; `speculative` as `forerun.load` takes it."""
        longest = max(len(prompt.token_ids) for prompt in prepared.prompts)
        needed = -(-(longest + (params.max_tokens or 1)) // CONTEXT_STEP) * CONTEXT_STEP
        most = self.max_context or self.checkpoint.summary.max_context
        return self._engine(speculative, min(needed, most), batch, policy)

    @contextmanager
    def drafting(
        self, settings: Sequence[Setting], prepared: Prepared, params: SamplingParams, batch: int
    ) -> Iterator[list[Drafting]]:
        """Engines of the settings as contestants, closed at the end. Their policies keep on disk what
        they have learned; cold ones use an empty folder of their own.

        Raises:
            ForerunError: for a setting that cannot be run.
        """
        made = []
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="forerun-bench-"))
            for number, setting in enumerate(settings):
                with _learning_in(folder) if setting.cold else nullcontext():
                    engine = self.engine(setting.config, prepared, params, batch)
                made.append(Drafting(setting, stack.enter_context(engine)))
                report("loading drafters", number + 1, len(settings))
            yield made

    def _engine(
        self, speculative: Any, context: int | None, batch: int, policy: Policy | None = None
    ) -> Engine:
        return load(
            self.checkpoint,
            speculative,
            policy=policy,
            max_context=context,
            max_batch_size=batch,
            prefix_reuse=False,
            **self.placement,
        )


@contextmanager
def _learning_in(folder: str) -> Iterator[None]:
    """Context in which the policies of new engines keep what they learn in another folder."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[CACHE_VARIABLE]
        os.environ |= {} if before is None else {CACHE_VARIABLE: before}
