"""A checkpoint of ours as OpenVINO IR, by the tool that its documentation names: optimum-cli.

optimum-intel lags behind transformers, so the tool runs as a program of its own, in whatever
environment has it: that of the variable FORERUN_OPTIMUM_CLI, else the first on PATH.
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
"""By precision, options of `--weight-format`; it knows no bf16, and 32 is the group of Q4_0."""


def export(checkpoint_dir: Path, precision: str, cache_dir: Path) -> Path:
    """The directory with the stateful IR of a checkpoint, made now unless it is there.

    Raises:
        ConfigError: without optimum-cli.
        UnsupportedModelError: when it fails, with the last line of what it said.
    """
    directory = converted(cache_dir, checkpoint_dir, f"{precision}-ov")
    if directory.is_dir():
        return directory
    command = [_tool(), "export", "openvino", "--task", "text-generation-with-past"]
    command += ["--model", str(checkpoint_dir), "--weight-format", *WEIGHTS[precision]]
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        made = Path(scratch) / "model"
        done = subprocess.run([*command, str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["nothing said"]
            raise UnsupportedModelError(f"optimum-cli cannot export {checkpoint_dir}: {said[-1]}")
        made.rename(directory)
    return directory


def _tool() -> str:
    tool = os.environ.get(VARIABLE) or shutil.which("optimum-cli")
    if tool is None or shutil.which(tool) is None:
        raise ConfigError(
            f"OpenVINO's peer needs optimum-cli; run pip install 'optimum-intel[openvino]' in an "
            f"environment of its own and set {VARIABLE} to the path of its optimum-cli."
        )
    return tool
