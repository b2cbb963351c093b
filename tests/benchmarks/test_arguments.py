"""Benchmarks say how they are used, and take no option for a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import benchmarks
from benchmarks import footprint, questions

COMMANDS = [
    path
    for path in Path(benchmarks.__file__).parent.rglob("*.py")
    if "__main__" in path.read_text()
]


@pytest.mark.parametrize("main", [footprint.main, questions.main])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--no-such-option", 2)])
def test_an_option_is_no_name_of_a_file(
    main: Callable[[Sequence[str]], None],
    argument: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == code
    assert "usage: " in "".join(capsys.readouterr())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_no_benchmark_reads_its_arguments_by_place(path: Path) -> None:
    """Where they stand in the list: `--help` would be one of them."""
    source = path.read_text()
    assert "ArgumentParser" in source
    assert not re.search(r"sys\.argv\[\d+\]|= sys\.argv\[1:\]", source)
