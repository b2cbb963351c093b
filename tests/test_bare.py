"""Nothing that only an extra brings is needed by the usual commands; `.ci/bare` installs without extras."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import chain

import pytest

from tests.helpers.documents import ROOT

# Names of packages that are imported by another name.
MODULES = {
    "llama-cpp-python": "llama_cpp",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "pytest-timeout": "pytest_timeout",
}
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())

from forerun.cli.main import application

for arguments in (
    ["--help"],
    ["info", "zoo"],
    ["generate", "-m", "zoo", "--temperature", "0", "-n", "4", "--prompt", "def add(a, b):"],
    ["simulate", "--acceptance", "0.7"],
    [*("bench", "-m", "zoo", "--method", "ngram", "--num-speculative-tokens", "2", "--temperature", "0"),
     *("--limit", "1", "-n", "4", "--minutes", "0")],
    ["diffusion", "--help"],
):
    try:
        application.main(arguments, prog_name="forerun")
    except SystemExit as ended:
        assert not ended.code, arguments
"""


def extras() -> set[str]:
    """Modules of what the extras bring and the package itself does not need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = chain.from_iterable(project["optional-dependencies"].values())
    # One extra of the package asks for another.
    needed = {project["name"], *map(_name_of, project["dependencies"])}
    names = {_name_of(line) for line in brought} - needed
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def _name_of(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0]


@pytest.mark.slow
@pytest.mark.zoo
def test_six_commands_need_no_extra() -> None:
    blocked = extras()
    assert {"diffusers", "matplotlib", "sklearn", "PIL", "hypothesis"} <= blocked
    script = f"BLOCKED = {blocked!r}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
