"""Threads of the kernels across forks, Python threads and the interpreter's end."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from forerun import _native
from forerun._native import rows as native

pytestmark = pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")

FORKED = """
import os, signal, sys
from forerun import _native

pool = _native.kernels.ThreadPool(3)
stream = _native.kernels.Stream(1 << 20)
stream.read(pool, 1 << 20)
child = os.fork()
signal.alarm(600)  # for a child that hangs
stream.read(pool, 1 << 20)
if child == 0:
    print("the child has run")
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
"""

USED = """
import ctypes
import sys
import forerun
from forerun.models.cpu import threads

# As if something that is never cleared held the module.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(threads.thread_pool))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(threads.rows.__dict__))

config = forerun.SpeculativeConfig(model="zoo-draft", num_speculative_tokens=3)
engine = forerun.load("zoo", config, dtype="int8", device="cpu")
engine.generate(["def add(a, b):"], forerun.SamplingParams(max_tokens=4))

def refuse():
    own = forerun.load("zoo", False, dtype="fp32", device="cpu")
    try:
        forerun.SpeculativeConfig(method="no such method")
    except forerun.ForerunError as error:
        return error

refusal = refuse()
print("refused", refusal.__traceback__ is not None)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_runs_and_ends() -> None:
    assert run(FORKED).stdout == "the child has run\n"


@pytest.mark.zoo
def test_models_that_are_used_are_freed_at_the_interpreters_end() -> None:
    """Also those that the frames of an error hold, and the pool where its module is never cleared; nanobind
    reports the others."""
    done = run(USED)
    assert done.stdout == "refused True\n"
    assert done.stderr == ""


def test_python_threads_do_not_disturb_each_other() -> None:
    logits = 4 * torch.randn(40, 700, generator=torch.Generator().manual_seed(1))
    arguments = [(0.8, 0, 0.9, 0.0), (1.0, 30, 1.0, 0.0), (1.3, 0, 0.99, 0.01)] * 8
    expected = [native.warp(logits, *warp)[0] for warp in arguments]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda warp: native.warp(logits, *warp)[0], arguments))
    assert all(map(torch.equal, results, expected))
