"""Processes of their own: what is loaded, how long it takes, signals and pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
import subprocess, sys
from forerun.cli.main import application

try:
    application.main(["generate", "-m", *sys.argv[1:]], prog_name="forerun")
except SystemExit as end:
    assert not end.code, end.code
bare = [sys.executable, "-c", "import torch, sys; print(*sys.modules)"]
by_torch = subprocess.run(bare, capture_output=True, text=True, check=True).stdout.split()
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
@pytest.mark.parametrize("template", [None, "{{ bos_token }}{{ messages[0].content }}"])
def test_a_gguf_file_on_the_kernels_loads_what_it_needs(
    template: str | None, tmp_path: Path
) -> None:
    """In particular neither transformers nor a part of torch that torch does not load by itself."""
    file = tmp_path / "model.gguf"
    more = {} if template is None else {"tokenizer.chat_template": template}
    write_model(file, num_hidden_layers=1, metadata=more)
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


@pytest.fixture
def process(cli: Cli) -> Any:
    """A long run in a process of its own, with a pipe for its output."""
    pair = ("--model", cli.target, "--draft-model", cli.draft, "--raw", "--prompt", "def add")
    program = [sys.executable, "-m", "forerun.cli.main", "generate", *pair, *LONG]
    # The pipe holds less than the text, so that the run cannot have ended before it is interrupted.
    # A suite that runs in the background is started with interrupts ignored, and hands that on.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Without a buffer: `communicate` reads past it, and what it held would be missing.
    try:
        running = subprocess.Popen(
            program,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pipesize=4096,
        )
    finally:
        signal.signal(signal.SIGINT, ignored)
    yield running
    running.kill()
    running.wait()
    for stream in (running.stdout, running.stderr):
        assert stream is not None
        stream.close()


def test_interrupt_ends_with_partial_text(process: Any, cli: Cli) -> None:
    first = process.stdout.read(1)
    assert first, process.stderr.read()
    process.send_signal(signal.SIGINT)
    rest, talk = process.communicate()
    assert process.returncode == 130
    text = (first + rest).decode()
    assert text.endswith("\n")
    assert b"Traceback" not in talk
    assert b"cancelled" in talk
    # What is there by then is the beginning of what would have come.
    whole = cli.json(*LONG[:-1], "200")["text"]
    common = min(len(whole), len(text) - 1)
    assert whole[:common] == text[:common]


def test_a_closed_pipe_ends_silently(process: Any) -> None:
    assert process.stdout.read(1)
    process.stdout.close()
    talk = process.stderr.read()
    assert process.wait() == 141
    assert talk == b""
