"""Checkpoints converted to OpenVINO IR by the tool of its documentation, optimum-cli.

optimum-intel lags behind transformers, so the tool runs as a program of another environment: the
one that the variable FORERUN_OPTIMUM_CLI names, else the first on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from forerun.bench.peers.contract import converted
from forerun.errors import ConfigError, UnsupportedModelError

VARIABLE = "FORERUN_OPTIMUM_CLI"

WEIGHTS = {
    "fp32": ("fp32",),
    "bf16": ("fp16",),
    "int8": ("int8", "--sym"),
    "int4": ("int4", "--sym", "--group-size", "32", "--ratio", "1.0"),
}
"""Options of `--weight-format` by precision; it has no bf16, and 32 is the group of Q4_0."""


def export(checkpoint_dir: Path, precision: str, cache_dir: Path) -> Path:
    """The directory with the stateful IR of a checkpoint, converted unless it exists.

    Raises:
        ConfigError: without optimum-cli.
        UnsupportedModelError: when it fails, with the last line of its output.
    """
    directory = converted(cache_dir, checkpoint_dir, f"{precision}-ov")
    if directory.is_dir():
        return directory
    command = [_tool(), "export", "openvino", "--task", "text-generation-with-past"]
    command += ["--model", str(checkpoint_dir), "--weight-format", *WEIGHTS[precision]]
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        output = Path(scratch) / "model"
        done = subprocess.run([*command, str(output)], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UnsupportedModelError(f"optimum-cli cannot export {checkpoint_dir}: {reason}")
        output.rename(directory)
    return directory


def _tool() -> str:
    tool = os.environ.get(VARIABLE) or shutil.which("optimum-cli")
    if tool is None or shutil.which(tool) is None:
        raise ConfigError(
            f"the OpenVINO peer needs optimum-cli; run pip install 'optimum-intel[openvino]' in a "
            f"separate environment and set {VARIABLE} to the path of its optimum-cli."
        )
    return tool
