"""Other engines on the same weights, for benchmarks, by entry points.

peer = load_peer("llama.cpp", checkpoint_dir, "bf16", threads=2, cache_dir=cache_dir)
tokens, seconds = peer.generate(prompt_ids, 128)

A package registers a peer in the group `forerun.peers`: a function from PeerOptions to a Peer. transformers,
llama.cpp and OpenVINO come with `forerun[peers]`. Nothing is imported before a peer is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.errors import CheckpointError, ConfigError, PromptError, UnknownNameError
from forerun.options import check
from forerun.registry import Registry

PRECISIONS = ("fp32", "bf16", "int8", "int4", "stored")
MAX_CONTEXT = 2048
"""Tokens that a peer keeps keys and values for where nothing else is said, or fewer if the model's context
is shorter."""


@dataclass(frozen=True)
class PeerOptions:
    """Options of a peer.

    Args:
        checkpoint_dir: of the target, as transformers saves it; or a GGUF file.
        precision: of the weights, one of PRECISIONS; the peer's `settings` name its own format.
            `stored` is that of a GGUF file, and only that; transformers makes bf16 of it.
        threads: that it computes with.
        draft_dir: of the draft model, in the same precision; without one a peer drafts by its own prompt
            lookup.
        cache_dir: where converted models are kept between runs.
        max_context: tokens that llama.cpp keeps keys and values for; the others have MAX_CONTEXT.
        full_precision: OpenVINO quantizes neither activations nor keys and values, as it does by default.
    """

    checkpoint_dir: Path
    precision: str
    threads: int
    draft_dir: Path | None
    cache_dir: Path
    max_context: int = MAX_CONTEXT
    full_precision: bool = False


@dataclass
class Peer(ABC):
    """Another engine with a model, which decodes greedily and times itself.

    Attributes:
        name: as in the table of peers.
        version: of its package.
        settings: for reports: precision, threads, cache, attention, batch.
    """

    name: str
    version: str
    settings: dict[str, Any] = field(default_factory=dict)

    @abstractmethod
    def forward_seconds(self, n: int, context: int) -> float:
        """Seconds of one forward over `n` new tokens with the logits of all, [n, V].

        Args:
            n: at least 1.
            context: tokens in the cache before the forward; the cache holds them again afterwards.

        The first call for an `n` also plans memory and kernels: call once before measuring.
        """

    @abstractmethod
    def generate(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int = 0
    ) -> tuple[list[int], float]:
        """The greedy continuation of exactly `num_tokens` tokens; end tokens do not end it.

        Args:
            prompt_ids: at least 2 tokens; earlier calls leave nothing in the cache.
            num_tokens: at least 1.
            num_speculative_tokens: drafted a round; 0 decodes plainly.

        Returns:
            The new tokens, and the seconds from the prompt to the last of them.

        Raises:
            PromptError: when prompt and output exceed the context.
        """

    def answer(
        self,
        prompt_ids: Sequence[int],
        num_tokens: int,
        num_speculative_tokens: int,
        **sampling: Any,
    ) -> dict[str, Any]:
        """The continuation of `generate` as the engine samples it, for proofs.

        Args:
            sampling: temperature (0 is greedy), top_k (0 is off), top_p and seed.

        Returns:
            `tokens` and, where the engine tells them, `logprobs` of the raw distribution and the number of
            `drafted` tokens, or of those of them that were accepted.

        Raises:
            ConfigError: for a peer that is only timed.
        """
        raise ConfigError(f"{self.name} only decodes greedily here, so it cannot be proved.")

    @abstractmethod
    def close(self) -> None:
        """Free the models; the peer cannot be used afterwards."""

    def check_request(self, prompt_ids: Sequence[int], num_tokens: int) -> None:
        """Refuse invalid requests; see `generate` for the errors."""
        total, room = len(prompt_ids) + num_tokens, self.settings["max_context"]
        if len(prompt_ids) < 2 or num_tokens < 1 or total > room:
            raise PromptError(
                f"{len(prompt_ids)} prompt tokens and {num_tokens} new ones; {self.name} needs at "
                f"least 2 and 1, and at most {room} together."
            )


PEERS = Registry("peer", "forerun.peers", {})
"""Functions from PeerOptions to a Peer, by name."""
# Peers of `forerun[peers]`, which another interpreter may have.
_EXTRA = ("llama.cpp", "openvino", "transformers")


def peer_names() -> list[str]:
    """Names of all peers, those of `forerun[peers]` among them wherever it is installed."""
    return sorted({*PEERS.names(), *_EXTRA})


def load_peer(
    name: str,
    checkpoint_dir: str | Path,
    precision: str,
    *,
    threads: int,
    draft_dir: str | Path | None = None,
    cache_dir: str | Path,
    max_context: int = MAX_CONTEXT,
    full_precision: bool = False,
) -> Peer:
    """Convert a checkpoint for a peer, unless `cache_dir` has it already, and load it.

    Args:
        name: one of `peer_names()`.
        checkpoint_dir: a model as transformers saves it: config.json and safetensors.
        precision: one of PRECISIONS, for target and draft.
        threads: that the peer computes with.
        draft_dir: a draft model of the same vocabulary, to speculate with; None looks up.
        cache_dir: created if missing; its files are named after the contents of the checkpoints.
        max_context: tokens that llama.cpp keeps keys and values for.
        full_precision: OpenVINO quantizes neither activations nor keys and values.

    Raises:
        UnknownNameError: for an unknown name or precision.
        CheckpointError: for a directory without a checkpoint.
        ConfigError: when a package or tool is missing, or the peer lacks the precision.
        UnsupportedModelError: for an architecture that cannot be converted.
    """
    if name in _EXTRA and name not in PEERS.names():
        raise ConfigError(f"{name} is not installed; run: pip install 'forerun[peers]'.")
    load: Callable[[PeerOptions], Peer] = PEERS.find(name)
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    checkpoint = _checkpoint(checkpoint_dir)
    if checkpoint.is_file() != (precision == "stored"):
        raise ConfigError(
            f"{name} cannot run {checkpoint} in {precision!r}; 'stored' is for GGUF files, which run in no "
            "other precision."
        )
    options = PeerOptions(
        checkpoint_dir=checkpoint,
        precision=precision,
        threads=check("threads", threads, int, ge=1, le=1024),
        draft_dir=None if draft_dir is None else _checkpoint(draft_dir),
        cache_dir=Path(cache_dir).resolve(),
        max_context=check("max_context", max_context, int, ge=1),
        full_precision=full_precision,
    )
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    return load(options)


def _checkpoint(directory: str | Path) -> Path:
    path = Path(directory).resolve()
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise CheckpointError(f"{path} holds no checkpoint; it must have config.json and weights.")
    return path
