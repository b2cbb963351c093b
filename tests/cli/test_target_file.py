"""Files that cannot be written are refused before anything is computed, and nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from forerun.cli.main import application
from forerun.errors import ConfigError
from forerun.files import check_writable
from tests.helpers.refusals import refused


def test_what_can_be_written_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old.html"
    old.write_text("before")
    monkeypatch.chdir(tmp_path)
    for file in (str(old), "old.html", "new.html", "./new.html", str(tmp_path / "new.html")):
        check_writable("--certificate", file)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "before"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("", ["a directory"]),
        ("inner", ["a directory", "file's name"]),
        ("missing/new.html", ["no directory", "missing", "create it first"]),
        ("missing/deeper/new.html", ["no directory", "deeper"]),
        ("file/new.html", ["not a directory"]),
        ("pipe", ["device or pipe"]),
        ("a\0b", ["cannot be the name of a file"]),
        ("x" * 255, ["file name too long"]),
        ("x" * 300, ["file name too long"]),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, file: str, words: list[str]) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError) as caught:
        check_writable("--certificate", f"{tmp_path}/{file}")
    assert str(caught.value).startswith("--certificate is ")
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_takes_no_files(tmp_path: Path) -> None:
    # Nobody, root neither, makes files there.
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable("--certificate", "/proc/new.html")
    tmp_path.chmod(0o555)
    try:
        if not os.access(tmp_path, os.W_OK):
            with pytest.raises(ConfigError, match="permission denied"):
                check_writable("--certificate", str(tmp_path / "new.html"))
    finally:
        tmp_path.chmod(0o755)


def test_a_chart_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.simulation.sweep.sweep", None)
    file = str(tmp_path / "missing" / "chart.png")
    result = CliRunner().invoke(application, ["simulate", "--plot", file], catch_exceptions=False)
    refused(result, "--plot", "missing; create it first")
    assert list(tmp_path.iterdir()) == []
