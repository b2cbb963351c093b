"""A reader sees the old file or the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.files import atomic_path, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.txt"
    write_text(path, "old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [one.name for one in path.parent.iterdir()] == ["file.txt"]
