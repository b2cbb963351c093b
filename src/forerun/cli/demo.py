"""`forerun demo`: questions answered with speculation and without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forerun.cli.bars import bars, waiting
from forerun.cli.output import NewOutput, Output
from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions
from forerun.engine.resolve import choose
from forerun.flags import flags_of
from forerun.options import option, options, part
from forerun.progress import say
from forerun.report.result import DEFECT_FOUND, Result

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.measure.paired import Comparison

# Pairs of runs of each question; the first is shown as it comes.
PAIRS = 3
# Tokens of a prompt at most.
LONGEST_PROMPT = 128
# Tokens of an answer unless asked otherwise; small models of code repeat themselves after more.
ANSWER_TOKENS, CODE_TOKENS = 128, 64

QUESTIONS = {
    "a summary": (
        "Summarize in two sentences: The honeybee lives in colonies of up to sixty thousand bees. Each "
        "colony has one queen, which lays all the eggs, and many workers, which collect nectar and pollen. "
        "In winter the workers form a cluster around the queen and keep her warm."
    ),
    "arithmetic": (
        "A shop sells pens at 3 dollars each and books at 12 dollars each. Ana buys 4 pens and 2 books. How "
        "much does she pay? Think step by step."
    ),
    "free chat": "Why do people keep diaries?",
}
"""Questions by kind, for models with a chat template."""
BEGINNINGS = {
    "a class": (
        "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\n"
        "    def __eq__(self, other):\n"
    ),
    "a loop": "import os\nimport sys\n\nfor name in os.listdir(",
    "a program": "import argparse\n\ndef main():\n    parser = argparse.ArgumentParser(",
}
"""Beginnings of code by kind, for other models."""


@options
class DemoRequest:
    """Answer three questions of three kinds with speculation and without.

    The tokens are the same; how much sooner do they come? Each answer is shown as it comes, marked by
    where each token came from; then both sides run again, in turn. A model without a chat template goes
    on from three beginnings of code.
    """

    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        without=[flag.name for flag in flags_of(ModelOptions) if flag.name != "model"],
    )
    max_tokens: int | None = option(
        default=None,
        ge=1,
        le=2**31,
        description=f"Of an answer at most; left out, {ANSWER_TOKENS}, or {CODE_TOKENS} of code.",
        section="Sampling",
    )


def _rates(comparisons: Iterable[Comparison]) -> dict[str, float]:
    """Tokens per second of all runs, plain and speculative, prompts included."""
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    sides = {
        "plain_tokens_per_second": [pair.plain for pair in pairs],
        "tokens_per_second": [pair.speculative for pair in pairs],
    }
    return {
        name: sum(len(run.events) for run in runs) / sum(run.seconds for run in runs)
        for name, runs in sides.items()
    }


def run(request: DemoRequest, new_output: NewOutput = Output) -> Result:
    """The rates of each answer and of all answers.

    Args:
        new_output: returns where an answer is shown as it comes.
    """
    from forerun.engine.chat import ChatTemplate

    model, max_tokens = request.model, request.max_tokens
    with waiting("starting"):
        checkpoint = model.open()
    choice = choose(SpeculativeConfig(), model.model)
    context = LONGEST_PROMPT + (max_tokens or ANSWER_TOKENS)
    with bars():
        engine = model.load(checkpoint, choice, max_context=context)
    if max_tokens is None:
        max_tokens = CODE_TOKENS if ChatTemplate.of(engine.tokenizer) is None else ANSWER_TOKENS
    answers = dict(_answered(engine, max_tokens, new_output))
    contents = [_content(kind, answer) for kind, answer in answers.items()]
    identical = all(answer.identical for answer in answers.values())
    total = {**_rates(answers.values()), "identical": identical}
    speedup = total["tokens_per_second"] / total["plain_tokens_per_second"]
    lines = [*contents, {"kind": "all", **total, "speedup": speedup}]
    return Result(
        settings={"max_tokens": max_tokens},
        answers=[_line(line) for line in lines],
        content={"method": engine.config.method, "answers": contents, **total},
        exit_code=0 if identical else DEFECT_FOUND,
        device=engine.target.device,
    )


def _answered(
    engine: Engine, max_tokens: int, new_output: NewOutput
) -> Iterator[tuple[str, Comparison]]:
    """The kind and the answer of each question; the first run of each is shown as it comes."""
    from forerun.engine.chat import ChatTemplate, encode_text
    from forerun.measure.paired import comparison_of, run_pair
    from forerun.params import SamplingParams

    template = ChatTemplate.of(engine.tokenizer)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    for kind, prompt in (BEGINNINGS if template is None else QUESTIONS).items():
        if template is None:
            token_ids = encode_text(engine.tokenizer, prompt)
        else:
            token_ids = template.encode([{"role": "user", "content": prompt}], {})
        output = new_output()
        output.prompt(prompt, apart=template is not None)
        if not output.shows_prompts:
            say(f"{kind}: {prompt}")
        output.start()
        first = run_pair(engine, token_ids, params, see=output.event)
        output.end(first.speculative.completion.text + "\n")
        more = [run_pair(engine, token_ids, params) for _ in range(PAIRS - 1)]
        yield kind, comparison_of(engine, token_ids, params, [first, *more])


def _line(content: Mapping[str, Any]) -> str:
    """A sentence on an answer, or on all of them."""
    same = "same tokens" if content["identical"] else "OTHER TOKENS"
    return (
        "{kind:<11} plain {plain_tokens_per_second:5.0f} tokens/s, speculative {tokens_per_second:5.0f}: "
        "{speedup:.2f} x, {same}".format(**content, same=same)
    )


def _content(kind: str, answer: Comparison) -> dict[str, Any]:
    completion = answer.pairs[0].speculative.completion
    return {
        "kind": kind,
        "prompt": {**QUESTIONS, **BEGINNINGS}[kind],
        "text": completion.text,
        **_rates([answer]),
        "speedup": answer.speedup,
        "identical": answer.identical,
        "stats": completion.stats.as_dict(),
    }
