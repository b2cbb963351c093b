"""Other engines on the same weights, for benchmarks: llama.cpp, OpenVINO GenAI, transformers.

peer = load_peer("llama.cpp", checkpoint_dir, "bf16", threads=2, cache_dir=cache_dir)
tokens, seconds = peer.generate(prompt_ids, 128)

Their packages are the extra `peers`; nothing is imported before a peer is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from forerun.bench.peers.contract import MAX_CONTEXT, PRECISIONS, Peer, PeerOptions
from forerun.errors import CheckpointError, ConfigError, UnknownNameError
from forerun.options import check

PEERS = {
    "llama.cpp": "llama_cpp_peer",
    "openvino": "openvino_peer",
    "transformers": "transformers_peer",
}
"""Modules of this package by the peer's name; `load` of each makes a Peer of PeerOptions."""

__all__ = ["PEERS", "PRECISIONS", "Peer", "PeerOptions", "load_peer"]


def load_peer(
    name: str,
    checkpoint_dir: str | Path,
    precision: str,
    *,
    threads: int,
    draft_dir: str | Path | None = None,
    cache_dir: str | Path,
    max_context: int = MAX_CONTEXT,
) -> Peer:
    """Convert a checkpoint for a peer, unless `cache_dir` has it already, and load it.

    Args:
        name: one of PEERS.
        checkpoint_dir: a model as transformers saves it: config.json and safetensors.
        precision: one of PRECISIONS, for target and draft.
        threads: that the peer computes with.
        draft_dir: a draft model of the same vocabulary, to speculate with; None looks up.
        cache_dir: created if missing; its files are named after the contents of the checkpoints.
        max_context: tokens that llama.cpp keeps keys and values for.

    Raises:
        UnknownNameError: for an unknown name or precision.
        CheckpointError: for a directory without a checkpoint.
        ConfigError: when a package or tool is missing, or the peer lacks the precision.
        UnsupportedModelError: for an architecture that cannot be converted.
    """
    if name not in PEERS:
        raise UnknownNameError("peer", name, PEERS)
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
    )
    load: Callable[[PeerOptions], Peer] = import_module(f"{__name__}.{PEERS[name]}").load
    options.cache_dir.mkdir(parents=True, exist_ok=True)
    return load(options)


def _checkpoint(directory: str | Path) -> Path:
    path = Path(directory).resolve()
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise CheckpointError(f"{path} holds no checkpoint; it must have config.json and weights.")
    return path
