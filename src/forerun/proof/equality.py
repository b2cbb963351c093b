"""Exactness by equality: greedy and seeded outputs against plain decoding's, with attribution."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from time import perf_counter

from forerun.core import NO_HINTS, Exactness, Hints
from forerun.engine.attribution import DEFECT, Difference, first_difference
from forerun.engine.engine import Engine
from forerun.params import SamplingParams

# Under these a seed gives plain decoding's tokens; under others it only makes a run repeatable.
SEEDED_RULES = ("auto", "coupled")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PromptDifference:
    """Where the output after a prompt first differs from plain decoding's.

    Args:
        prompt: its index.
        difference: with the margin there, and whether numerics explain it.
    """

    prompt: int
    difference: Difference


@dataclass(frozen=True)
class Mode:
    """All prompts in one way of decoding.

    Args:
        name: `greedy` or `seeded`.
        prompts: compared.
        tokens: of plain decoding, over all of them.
        differences: of the outputs that are not identical.
        strict: whether the backend promises bitwise equality, so that no difference is excused.
    """

    name: str
    prompts: int
    tokens: int
    differences: tuple[PromptDifference, ...]
    strict: bool

    @property
    def identical(self) -> int:
        return self.prompts - len(self.differences)

    @property
    def defects(self) -> int:
        return sum(self.strict or one.difference.explanation == DEFECT for one in self.differences)


@dataclass(frozen=True)
class Equality:
    """What the comparison came to.

    Args:
        modes: greedy and, where seeds are promised anything, seeded.
        seconds: it took.
    """

    modes: tuple[Mode, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """No defect; on a bitwise backend that is no difference at all."""
        return not any(mode.defects for mode in self.modes)


def by_equality(
    engine: Engine,
    prompts: Several[list[int]],
    params: SamplingParams,
    output_tokens: int,
    seed: int,
    progress: Progress | None = None,
    hints: Several[Hints] | None = None,
) -> Equality:
    """Decode every prompt with and without speculation: greedily, and with a seed where the engine's
    rule promises plain decoding's tokens for it.

    Args:
        engine: with a drafter.
        prompts: token ids.
        params: how tokens are drawn; seeds and lengths are set here.
        output_tokens: of each output at most.
        seed: of the first prompt, one more for each after it.
        progress: told how many outputs are done, of how many.
        hints: of each prompt.
    """
    told = hints or [NO_HINTS] * len(prompts)
    started = perf_counter()
    base = replace(params, max_tokens=output_tokens, logprobs=None, stop=(), stop_token_ids=())
    each = [replace(base, seed=seed % 2**62 + index) for index in range(len(prompts))]
    runs = [("greedy", [replace(one, temperature=0.0) for one in each])]
    if not params.greedy and engine.config.rejection_sample_method in SEEDED_RULES:
        runs.append(("seeded", each))
    modes = []
    for done, (name, several) in enumerate(runs):

        def tell(count: int, done: int = done) -> None:
            if progress is not None:
                progress(done * len(prompts) + count, len(runs) * len(prompts))

        modes.append(_compare(name, engine, prompts, several, told, tell))
    return Equality(tuple(modes), perf_counter() - started)


def _compare(
    name: str,
    engine: Engine,
    prompts: Several[list[int]],
    each: list[SamplingParams],
    hints: Several[Hints],
    tell: Callable[[int], None],
) -> Mode:
    ours = engine.generate(prompts, each, hints=hints)
    differences = []
    tokens = 0
    for index, (prompt, params, completion) in enumerate(zip(prompts, each, ours, strict=True)):
        plain = [event.token_id for event in engine.stream_plain(prompt, params)]
        tokens += len(plain)
        found = first_difference(
            engine.target, engine.tokenizer, prompt, completion.token_ids, plain, params
        )
        if found is not None:
            differences.append(PromptDifference(index, found))
        tell(index + 1)
    strict = engine.target.exactness is Exactness.BITWISE
    return Mode(name, len(prompts), tokens, tuple(differences), strict)
