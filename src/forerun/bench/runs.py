"""Prompts of questions, and runs: requests decoded side by side, and when their tokens came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from forerun.core import Hints, Stats
from forerun.engine.chat import ChatTemplate, encode_text
from forerun.engine.engine import Engine
from forerun.engine.requests import Completion
from forerun.errors import PromptError
from forerun.measure.paired import alone, empty_caches
from forerun.measure.questions import Question
from forerun.measure.turns import at_length
from forerun.params import SamplingParams
from forerun.progress import report


@dataclass(frozen=True)
class EncodedPrompt:
    """One request of a workload.

    Args:
        prompt_id: unique in its category.
        category: of the workload.
        token_ids: as the model gets them.
        prediction: an expected output, for drafters that read one.
    """

    prompt_id: str
    category: str
    token_ids: tuple[int, ...]
    prediction: str = ""


@dataclass(frozen=True)
class Timed:
    """A run of some requests at once.

    Args:
        completions: the outputs, in the order of the prompts.
        arrivals: seconds since the start at which tokens came, for each request.
        seconds: time until the last token of all.
    """

    completions: tuple[Completion, ...]
    arrivals: tuple[tuple[float, ...], ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens that were emitted, by their ids."""
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def stats(self) -> Stats:
        """Counters of all requests."""
        return Stats.total(completion.stats for completion in self.completions)


def run_drafting(
    engine: Engine,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    speculative: bool = True,
) -> Timed:
    """Decode prompts at once from empty caches, in rounds; those of an interrupted run are cancelled.

    Each has a namespace of its own: what a drafter remembers of another run would help this one.

    Args:
        speculative: False decodes plainly, in rounds without drafts.

    Raises:
        Exception: that ended a request.
    """
    empty_caches(engine)
    started = perf_counter()
    arrivals: dict[int, list[float]] = {}
    for prompt in prompts:
        hints = alone(Hints(prompt.prediction))
        number = engine.add(prompt.token_ids, params, speculative=speculative, hints=hints)
        arrivals[number] = []
    try:
        while engine.has_work:
            events = engine.step()
            now = perf_counter() - started
            for number in {event.request_id for event in events}:
                arrivals[number].append(now)
    except BaseException:
        for number in arrivals:
            engine.cancel(number)
        raise
    seconds = perf_counter() - started
    completions = tuple(map(engine.completion, arrivals))
    for completion in completions:
        if completion.error is not None:
            raise completion.error
    return Timed(completions, tuple(map(tuple, arrivals.values())), seconds)


def run_plain(engine: Engine, prompts: Sequence[EncodedPrompt], params: SamplingParams) -> Timed:
    """Decode prompts without any drafter: one by the plain loop, several at once in rounds."""
    if len(prompts) > 1:
        return run_drafting(engine, prompts, params, speculative=False)
    empty_caches(engine)
    arrivals = []
    started = perf_counter()
    stream = engine.stream_plain(prompts[0].token_ids, params)
    for _ in stream:
        arrivals.append(perf_counter() - started)
    seconds = perf_counter() - started
    return Timed((stream.completion,), (tuple(arrivals),), seconds)


def nearly(text: str) -> str:
    """A text with one line in ten changed, as a stand-in for an expected output."""
    lines = text.splitlines(keepends=True)
    return "".join(f"# {line}" if number % 10 == 9 else line for number, line in enumerate(lines))


def predicted(engine: Engine, prompt: EncodedPrompt, params: SamplingParams) -> EncodedPrompt:
    """A prompt with a prediction: plain greedy decoding's own output with one line in ten changed."""
    greedy = replace(params, temperature=0.0, seed=None)
    return replace(
        prompt, prediction=nearly(run_plain(engine, [prompt], greedy).completions[0].text)
    )


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


@dataclass(frozen=True)
class Side:
    """Figures of one run, as a file keeps them.

    Args:
        tokens: number of tokens of all requests.
        seconds: time until the last token, prefill and drafting included.
        first: seconds to the first token, the median over the requests; None if unknown.
        gaps: milliseconds between arrivals of tokens, of all requests one after the other.
        stages: seconds by stage; host is the time in none of the others.
    """

    tokens: PositiveInt
    seconds: Annotated[float, Field(gt=0, lt=math.inf)]
    first: float | None
    gaps: tuple[float, ...]
    stages: dict[str, float]

    @property
    def rate(self) -> float:
        """Generated tokens a second."""
        return self.tokens / self.seconds

    def seconds_for(self, tokens: int) -> float:
        """Seconds of an output of `tokens` tokens at this run's speed."""
        return at_length(self.seconds, self.stages.get("prefill", 0.0), self.tokens, tokens)


def side_of(run: Timed) -> Side:
    """The figures of a run."""
    stats = run.stats
    stages = {
        "prefill": stats.prefill_seconds,
        "draft": stats.draft_seconds,
        "target": stats.target_seconds,
        "verify": stats.verify_seconds,
    }
    if not stats.target_seconds:
        # The plain loop counts no stages of its rounds.
        stages["target"] = stats.seconds
    stages["host"] = max(0.0, run.seconds - sum(stages.values()))
    firsts = sorted(arrivals[0] for arrivals in run.arrivals if arrivals)
    return Side(
        tokens=run.tokens,
        seconds=run.seconds,
        first=firsts[len(firsts) // 2] if firsts else None,
        gaps=tuple(
            round(1e3 * (later - sooner), 3)
            for arrivals in run.arrivals
            for sooner, later in pairwise(arrivals)
        ),
        stages={name: round(seconds, 7) for name, seconds in stages.items()},
    )
