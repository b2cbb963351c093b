"""FORERUN_KERNELS names the highest instruction set of the kernels, or turns them off."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from forerun import _native
from tests.helpers.kernel_models import ORDER

# Loads neither torch nor NumPy.
SCRIPT = """
import json
from forerun import _native
kernels = _native.kernels
print(json.dumps([_native.REASON, kernels.level() if _native.AVAILABLE else None]))
"""


def start(value: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the variable is read once."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"FORERUN_KERNELS": value},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not _native.AVAILABLE, reason="built without kernels")
@pytest.mark.parametrize("level", ORDER)
def test_no_level_above_the_named_one_is_used(level: str) -> None:
    best = json.loads(start("").stdout)[1]
    assert json.loads(start(level).stdout) == ["", min(level, best, key=ORDER.index)]


def test_kernels_are_turned_off() -> None:
    assert json.loads(start("off").stdout) == ["FORERUN_KERNELS is off", None]


def test_other_values_are_refused() -> None:
    ended = start("sse2")
    assert ended.returncode == 1
    assert "ConfigError: FORERUN_KERNELS is 'sse2'; it must be one of amx, avx512, avx2, " in (
        ended.stderr
    )
