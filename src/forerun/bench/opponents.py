"""Other engines in the same run: the same model and prompts, plain and at their best speculative setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.bench.contestants import WARM_UP_TOKENS, Elsewhere
from forerun.bench.peers.process import CALL_SECONDS, RemoteEngine
from forerun.bench.runs import EncodedPrompt
from forerun.errors import ConfigError
from forerun.models import Checkpoint
from forerun.progress import report

# Tokens to draft a round that are tried, on so many prompts with so many tokens.
LENGTHS = (2, 4, 8)
TRIED_PROMPTS, TRIED_TOKENS = 3, 48


@dataclass(frozen=True)
class Invitation:
    """Other engines to measure, and what they need.

    Args:
        names: names of peers.
        checkpoint: of the target.
        precision: that forerun runs it in.
        draft: a draft model in files, for those that draft with one; without it they look up.
        threads: of each.
        python: the interpreter that has them; None for this one.
        cache: the folder where converted models are kept.
        limit: seconds that a call of one may take.
    """

    names: Sequence[str]
    checkpoint: Checkpoint
    precision: str
    threads: int
    cache: Path
    draft: Path | None = None
    python: str | None = None
    limit: float = CALL_SECONDS


@dataclass
class Opponents:
    """Other engines that take part.

    Args:
        contestants: two of each engine: plain, and with the drafts that were fastest.
        facts: of each contestant: engine, version, settings, the sweep.
        notes: which engines are missing, and why.
    """

    contestants: list[Elsewhere] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@contextmanager
def invited(invitation: Invitation, prompts: Sequence[EncodedPrompt]) -> Iterator[Opponents]:
    """Engines that are loaded, each in a process of its own; they end with the block.

    Args:
        prompts: whose first ones serve to find each engine's best length.
    """
    opponents, engines = Opponents(), list[RemoteEngine]()
    try:
        for number, name in enumerate(invitation.names):
            try:
                engines.append(_load(invitation, name))
                _add(opponents, name, engines[-1], prompts)
            except ConfigError as error:
                opponents.notes.append(f"without {name}: {str(error).rstrip('.')}")
            report("loading other engines", number + 1, len(invitation.names))
        yield opponents
    finally:
        for engine in engines:
            engine.close()


def files_of(checkpoint: Checkpoint) -> Path:
    """The GGUF file or the folder of a model."""
    location = checkpoint.with_weights().location
    return location.file or location.directory


def _load(invitation: Invitation, name: str) -> RemoteEngine:
    draft = invitation.draft
    # One precision is that of both.
    fits = draft is not None and draft.is_file() == (invitation.precision == "stored")
    return RemoteEngine(
        name,
        name=name,
        python=invitation.python,
        limit=invitation.limit,
        checkpoint_dir=str(files_of(invitation.checkpoint)),
        precision=invitation.precision,
        threads=invitation.threads,
        draft_dir=str(draft) if fits else None,
        cache_dir=str(invitation.cache),
    )


def _add(
    opponents: Opponents, name: str, engine: RemoteEngine, prompts: Sequence[EncodedPrompt]
) -> None:
    """Sweep the lengths of an engine, and take it in as it is plain and as it is best."""
    described: dict[str, Any] = engine.call("describe")
    rates = _sweep(engine, prompts[:TRIED_PROMPTS])
    best = max(LENGTHS, key=lambda length: rates[length])
    words = ", ".join(f"{rates[length]:.0f} with {length or 'none'}" for length in rates)
    described["sweep"] = f"tokens/s by drafted tokens: {words}"
    drafts = "draft model" if described["draft"] else "lookup"
    for label, length in (("plain", 0), (f"{drafts} of {best}", best)):
        contestant = Elsewhere(f"{name}, {label}", engine, length)
        opponents.contestants.append(contestant)
        opponents.facts[contestant.name] = described


def _sweep(engine: RemoteEngine, prompts: Sequence[EncodedPrompt]) -> dict[int, float]:
    """Tokens a second by length, plain decoding among them, after a warm-up of each."""
    rates = {}
    for length in (0, *LENGTHS):
        request = {"num_speculative_tokens": length}
        ids = [list(prompt.token_ids) for prompt in prompts]
        engine.call("generate", prompt_ids=ids[0], num_tokens=WARM_UP_TOKENS, **request)
        seconds = sum(
            engine.call("generate", prompt_ids=own, num_tokens=TRIED_TOKENS, **request)[1]
            for own in ids
        )
        rates[length] = len(ids) * TRIED_TOKENS / seconds
    return rates
