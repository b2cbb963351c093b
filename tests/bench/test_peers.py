"""Peers run the same model: what they emit is what transformers' full forwards say.

The packages of the extra `peers` and optimum-cli are optional; tests that need them are skipped.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from forerun.bench.peers import load_peer, peer_names
from forerun.errors import CheckpointError, ConfigError, PromptError, UnknownNameError
from forerun_peers import openvino
from forerun_peers.conversion import content_hash, converted
from forerun_peers.gguf_export import interleave

PROMPT = [5, 9, 2, 40, 17, 33]
NEW = 12
NEEDED = {
    "llama.cpp": ("llama_cpp", "gguf"),
    "openvino": ("openvino_genai",),
    "transformers": (),
}
PACKAGE = Path(__file__).parents[2] / "peers" / "pyproject.toml"
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers of forerun-peers, as its pyproject.toml registers them."""
    declared = tomllib.loads(PACKAGE.read_text("utf-8"))["project"]["entry-points"]
    points = [
        EntryPoint(name=name, value=value, group="forerun.peers")
        for name, value in declared["forerun.peers"].items()
    ]
    monkeypatch.setattr(
        "forerun.registry.entry_points_of",
        lambda group: points if group == "forerun.peers" else [],
    )


def make(family: str, directory: Path, seed: int, layers: int) -> list[int]:
    """Save a tiny model that emits its end token early, and say how PROMPT goes on greedily."""
    torch.manual_seed(seed)
    shape, kind = FAMILIES[family]
    config = shape(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=family == "qwen3",
    )
    model = kind(config).eval()
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(NEW):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    model.config.eos_token_id = model.generation_config.eos_token_id = tokens[len(PROMPT) + 2]
    model.save_pretrained(directory)
    return tokens[len(PROMPT) :]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A target, a draft, and the target's greedy continuation."""
    root = tmp_path_factory.mktemp(request.param)
    expected = make(request.param, root / "target", 0, 2)
    make(request.param, root / "draft", 1, 1)
    return root, expected


def require(name: str) -> None:
    for module in NEEDED[name]:
        pytest.importorskip(module)
    if name == "openvino" and not (
        os.environ.get("FORERUN_OPTIMUM_CLI") or shutil.which("optimum-cli")
    ):
        pytest.skip("no optimum-cli")


@pytest.mark.parametrize("name", NEEDED)
def test_a_peer_continues_as_full_forwards_do(name: str, pair: tuple[Path, list[int]]) -> None:
    require(name)
    root, expected = pair
    peer = load_peer(
        name, root / "target", "fp32", threads=1, draft_dir=root / "draft", cache_dir=root / "cache"
    )
    # Forwards between, of which nothing may be left.
    for count in (0, 3, 5):
        assert peer.forward_seconds(4, 9) > 0
        tokens, seconds = peer.generate(PROMPT, NEW, count)
        assert tokens == expected, count
        assert seconds > 0
    with pytest.raises(PromptError, match="at most 128 together"):
        peer.generate(PROMPT, 123)
    peer.close()


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_draft_a_peer_looks_up(name: str, pair: tuple[Path, list[int]]) -> None:
    require(name)
    root, expected = pair
    peer = load_peer(name, root / "target", "fp32", threads=1, cache_dir=root / "cache")
    assert peer.generate(PROMPT, NEW, 2)[0] == expected
    peer.close()


def scores(queries: torch.Tensor, keys: torch.Tensor, neighbours: bool) -> torch.Tensor:
    """Products [n, n] of one head, [n, d], rotated in pairs of neighbours or of halves."""

    def rotate(rows: torch.Tensor) -> torch.Tensor:
        length, width = rows.shape
        shape = (length, width // 2, 2) if neighbours else (length, 2, width // 2)
        first, second = rows.reshape(shape).unbind(2 if neighbours else 1)
        angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        return torch.cat(
            (
                first * angle.cos() - second * angle.sin(),
                second * angle.cos() + first * angle.sin(),
            ),
            1,
        )

    return rotate(queries) @ rotate(keys).T


def test_interleaving_turns_rotated_halves_into_rotated_neighbours() -> None:
    torch.manual_seed(0)
    hidden, (queries, keys) = torch.randn(7, 24), torch.randn(2, 3 * 8, 24)
    moved = [interleave(weight, 3) for weight in (queries, keys)]
    assert sorted(moved[0][:, 0].tolist()) == sorted(queries[:, 0].tolist())
    for head in (slice(0, 8), slice(8, 16), slice(16, 24)):
        ours = scores(hidden @ queries[head].T, hidden @ keys[head].T, False)
        theirs = scores(hidden @ moved[0][head].T, hidden @ moved[1][head].T, True)
        torch.testing.assert_close(ours, theirs)


def test_hashes_are_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert content_hash(path) == expected


def test_conversions_are_named_after_the_weights(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model"
    make("llama", checkpoint, 0, 1)
    first = converted(tmp_path, checkpoint, "bf16.gguf")
    assert converted(tmp_path, checkpoint, "bf16.gguf") == first
    make("llama", checkpoint, 1, 1)
    assert converted(tmp_path, checkpoint, "bf16.gguf") != first


@pytest.mark.parametrize("name", ["llama.cpp", "openvino"])
def test_a_missing_package_is_named(
    name: str, pair: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = NEEDED[name][0]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{module}; run: pip install 'forerun\[peers\]'"):
        load_peer(name, pair[0] / "target", "bf16", threads=1, cache_dir=tmp_path)


def test_a_missing_converter_is_named(
    pair: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_OPTIMUM_CLI", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="FORERUN_OPTIMUM_CLI"):
        openvino.export(pair[0] / "target", "bf16", tmp_path)


def test_every_peer_that_is_named_is_one_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    names = peer_names()
    assert set(names) == set(NEEDED)
    # They are known where they are not installed: another interpreter may have them.
    monkeypatch.setattr("forerun.registry.entry_points_of", lambda _: [])
    assert peer_names() == names
    with pytest.raises(ConfigError, match=r"openvino is not installed; .*forerun\[peers\]"):
        load_peer("openvino", "model", "bf16", threads=1, cache_dir="cache")


def test_what_does_not_exist_is_refused(pair: tuple[Path, list[int]], tmp_path: Path) -> None:
    target = pair[0] / "target"
    with pytest.raises(UnknownNameError, match=r"llama\.cpp"):
        load_peer("llamacpp", target, "bf16", threads=1, cache_dir=tmp_path)
    with pytest.raises(UnknownNameError, match="precision"):
        load_peer("transformers", target, "int2", threads=1, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="no int4"):
        load_peer("transformers", target, "int4", threads=1, cache_dir=tmp_path)
    with pytest.raises(CheckpointError, match="and weights"):
        load_peer("transformers", tmp_path, "bf16", threads=1, cache_dir=tmp_path)
