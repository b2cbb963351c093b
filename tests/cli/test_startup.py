"""Processes of their own: what is loaded, how long it takes, signals and pipes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from tests.helpers import forked
from tests.helpers.backends import needs_kernels
from tests.helpers.command_line import Cli
from tests.helpers.gguf_files import write_model

LONG = ("--temperature", "0", "--ignore-eos", "--max-tokens", "12000")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# In one process, one after the other: what each of them has loaded by then.
ANSWERS = """
import sys

def loaded(*names):
    print(sorted({*names} & {*sys.modules}), file=sys.stderr)

import forerun
forerun.SamplingParams, forerun.SpeculativeConfig
loaded("torch", "transformers", "click")
from forerun.cli.main import application
for arguments in (
    ["--help"], ["--version"], ["gen"], ["train"], ["info", "--help"], ["bench", "--help"],
    ["train", "data", "--help"], ["generate", "--help"],
):
    try:
        application.main(arguments, prog_name="forerun")
    except SystemExit:
        pass
    more = [] if "generate" in arguments else ["forerun.cli.generate"]
    loaded("torch", "transformers", "tokenizers", "numpy", *more)
"""


def test_answers_load_no_torch_and_no_other_command() -> None:
    done = python(ANSWERS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines().count("[]") == 9
    assert not [line for line in done.stderr.splitlines() if line.startswith("['")]
    assert "generate" in done.stdout


GENERATES = """
import sys
import torch
by_torch = {*sys.modules}
from forerun.cli.main import application

try:
    application.main(["generate", "-m", *sys.argv[1:]], prog_name="forerun")
except SystemExit as end:
    assert not end.code, end.code
stored = {name for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(*(name for name in stored if name not in by_torch))
"""
# Beside the standard library and what `import torch` itself loads.
PACKAGES = {
    "forerun",
    "tokenizers",
    "jinja2",
    "markupsafe",
    "gguf",
    "yaml",
    "safetensors",
    "psutil",
}
PACKAGES |= {
    "numpy",
    "click",
    "rich",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_inspection",
}
ELSEWHERE = {
    "bench",
    "diffusion",
    "export",
    "hf",
    "monitor",
    "proof",
    "simulation",
    "testing",
    "training",
}


@needs_kernels
def test_a_gguf_file_on_the_kernels_loads_what_it_needs(tmp_path: Path) -> None:
    """In particular neither transformers nor a part of torch that torch does not load by itself."""
    file = tmp_path / "model.gguf"
    template = {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    write_model(file, num_hidden_layers=1, metadata=template)
    arguments = (str(file), "--prompt", "Hi", "--max-tokens", "2", "--temperature", "0")
    done = subprocess.run(
        [sys.executable, "-c", GENERATES, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    tops = {name.partition(".")[0] for name in loaded}
    assert not {top for top in tops - PACKAGES - sys.stdlib_module_names if top[0] != "_"}
    assert not [name for name in loaded if name.startswith("torch.")]
    assert not ELSEWHERE & {name.split(".")[1] for name in loaded if name.startswith("forerun.")}


class Running:
    """A long run in a process of its own, with pipes for what it prints."""

    def __init__(self, *arguments: str) -> None:
        (read, output), (heard, errors) = os.pipe(), os.pipe()
        # Less than the text, so that the run cannot have ended before it is interrupted.
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 4096)
        self.process = forked.start(arguments, (0, output, errors))
        os.close(output)
        os.close(errors)
        self.stdout, self.stderr = FileIO(read), FileIO(heard)


@pytest.fixture
def running(cli: Cli) -> Iterator[Running]:
    pair = ("--model", cli.target, "--draft-model", cli.draft, "--raw", "--prompt", "def add")
    run = Running("generate", *pair, *LONG)
    with run.stdout, run.stderr:
        yield run
    run.process.kill()
    run.process.join()


def test_interrupt_ends_with_partial_text(running: Running, cli: Cli) -> None:
    first = running.stdout.read(1)
    assert first, running.stderr.read()
    assert running.process.pid
    os.kill(running.process.pid, signal.SIGINT)
    rest, talk = running.stdout.read(), running.stderr.read()
    running.process.join()
    assert running.process.exitcode == 130
    text = (first + rest).decode()
    assert text.endswith("\n")
    assert b"Traceback" not in talk
    assert b"cancelled" in talk
    # What is there by then is the beginning of what would have come.
    whole = cli.json(*LONG[:-1], "200")["text"]
    common = min(len(whole), len(text) - 1)
    assert whole[:common] == text[:common]


def test_a_closed_pipe_ends_silently(running: Running) -> None:
    assert running.stdout.read(1)
    running.stdout.close()
    talk = running.stderr.read()
    running.process.join()
    assert running.process.exitcode == 141
    assert talk == b""
