"""What every peer can do, what it is asked with, and what is needed to ask any of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError, PromptError
from forerun.files import content_hash

PRECISIONS = ("fp32", "bf16", "int8", "int4")
MAX_CONTEXT = 2048
"""Tokens that a peer keeps keys and values for, less where the model is made for less."""


@dataclass(frozen=True)
class PeerOptions:
    """What a peer is loaded with.

    Args:
        checkpoint_dir: of the target, as transformers saves it.
        precision: of the weights, one of PRECISIONS; `settings` says what the peer makes of it.
        threads: that it computes with.
        draft_dir: of the draft model, in the same precision; None if it is never to speculate.
        cache_dir: where converted models are kept between runs.
    """

    checkpoint_dir: Path
    precision: str
    threads: int
    draft_dir: Path | None
    cache_dir: Path


@dataclass
class Peer(ABC):
    """Another engine with a model in it, which decodes greedily and says how long it took.

    Attributes:
        name: as in the table of peers.
        version: of its package.
        settings: what a report must say: precision, threads, cache, attention, batch.
    """

    name: str
    version: str
    settings: dict[str, Any] = field(default_factory=dict)

    @abstractmethod
    def forward_seconds(self, n: int, context: int) -> float:
        """Seconds of one forward over `n` new tokens that yields the logits of all, [n, V].

        Args:
            n: at least 1.
            context: tokens whose keys and values are there already; afterwards just they are again.

        The first call for an `n` also plans memory and kernels: make it once before measuring.
        """

    @abstractmethod
    def generate(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int = 0
    ) -> tuple[list[int], float]:
        """The greedy continuation, exactly `num_tokens` long, end tokens or not.

        Args:
            prompt_ids: at least 2 tokens; nothing is kept of earlier calls.
            num_tokens: at least 1.
            num_speculative_tokens: that the draft model proposes a round; 0 decodes plainly.

        Returns:
            The new tokens, and the seconds from the prompt to the last of them.

        Raises:
            ConfigError: when asked to speculate without a draft model.
            PromptError: when prompt and output exceed the context.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the models; the peer cannot be used afterwards."""

    def check_request(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int
    ) -> None:
        """Refuse what no peer can do: see `generate` for what is raised."""
        if num_speculative_tokens and not self.settings["draft"]:
            raise ConfigError(f"{self.name} was loaded without a draft; pass draft_dir.")
        total, room = len(prompt_ids) + num_tokens, self.settings["max_context"]
        if len(prompt_ids) < 2 or num_tokens < 1 or total > room:
            raise PromptError(
                f"{len(prompt_ids)} prompt tokens and {num_tokens} new ones; {self.name} needs at "
                f"least 2 and 1, and at most {room} together."
            )


def import_package(module: str) -> Any:
    """A package of the extra `peers`, which forerun does without until a peer is loaded.

    Raises:
        ConfigError: when it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ConfigError(
            f"this peer needs the package {module}; run: pip install 'forerun[peers]'."
        ) from None


def converted(cache_dir: Path, checkpoint_dir: Path, suffix: str) -> Path:
    """Where the conversion of a checkpoint is kept: its name says which weights it was made of."""
    files = [*sorted(checkpoint_dir.glob("*.safetensors")), checkpoint_dir / "config.json"]
    digest = hashlib.sha256("".join(map(content_hash, files)).encode()).hexdigest()
    return cache_dir / f"{checkpoint_dir.name}-{digest[:12]}-{suffix}"
