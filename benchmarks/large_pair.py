"""A target of billions of weights and a draft model: the parts of their rounds.

python -m benchmarks.large_pair

The weights are random, in the shapes of published models, so that nothing is downloaded. Times are
those of the real models, acceptance is not: with a tied head, both models repeat themselves. The
length is fixed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from benchmarks.shapes import MODELS, RANDOM_SHAPES, build, config_of
from forerun.bench.forwards import use_threads
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.models.cpu import CpuModel
from forerun.models.run_config import KERNEL_PRECISIONS
from forerun.params import SamplingParams
from forerun.policies.base import USUAL_LENGTH

PROMPT_TOKENS = 64
_WARM_UP_TOKENS = 2


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        target, draft: names of shapes.MODELS, or directories, with one vocabulary.
        target_precision, draft_precision: of the weights on the kernels.
        num_speculative_tokens: drafted per round.
        tokens: emitted in each timed run, at least 2.
        pairs: of a plain and a speculative run, in alternation.

    Raises:
        ConfigError: for a number that is too small.
    """

    target: str = "qwen3-4b"
    target_precision: str = "int8"
    draft: str = "qwen3-0.6b"
    draft_precision: str = "int4"
    num_speculative_tokens: int = 4
    tokens: int = 16
    pairs: int = 2

    def __post_init__(self) -> None:
        for name, least in (("num_speculative_tokens", 1), ("tokens", 2), ("pairs", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}.")


@dataclass(frozen=True)
class Loaded:
    """A model of the pair: seconds until it was packed, and megabytes (1e6) packed."""

    name: str
    precision: str
    load_seconds: float
    packed_megabytes: float


@dataclass(frozen=True)
class Rounds:
    """A plain run and the speculative one after it; times are means in milliseconds.

    Args:
        plain_token: of a token without speculation, without prefill.
        round: of a speculative round; the first, which runs the prompt, counts only if it is the only one.
        draft, target, host: its parts; the host's is the rest.
        rounds: the number of rounds of the means.
        tokens_per_round: emitted in them.
        acceptance: accepted / drafted tokens in all rounds.
        identical: whether both runs emitted the same tokens.
    """

    plain_token: float
    round: float
    draft: float
    target: float
    host: float
    rounds: int
    tokens_per_round: float
    acceptance: float
    identical: bool


@dataclass(frozen=True)
class Result:
    """All measurements, and the number of threads."""

    request: Request
    threads: int
    target: Loaded
    draft: Loaded
    pairs: list[Rounds]

    def median(self, name: str) -> float:
        """The median over pairs of a field of `Rounds`."""
        value: float = statistics.median(getattr(pair, name) for pair in self.pairs)
        return value

    @property
    def identical(self) -> bool:
        """Whether speculation changed nothing in any pair."""
        return all(pair.identical for pair in self.pairs)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "identical": self.identical}


@dataclass(frozen=True)
class _Step:
    """One round: its seconds, those of the draft and of the target, and the emitted tokens."""

    seconds: float
    draft: float
    target: float
    token_ids: list[int]


def _print_progress(text: str) -> None:
    """Loading takes minutes: progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def measure(
    request: Request, threads: int | None = None, progress: Callable[[str], None] = _print_progress
) -> Result:
    """Load both models and run the pairs.

    Args:
        request: what to measure.
        threads: to run on; None: as many as torch would.
        progress: called with a line before each part.

    Raises:
        ConfigError: without the kernels, or for models that do not fit each other.
        UnknownNameError: for an unknown model or precision.
    """
    used = use_threads(threads)
    progress(f"loading {request.target} {request.target_precision}")
    target, of_target = _load(request.target, request.target_precision)
    progress(f"loading {request.draft} {request.draft_precision}")
    draft, of_draft = _load(request.draft, request.draft_precision)
    engine = _engine(target, draft, request)
    prompt = _prompt(min(target.vocab_size, draft.vocab_size))
    progress("warming up")
    _plain(engine, prompt, _WARM_UP_TOKENS)
    _speculative(engine, prompt, _WARM_UP_TOKENS)
    pairs = []
    for number in range(1, request.pairs + 1):
        progress(f"pair {number} of {request.pairs}")
        pairs.append(_pair(engine, prompt, request.tokens))
    return Result(request, used, of_target, of_draft, pairs)


def _load(name: str, precision: str) -> tuple[CpuModel, Loaded]:
    if name in RANDOM_SHAPES:
        # transformers imports most of itself for a first config; that does not count as loading.
        config_of(RANDOM_SHAPES[name])
    started = perf_counter()
    model = build(name, precision)
    seconds = perf_counter() - started
    return model, Loaded(name, precision, seconds, model.weight_bytes / 1e6)


def _engine(target: CpuModel, draft: CpuModel, request: Request) -> Engine:
    drafted = request.num_speculative_tokens
    # Room for full drafts in every round.
    context = PROMPT_TOKENS + max(request.tokens, _WARM_UP_TOKENS) + drafted
    drafter = DraftModelDrafter(draft, 1, context, target.vocab_size)
    config = SpeculativeConfig(num_speculative_tokens=drafted, policy="fixed")
    return Engine(target, drafter, config, max_context=context)


def _prompt(vocab_size: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()
    return ids


def _pair(engine: Engine, prompt: list[int], tokens: int) -> Rounds:
    plain_ids, plain_seconds = _plain(engine, prompt, tokens)
    before = engine.stats
    steps = _speculative(engine, prompt, tokens)
    after = engine.stats
    accepted = after.num_accepted_tokens - before.num_accepted_tokens
    # The draft model runs the prompt in the first round, and the target before it.
    timed = steps[1:] or steps
    whole, draft, target = (
        1e3 * statistics.fmean(getattr(step, name) for step in timed)
        for name in ("seconds", "draft", "target")
    )
    token_ids = [token for step in steps for token in step.token_ids]
    return Rounds(
        plain_token=1e3 * plain_seconds,
        round=whole,
        draft=draft,
        target=target,
        host=whole - draft - target,
        rounds=len(timed),
        tokens_per_round=statistics.fmean(len(step.token_ids) for step in timed),
        acceptance=accepted / (after.num_draft_tokens - before.num_draft_tokens),
        identical=token_ids[:tokens] == plain_ids,
    )


def _plain(engine: Engine, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """The tokens of the plain loop, and seconds a token."""
    stream = engine.stream_plain(prompt, _params(tokens))
    token_ids = [event.token_id for event in stream]
    return token_ids, stream.completion.stats.seconds / len(token_ids)


def _speculative(engine: Engine, prompt: list[int], tokens: int) -> list[_Step]:
    """Rounds until `tokens` are emitted; the last may emit more, and all draft in full."""
    room = tokens + (engine.config.num_speculative_tokens or USUAL_LENGTH)
    request_id = engine.add(prompt, _params(room))
    steps: list[_Step] = []
    while sum(len(step.token_ids) for step in steps) < tokens:
        before = engine.stats
        started = perf_counter()
        events = engine.step()
        seconds = perf_counter() - started
        after = engine.stats
        draft = after.draft_seconds - before.draft_seconds
        target = after.target_seconds - before.target_seconds
        steps.append(_Step(seconds, draft, target, [event.token_id for event in events]))
    engine.cancel(request_id)
    engine.completion(request_id)
    return steps


def _params(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def report(result: Result) -> str:
    """The result for people."""
    lines = []
    for role, model in (("target", result.target), ("draft", result.draft)):
        lines.append(
            f"{role:<7} {model.name} {model.precision}: loaded in {model.load_seconds:.1f} s, "
            f"{model.packed_megabytes:,.0f} MB packed"
        )
    request = result.request
    lines.append(
        f"threads {result.threads}, prompt {PROMPT_TOKENS}, greedy, {request.tokens} tokens a run, "
        f"{request.num_speculative_tokens} drafted a round"
    )
    columns = ("plain_token", "round", "draft", "target", "host", "tokens_per_round", "acceptance")
    lines.append("  ".join(name.replace("_", " ").rjust(11) for name in ("", *columns)))
    for number, pair in enumerate(result.pairs, 1):
        shown = [f"{getattr(pair, name):>{max(11, len(name))}.2f}" for name in columns]
        lines.append("  ".join([f"pair {number}".rjust(11), *shown]))
    medians = [f"{result.median(name):>{max(11, len(name))}.2f}" for name in columns]
    lines.append("  ".join(["median".rjust(11), *medians]))
    lines.append("times in ms; a round is draft + target + host")
    lines.append(f"identical to plain decoding: {'yes' if result.identical else 'NO'}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    default = Request()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--threads", type=int, help="threads; as many as torch takes by default")
    for name in ("num_speculative_tokens", "tokens", "pairs"):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(default, name))
    for name in ("target", "draft"):
        parser.add_argument(f"--{name}", default=getattr(default, name), help=", ".join(MODELS))
        precision = f"{name}_precision"
        parser.add_argument(
            f"--{name}-precision", choices=KERNEL_PRECISIONS, default=getattr(default, precision)
        )
    options = vars(parser.parse_args(arguments))
    as_json, threads = options.pop("json"), options.pop("threads")
    result = measure(Request(**options), threads)
    print(json.dumps(result.as_dict(), indent=2) if as_json else report(result))


if __name__ == "__main__":
    main()
