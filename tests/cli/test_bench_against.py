"""Other engines in the same run: those that are there take part, the others are named."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from forerun.bench.contestants import LENGTHS, Elsewhere, invited
from forerun.bench.peers.process import RemoteEngine
from forerun.bench.runs import EncodedPrompt
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from tests.helpers.command_line import Cli

PROMPTS = [EncodedPrompt(str(n), "a", (1, 2, 3 + n)) for n in range(2)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def remote() -> RemoteEngine:
    root = str(Path(__file__).parents[2])
    return RemoteEngine("made", name="made", maker="tests.helpers.made_peer:made", paths=(root,))


def test_a_peer_takes_part_plainly_and_with_drafts() -> None:
    def load(name: str) -> RemoteEngine:
        if name != "made":
            raise ConfigError(f"{name} is not installed.")
        return remote()

    with invited(["absent", "made"], load) as (contestants, notes):
        names = [entry.name for entry in contestants]
        assert names == ["made, plain", *(f"made, lookup of {n}" for n in LENGTHS if n)]
        assert notes == ["without absent: absent is not installed"]
        assert contestants[0].facts["version"] == "1.0"
        process = contestants[0].peer._process
    assert process.returncode == -signal.SIGKILL


def test_a_peer_that_crashes_says_its_last_words() -> None:
    with remote() as engine:
        entry = Elsewhere("made, plain", engine, 0)
        assert entry.takes(GREEDY, 1)
        assert not entry.takes(GREEDY, 2)
        assert not entry.takes(SamplingParams(temperature=1.0), 1)
        entry.warm_up(PROMPTS, GREEDY)
        for _ in range(2):
            with pytest.raises(ConfigError, match="no memory"):
                engine.call("generate", prompt_ids=[1, 2], num_tokens=101)
    with pytest.raises(ConfigError, match="cannot be run"):
        RemoteEngine("made", python="/absent/python")


def test_a_peer_that_is_killed_says_by_what() -> None:
    with remote() as engine, pytest.raises(ConfigError, match="'generate' with SIGSEGV"):
        engine.call("generate", prompt_ids=[1, 2], num_tokens=96)


def test_a_peer_that_hangs_is_ended() -> None:
    with remote() as engine:
        engine.limit = 0.2
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"made did not answer 'generate' within 0\.2 s"):
                engine.call("generate", prompt_ids=[1, 2], num_tokens=91)
        assert engine._process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_transformers_runs_beside(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"turns": ["def add(a, b):"]}) + "\n")
    result = cli.run(
        *("bench", "--model", cli.target, "--prompts", str(path), "--method", "suffix"),
        *(
            "--num-speculative-tokens",
            "2",
            "--temperature",
            "0",
            "--max-tokens",
            "4",
            "--ignore-eos",
            "--json",
        ),
        *("--dtype", "fp32", "--against", "transformers"),
    )
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    cells = {cell["setting"]: cell for cell in content["cells"]}
    assert cells["transformers, plain"]["identical"] == 1
    assert len([name for name in cells if name.startswith("transformers, lookup of")]) == 3
    assert any("beside transformers at its best" in text for text in content["sentences"])
