"""Exactness by equality: compares greedy and seeded outputs with plain decoding's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from forerun.core import NO_HINTS, Exactness, Hints
from forerun.engine.engine import Engine
from forerun.measure.attribution import DEFECT, Difference, first_difference
from forerun.params import SamplingParams
from forerun.progress import report
from forerun.proof.effort import Allowance, ProofOutputs

# Rules under which a seed gives plain decoding's tokens; under others it only makes a run repeatable.
SEEDED_RULES = ("auto", "coupled")


@dataclass(frozen=True)
class PromptDifference:
    """The first difference between the output after a prompt and plain decoding's.

    Args:
        prompt: index of the prompt.
        difference: the difference with its margin, and whether numerics explain it.
    """

    prompt: int
    difference: Difference


@dataclass(frozen=True)
class EqualityMode:
    """The results for all prompts in one mode of decoding.

    Args:
        name: `greedy` or `seeded`.
        prompts: number of prompts.
        tokens: number of tokens from plain decoding, over all prompts.
        identical: number of outputs that equal plain decoding's.
        differences: first differences of the others.
        defects: number of differences that numerics do not explain; all of them if the backend promises
            bitwise equality.
    """

    name: str
    prompts: int
    tokens: int
    identical: int
    differences: tuple[PromptDifference, ...]
    defects: int


@dataclass(frozen=True)
class Equality:
    """Result of comparing speculative with plain outputs.

    Args:
        passed: True if there is no defect.
        modes: greedy, and seeded if the rule promises plain decoding's tokens for a seed.
        seconds: time of the comparison.
    """

    passed: bool
    modes: tuple[EqualityMode, ...]
    seconds: float


def by_equality(engine: Engine, prompts: Sequence[list[int]], outputs: ProofOutputs) -> Equality:
    """Decode every prompt with and without speculation, and compare the outputs.

    Decoding is greedy, and also seeded if the engine's rule promises plain decoding's tokens for a seed.

    Args:
        engine: an engine with a drafter.
        prompts: token ids of the prompts.
        outputs: outputs to draw; the first prompt has their seed, every further prompt the next one. Their
            seconds limit the number of prompts.
    """
    started = perf_counter()
    base = replace(
        outputs.params, max_tokens=outputs.output_tokens, logprobs=None, stop=(), stop_token_ids=()
    )
    seeded = [replace(base, seed=outputs.seed % 2**62 + index) for index in range(len(prompts))]
    runs = {"greedy": [replace(params, temperature=0.0) for params in seeded]}
    if not base.greedy and engine.config.rejection_sample_method in SEEDED_RULES:
        runs["seeded"] = seeded
    modes: list[EqualityMode] = []
    for name, params in runs.items():
        results: list[tuple[int, Difference | None]] = []
        share = None if outputs.seconds is None else outputs.seconds / len(runs)
        allowance = Allowance(len(prompts), share)
        while size := allowance.more(len(results), len(prompts)):
            part = slice(len(results), len(results) + size)
            hints = outputs.hints[part] or [NO_HINTS] * size
            for result in _compare(engine, prompts[part], params[part], hints):
                results.append(result)
                done = len(modes) * len(prompts) + len(results)
                report("equality", done, len(runs) * len(prompts))
        modes.append(_mode(name, results, strict=engine.target.exactness is Exactness.BITWISE))
    report("equality", 1, 1)
    passed = not any(mode.defects for mode in modes)
    return Equality(passed, tuple(modes), perf_counter() - started)


def _mode(
    name: str, results: Sequence[tuple[int, Difference | None]], *, strict: bool
) -> EqualityMode:
    differences = tuple(
        PromptDifference(index, difference)
        for index, (_, difference) in enumerate(results)
        if difference is not None
    )
    return EqualityMode(
        name,
        prompts=len(results),
        tokens=sum(count for count, _ in results),
        identical=len(results) - len(differences),
        differences=differences,
        defects=sum(strict or own.difference.explanation == DEFECT for own in differences),
    )


def _compare(
    engine: Engine,
    prompts: Sequence[list[int]],
    all_params: list[SamplingParams],
    hints: Sequence[Hints],
) -> Iterator[tuple[int, Difference | None]]:
    """Number of tokens of plain decoding, and the first difference from them, for each prompt."""
    completions = engine.generate(prompts, all_params, hints=hints)
    for prompt, params, completion in zip(prompts, all_params, completions, strict=True):
        plain = [event.token_id for event in engine.stream_plain(prompt, params)]
        yield (
            len(plain),
            first_difference(
                engine.target, engine.tokenizer, prompt, completion.token_ids, plain, params
            ),
        )
