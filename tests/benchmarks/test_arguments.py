"""Every command of benchmarks, recipes and docs says how it is used, and takes no option for a name."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT

COMMANDS = sorted(
    path
    for folder in ("benchmarks", "docs", "recipes")
    for path in (ROOT / folder).rglob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    and path.name != "execute.py"  # needs the extra docs
)


def name_of(path: Path) -> str:
    """As it is typed: a module, or a script."""
    inside = path.relative_to(ROOT)
    if inside.parts[0] == "docs":
        return inside.as_posix()
    return ".".join(inside.with_suffix("").parts).removesuffix(".__main__")


def run_command(name: str) -> None:
    if name.endswith(".py"):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(ROOT / "docs")
            runpy.run_path(str(ROOT / name), run_name="__main__")
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", [name_of(path) for path in COMMANDS])
def test_an_option_is_no_name_of_a_file(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for argument, code in {"--help": 0, "--no-such-option": 2}.items():
        monkeypatch.setattr(sys, "argv", [name, argument])
        with pytest.raises(SystemExit) as ended:
            run_command(name)
        assert ended.value.code == code
        # A command with options of forerun refuses as forerun does.
        said = "".join(capsys.readouterr()).lower()
        assert "usage: " in said or (code and "no such option" in said)
        assert not list(tmp_path.iterdir())
