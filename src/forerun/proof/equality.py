"""Exactness by equality: greedy and seeded outputs against plain decoding's, with attribution."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from time import perf_counter

from forerun.core import Exactness
from forerun.engine.attribution import DEFECT, Difference, first_difference
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.proof.setting import with_rule

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
        rule: the verification rule.
        prompts: compared.
        tokens: of plain decoding, over all of them.
        differences: of the outputs that are not identical.
    """

    name: str
    rule: str
    prompts: int
    tokens: int
    differences: tuple[PromptDifference, ...]

    @property
    def identical(self) -> int:
        return self.prompts - len(self.differences)

    @property
    def defects(self) -> int:
        return sum(one.difference.explanation == DEFECT for one in self.differences)


@dataclass(frozen=True)
class Equality:
    """What the comparison came to.

    Args:
        passed: no defect, and on a bitwise backend no difference at all.
        modes: greedy and, where the user samples, seeded.
        seconds: it took.
    """

    passed: bool
    modes: tuple[Mode, ...]
    seconds: float


def by_equality(
    engine: Engine,
    prompts: Several[list[int]],
    params: SamplingParams,
    output_tokens: int,
    seed: int,
    progress: Progress | None = None,
) -> Equality:
    """Decode every prompt with and without speculation: greedily under the engine's rule, and with
    a seed under the coupled rule.

    Args:
        engine: with a drafter.
        prompts: token ids.
        params: how tokens are drawn; seeds and lengths are set here.
        output_tokens: of each output at most.
        seed: of the first prompt, one more for each after it.
        progress: told how many outputs are done, of how many.
    """
    started = perf_counter()
    base = replace(params, max_tokens=output_tokens, logprobs=None, stop=(), stop_token_ids=())
    each = [replace(base, seed=seed + index) for index in range(len(prompts))]
    runs = [("greedy", engine, [replace(one, temperature=0.0) for one in each])]
    if not params.greedy:
        runs.append(("seeded", with_rule(engine, "coupled"), each))
    modes = []
    for done, (name, one, several) in enumerate(runs):

        def tell(count: int, done: int = done) -> None:
            if progress is not None:
                progress(done * len(prompts) + count, len(runs) * len(prompts))

        modes.append(_compare(name, one, prompts, several, tell))
    strict = engine.target.exactness is Exactness.BITWISE
    passed = not any(mode.differences if strict else mode.defects for mode in modes)
    return Equality(passed, tuple(modes), perf_counter() - started)


def _compare(
    name: str,
    engine: Engine,
    prompts: Several[list[int]],
    each: list[SamplingParams],
    tell: Callable[[int], None],
) -> Mode:
    ours = engine.generate(prompts, each)
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
    rule = engine.config.rejection_sample_method
    return Mode(name, rule, len(prompts), tokens, tuple(differences))
