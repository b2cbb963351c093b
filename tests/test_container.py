"""Limits of a container, as both versions of control groups write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import processor
from forerun.processor import cores, cpu_limit, memory_left


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this process's control group, version 2, two levels below the root."""
    process = tmp_path / "process"
    process.write_text("0::/pod/app\n")
    monkeypatch.setattr(processor, "ROOT", tmp_path / "root")
    monkeypatch.setattr(processor, "PROCESS", process)
    inner = tmp_path / "root" / "pod" / "app"
    inner.mkdir(parents=True)
    return inner


def test_without_limits_there_are_none(group: Path) -> None:
    assert (cpu_limit(), memory_left()) == (None, None)
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("4096\n")
    assert (cpu_limit(), memory_left()) == (None, None)


def test_the_tightest_group_limits(group: Path) -> None:
    (group / "cpu.max").write_text("400000 100000\n")
    (group.parent / "cpu.max").write_text("150000 100000\n")
    for folder, limit in ((group, 3000), (group.parent, 5000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("2500\n")
    assert (cpu_limit(), memory_left()) == (1.5, 500)


def test_pages_of_files_are_free(group: Path) -> None:
    (group / "memory.max").write_text("3000\n")
    (group / "memory.current").write_text("2900\n")
    (group / "memory.stat").write_text("anon 1000\ninactive_file 1700\nactive_file 200\n")
    assert memory_left() == 1800


def test_version_1_has_a_folder_for_each_controller(group: Path) -> None:
    root = group.parents[1]
    processor.PROCESS.write_text("4:cpu,cpuacct:/a\n3:memory:/a\n1:name=systemd:/\n")
    for folder in ("cpu/a", "memory/a"):
        (root / folder).mkdir(parents=True)
    (root / "cpu/a/cpu.cfs_quota_us").write_text("200000\n")
    (root / "cpu/a/cpu.cfs_period_us").write_text("100000\n")
    (root / "memory/a/memory.limit_in_bytes").write_text("9000\n")
    (root / "memory/a/memory.usage_in_bytes").write_text("4000\n")
    assert (cpu_limit(), memory_left()) == (2.0, 5000)
    (root / "cpu/a/cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_limit() is None


@pytest.mark.parametrize("content", ["", "max", "x y", "100000 0", "100000", "\x00\n", "-5 100000"])
def test_what_cannot_be_read_is_no_limit(group: Path, content: str) -> None:
    (group / "cpu.max").write_text(content)
    (group / "memory.max").write_text(content)
    assert (cpu_limit(), memory_left()) == (None, None)


def test_cores_are_those_of_the_container(group: Path) -> None:
    everywhere = cores()
    (group / "cpu.max").write_text("50000 100000\n")
    assert cores() == 1
    (group / "cpu.max").write_text(f"{(everywhere + 3) * 100000} 100000\n")
    assert cores() == everywhere
