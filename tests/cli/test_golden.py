"""Golden tests: what every command prints, as JSON and as text, and how it refuses wrong use.

`tests/golden` has a file a case, with the command line and its result, without times and without what depends
on the machine. After a change that is meant, write the results anew and read the difference:

    WRITE_GOLDEN=1 pytest tests/cli/test_golden.py

A new case is a new file with its command line after `$ `; writing adds the result.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from forerun.cli.main import application, every_command
from tests.helpers import published_heads as heads
from tests.helpers.backends import needs_kernels
from tests.helpers.command_line import Cli
from tests.helpers.drafter_runs import save_data
from tests.helpers.golden import GoldenFile, Masks, shown
from tests.helpers.letter_chat import with_template
from tests.helpers.tiny_pipelines import unet_pipeline
from tests.helpers.virtual_machine import virtual_machine

FOLDER = Path(__file__).parents[1] / "golden"
FILES = [GoldenFile.read(path) for path in sorted(FOLDER.iterdir())]
WRITES = bool(os.environ.get("WRITE_GOLDEN"))


@pytest.fixture(scope="module")
def things(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models, a pipeline and files."""
    from forerun.diffusion.loading import save_pipeline

    root = tmp_path_factory.mktemp("things")
    for path in map(Path, pair):
        (root / path.name).symlink_to(path)
    with_template(pair[0], root)
    layers = {"num_hidden_layers": heads.LAYERS, "initializer_range": 0.3}
    torch.manual_seed(3)
    target = LlamaForCausalLM(LlamaConfig(**{**heads.LAYER_CONFIG, **layers}))
    target.save_pretrained(root / "tiny")
    for name, flaw in {"head": False, "flawed-head": True}.items():
        head = heads.eagle3_head(norm_before_residual=flaw)
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(head.config), encoding="utf-8")
        save_file(dict(head.tensors), root / name / "model.safetensors")
    save_pipeline(unet_pipeline(), root / "pipeline")
    save_data(root / "data.jsonl")
    (root / "empty").mkdir()
    texts = {
        "prompts.jsonl": '{"category": "a", "turns": ["def add(a):", "return"]}\n'
        '{"category": "b", "prompt": "return a"}\n',
        "prose.txt": "def add(a, b):\n    return a + b\n" * 60,
        "empty.jsonl": "",
        "wrong.toml": "max-token = 3\n",
    }
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def _here(things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with these things alone, on a machine that is the same everywhere."""
    here = tmp_path / "here"
    here.mkdir()
    for path in things.iterdir():
        (here / path.name).symlink_to(path.resolve())
    monkeypatch.chdir(here)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with virtual_machine(tmp_path / "caches"):
        yield


@needs_kernels
@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("golden", FILES, ids=lambda golden: golden.path.stem)
def test_results(
    cli: Cli,
    golden: GoldenFile,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    notes, results = golden.notes, []
    if "few" in notes:
        request.getfixturevalue("few_cases")
    masks = Masks(Path.cwd(), "measured" in notes, "exact" in notes)
    for command in golden.commands:
        arguments = shlex.split(command)
        monkeypatch.setattr("sys.argv", arguments)
        result = cli.run(*arguments[1:], input=json.loads(notes.get("stdin", "null")))
        files = {name: Path(name).read_text("utf-8") for name in notes.get("files", "").split()}
        results.append(shown(command, result, masks, files))
    text = golden.with_results(results)
    if WRITES:
        golden.path.write_bytes(text.encode())
    elif text != golden.text:
        before, now = (part.splitlines(keepends=True) for part in (golden.text, text))
        pytest.fail("".join(unified_diff(before, now, str(golden.path), "now")), pytrace=False)


def test_every_command_has_results() -> None:
    """Output, as JSON too where the command has it, and two wrong uses."""
    commands = {" ".join(words): command for words, command in every_command(application)}
    codes: dict[str, list[int]] = {name: [] for name in commands}
    with_json = set()
    for golden in map(GoldenFile.read, FOLDER.iterdir()):
        for line, code in zip(golden.commands, golden.exit_codes, strict=True):
            named = [name for name in commands if f"{line} ".startswith(f"forerun {name} ")]
            for name in sorted(named, key=len)[-1:]:
                codes[name].append(code)
                with_json |= {name} if code != 2 and "--json" in line else set()
    for name, command in commands.items():
        assert {0, 1} & {*codes[name]}, f"{name} has no output in {FOLDER}"
        assert codes[name].count(2) >= 2, f"{name} has fewer than two wrong uses in {FOLDER}"
        if any(param.name == "json" for param in command.params):
            assert name in with_json, f"{name} has no output with --json in {FOLDER}"
