"""Planning for hardware, and charts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from forerun.cli.main import application
from forerun.costs.hardware import HARDWARE
from forerun.report.plot import figure_of
from forerun.simulation.planning import plan
from forerun.simulation.request import SimulateRequest
from tests.helpers.command_line import Write
from tests.helpers.refusals import refused
from tests.helpers.simulate_command import cells, content, simulate

PAIR = ("--target", "llama-3.1-8b", "--draft", "llama-3.2-1b")
GRID = ("--batch", "1,64,1024", "--context", "1k,32k", "--acceptance", "0.4,0.8")
PNG = b"\x89PNG\r\n\x1a\n"


# By acceptance, context and batch: length, speed-up, gigabytes, and whether they fit. Frozen.
ROWS = {
    (0.4, 1024, 1): (1, 1.201283, 18.699256, True),
    (0.4, 1024, 64): (1, 1.170837, 29.268902, True),
    (0.4, 1024, 1024): (1, 0.932582, 190.330175, False),
    (0.4, 32768, 1): (1, 1.182782, 23.900193, True),
    (0.4, 32768, 64): (1, 1.123973, 362.128867, False),
    (0.4, 32768, 1024): (1, 1.110498, 5516.089623, False),
    (0.8, 1024, 1): (4, 2.023011, 18.699256, True),
    (0.8, 1024, 64): (3, 1.859906, 29.268902, True),
    (0.8, 1024, 1024): (2, 1.218527, 190.330175, False),
    (0.8, 32768, 1): (4, 1.937968, 23.900193, True),
    (0.8, 32768, 64): (3, 1.699732, 362.128867, False),
    (0.8, 32768, 1024): (3, 1.656483, 5516.089623, False),
}
LOSING = {(0.4, 1024): [[228, 1024]], (0.4, 32768): [], (0.8, 1024): [], (0.8, 32768): []}


def test_rows_of_a_known_pair_on_known_hardware() -> None:
    result = content("--hardware", "h100", *PAIR, *GRID, "--lengths", "1-8")
    assert len(result["rows"]) == len(ROWS)
    for row in result["rows"]:
        length, gain, gigabytes, fits = ROWS[row["acceptance"], row["context"], row["batch"]]
        assert (row["length"], row["fits"], row["pays"]) == (length, fits, gain > 1)
        assert row["speedup"] == pytest.approx(gain, abs=1e-6)
        assert row["memory_bytes"] / 1e9 == pytest.approx(gigabytes, abs=1e-6)
        ratio = row["tokens_per_second"] / row["plain_tokens_per_second"]
        assert ratio == pytest.approx(row["speedup"])
    # 989.4 TFLOP/s over 3,350 GB/s.
    assert result["limits"]["ridge_point"] == pytest.approx(295.343284)
    found = {
        (entry["acceptance"], entry["context"]): entry["batches"]
        for entry in result["losing_batches"]
    }
    assert found == LOSING


def test_drafts_from_a_window_pay_from_some_context_on() -> None:
    """Where the break-even is said to be there is a gain, and just below there is none."""
    window = ("--hardware", "h100", "--target", "llama-3.1-8b", "--draft-window", "1024")
    shares = ("--acceptance", "0.6,0.9", "--batch", "1,16")
    found = content(*window, *shares)["break_even_contexts"]
    by_place = {(row["acceptance"], row["batch"]): row["context"] for row in found}
    assert by_place[0.9, 16] < by_place[0.9, 1] < by_place[0.6, 1]
    for (acceptance, batch), context in by_place.items():
        assert context > 1024
        near = ("--acceptance", str(acceptance), "--batch", str(batch))
        below, at = content(*window, *near, "--context", f"{context - 1},{context}")["rows"]
        assert at["pays"]
        assert below["speedup"] <= 1.0 + 1e-9
    assert "Context from which drafts from 1024 tokens" in simulate(*window, *shares).stdout


@pytest.mark.parametrize("other", [("--draft", "llama-3.2-1b"), ("--cost-ratio", "0.1")])
def test_a_window_is_the_only_way_to_draft(other: tuple[str, ...]) -> None:
    window = ("--hardware", "h100", "--target", "llama-3.1-8b", "--draft-window", "1024")
    result = CliRunner().invoke(application, ["simulate", *window, *other])
    refused(result, "--draft-window", other[0])


def test_tables_mark_what_loses_and_what_does_not_fit() -> None:
    small = ("--bandwidth", "20", "--flops", "0.32", "--memory", "40", "--acceptance", "0.6")
    grid = ("--batch", "1,16,256", "--context", "1k")
    result = simulate(*small, "--target", "llama-3.1-8b", "--draft", "1b", *grid)
    small_batch, medium, large = (row[2] for row in cells(result.stdout))
    assert float(small_batch.rstrip("!-")) > 1.0
    assert medium.endswith("-")
    assert large.endswith("!")
    assert "no faster" in result.stderr
    assert "does not fit" in result.stderr
    titles = [block.splitlines()[0] for block in result.stdout.split("\n\n")]
    assert len(titles) == 4
    assert "your own" in titles[3]


def test_own_hardware_equals_the_named() -> None:
    device = HARDWARE["h100"]
    own = ("--bandwidth", "3350", "--flops", "989.4", "--memory", "80")
    named = content("--hardware", "h100", *PAIR, *GRID)
    assert content(*own, *PAIR, *GRID)["rows"] == named["rows"]
    assert content("--hardware", "l4", *own, *PAIR, *GRID)["rows"] == named["rows"]
    assert named["limits"]["device"]["bandwidth"] == device.bandwidth
    unknown = content(*own[:4], *PAIR, *GRID)
    assert {row["fits"] for row in unknown["rows"]} == {None}


def test_drafts_that_cost_nothing_or_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    base = ("--hardware", "b200", "--target", "llama-3.1-405b", "--dtype", "fp8", *GRID)
    nothing = content(*base)["rows"]
    assert content(*base, "--draft", "none")["rows"] == nothing
    assert content(*base, "--cost-ratio", "0")["rows"] == nothing
    assert {row["cost_ratio"] for row in nothing} == {0.0}
    # A variable yields to a flag, also one that would be refused.
    monkeypatch.setenv("FORERUN_COST_RATIO", "0.1,0.2")
    assert content(*base, "--draft", "none")["rows"] == nothing
    share = content(*base, "--cost-ratio", "0.2")["rows"]
    assert [row["cost_ratio"] for row in share] == pytest.approx([0.2] * 12)
    gains = np.array([[a["speedup"], b["speedup"]] for a, b in zip(nothing, share, strict=True)])
    assert (gains[:, 0] > gains[:, 1]).all()


def test_free_drafts_give_an_upper_bound_and_it_says_so() -> None:
    base = ("--hardware", "a100", "--target", "llama-3.1-8b", *GRID)
    for options, bound in (
        ((), True),
        (("--cost-ratio", "0.1"), False),
        (("--draft", "1b"), False),
    ):
        assert content(*base, *options)["upper_bound"] is bound
        result = simulate(*base, *options)
        assert ("Upper bound" in result.stdout.splitlines()[0]) is bound
        assert ("upper bounds; give --draft or --cost-ratio" in result.stderr) is bound


def test_smaller_weights_and_more_devices() -> None:
    base = ("--hardware", "l4", "--target", "14b", "--batch", "1", "--context", "1k")
    rows = [
        content(*base, "--acceptance", "0.7", *more)["rows"][0]
        for more in ((), ("--dtype", "int4"), ("--num-devices", "4", "--parallel-efficiency", "1"))
    ]
    assert [row["fits"] for row in rows] == [False, True, True]
    plain = [row["plain_tokens_per_second"] for row in rows]
    assert plain[2] == pytest.approx(4 * plain[0])
    assert plain[1] > 3 * plain[0]
    slow = content(*base, "--acceptance", "0.7", "--overhead", "1000")["rows"][0]
    assert slow["plain_tokens_per_second"] < 1.0
    assert slow["verification_cost"] == pytest.approx(1.0)


def test_lists_come_from_files_and_variables_too(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = content("--acceptance", "0.3,0.6", "--lengths", "2-4")["rows"]
    file = write("options.toml", 'acceptance = [0.3, 0.6]\nlengths = "2-4"\n')
    assert content("--config", file)["rows"] == expected
    assert (
        content("--acceptance", "0.9", "--acceptance", "0.3,0.6,0.3", "--lengths", "2,3,4")["rows"]
        == expected
    )
    monkeypatch.setenv("FORERUN_ACCEPTANCE", "0.3,0.6")
    monkeypatch.setenv("FORERUN_LENGTHS", "2-4")
    assert content()["rows"] == expected


def test_variables_for_other_commands_and_modes_do_not_disturb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = content()["rows"]
    for name, value in {"SEED": "7", "DTYPE": "auto", "BATCH": "3", "TARGET": "8b"}.items():
        monkeypatch.setenv(f"FORERUN_{name}", value)
    assert content()["rows"] == expected
    monkeypatch.setenv("FORERUN_HARDWARE", "h100")
    assert content()["mode"] == "plan"


@pytest.mark.parametrize(
    "options",
    [
        ("--cost-ratio", "0.1,0.3"),
        ("--hardware", "rtx-4090", *PAIR, *GRID),
    ],
    ids=lambda options: options[0],
)
def test_charts_are_drawn(options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "chart.png"
    result = simulate(*options, "--plot", str(file))
    assert file.read_bytes()[:8] == PNG
    assert str(file) in result.stderr
    assert result.stdout
    assert [path.name for path in file.parent.iterdir()] == ["chart.png"]


def test_panels_tell_their_lines_apart_and_hide_none() -> None:
    """16 lines: four contexts, in each four lines that differ in colour and in style."""
    charts = plan(
        SimulateRequest(
            hardware="a100",
            target="8b",
            draft="1b",
            lengths=(1, 2, 3, 4),
            batch=(1,),
        )
    ).charts
    figure = figure_of(charts)
    figure.draw_without_rendering()
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert len(panels) == 4
    for axes in figure.axes:
        *lines, break_even = axes.get_lines()
        assert break_even.get_label() == "break-even"
        assert len({line.get_color() for line in lines}) == 4
        assert len({line.get_linestyle() for line in lines}) == 4
    (legend,) = filter(None, (axes.get_legend() for axes in figure.axes))
    assert len(legend.get_texts()) == 5
    assert not any(legend.get_window_extent().overlaps(panel) for panel in panels)


def test_a_chart_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    file = tmp_path / "chart.svg"
    simulate("--plot", str(file))
    before = file.read_bytes()
    assert b"<svg" in before

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    result = CliRunner().invoke(application, ["simulate", "--plot", str(file)])
    assert result.exit_code == 2
    assert "chart.svg cannot be written: no space left" in result.stderr
    assert "Speed-up" in result.stdout  # What was computed is not lost.
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in this table is how Python marks a module that must not be found.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(application, ["simulate", "--plot", "x.png"])
    refused(result, "pip install 'forerun[plot]'")
    assert not Path("x.png").exists()


BIG = ("--hardware", "h100", "--target", "70B")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--acceptance", "1.5"), ["--acceptance", "1.5", "[0, 1]"]),
        (("--acceptance", "-0.1"), ["--acceptance", "[0, 1]"]),
        (("--acceptance", "nan"), ["--acceptance", "[0, 1]"]),
        (("--acceptance", "high"), ["--acceptance", "'high'"]),
        (("--acceptance", ""), ["--acceptance"]),
        (("--cost-ratio", "-1"), ["--cost-ratio", "[0, 1000]"]),
        (("--cost-ratio", "inf"), ["--cost-ratio"]),
        (("--lengths", "-3"), ["--lengths", "-3", "[1, 256]"]),
        (("--lengths", "0"), ["--lengths", "[1, 256]"]),
        (("--lengths", "2.5"), ["--lengths", "'2.5'", "1-8,16"]),
        (("--lengths", "5-2"), ["--lengths", "'5-2'"]),
        (("--lengths", "1-999999999999"), ["--lengths", "4096"]),
        (("--rounds", "0"), ["--rounds"]),
        (("--seed", "1"), ["--seed", "--rounds"]),
        (("--seed", "-1", "--rounds", "100"), ["--seed"]),
        ((*BIG, "--seed", "3"), ["--seed", "--rounds"]),
        (("--target", "70B"), ["--target", "--hardware"]),
        ((*BIG, "--rounds", "100"), ["--rounds", "--hardware"]),
        (BIG[:2], ["--target", "qwen3-8b"]),
        (("--hardware", "h1000", "--target", "70B"), ["'h1000'", "Did you mean 'h100'?", "l40s"]),
        ((*BIG[:3], "llama-3.1-8"), ["'llama-3.1-8'", "Did you mean 'llama-3.1-8b'?"]),
        ((*BIG[:3], "12"), ["12 parameters", "70B"]),
        ((*BIG, "--draft", "tiny"), ["'tiny'", "Known"]),
        ((*BIG, "--draft", "1b", "--cost-ratio", "0.1"), ["--draft", "--cost-ratio", "exclude"]),
        ((*BIG, "--cost-ratio", "0.1,0.2"), ["--cost-ratio", "one"]),
        ((*BIG, "--draft-dtype", "int4"), ["--draft-dtype", "--draft"]),
        ((*BIG, "--dtype", "fp7"), ["dtype", "'fp7'", "int4"]),
        (("--hardware", "a100", "--target", "8b", "--dtype", "fp8"), ["a100", "fp8"]),
        ((*BIG, "--parallel-efficiency", "0.5"), ["--parallel-efficiency", "--num-devices"]),
        ((*BIG, "--parallel-efficiency", "0", "--num-devices", "2"), ["[0.001, 1]"]),
        ((*BIG, "--overhead", "-1"), ["--overhead"]),
        ((*BIG, "--batch", "0"), ["--batch", "[1, 16384]"]),
        ((*BIG, "--context", "-1"), ["--context"]),
        ((*BIG, "--memory", "0"), ["--memory"]),
        (("--bandwidth", "0", "--flops", "1", "--target", "8b"), ["--bandwidth", "0.0"]),
        (("--bandwidth", "1e-300", "--flops", "1", "--target", "8b"), ["--bandwidth", "1e-06"]),
        (("--bandwidth", "nan", "--flops", "1", "--target", "8b"), ["--bandwidth", "nan"]),
        (("--bandwidth", "20", "--target", "8b"), ["--flops"]),
        (("--flops", "20", "--target", "8b"), ["--bandwidth"]),
        (("--plot", "chart.gif"), ["chart.gif", ".png"]),
        (("--plot", "/no/such/chart.png"), ["--plot", "no directory /no/such", "create it first"]),
        (("--hardwear", "h100"), ["'--hardware'"]),
        (("--alpha", "0.5"), ["'--alpha'", "'--acceptance'"]),
        (("--gamma", "5"), ["'--gamma'", "'--lengths'"]),
        (("--num-speculative-tokens", "5"), ["'--lengths'"]),
        (("--cost", "0.1"), ["'--cost'", "'--cost-ratio'"]),
        (("--batch-size", "8"), ["'--batch-size'", "'--batch'"]),
        (("--ctx-size", "1k"), ["'--ctx-size'", "'--context'"]),
        (("--max_context", "1k"), ["'--context'"]),
        (("--draft-model", "8b"), ["'--draft'"]),
        (("stray",), ["stray"]),
    ],
)
def test_wrong_use_is_one_line(options: tuple[str, ...], words: list[str]) -> None:
    result = CliRunner().invoke(application, ["simulate", *options], catch_exceptions=False)
    refused(result, *words)


def test_a_file_with_an_option_for_something_else(write: Write) -> None:
    file = write("options.toml", 'target = "8b"\n')
    result = CliRunner().invoke(application, ["simulate", "--config", file])
    refused(result, "--target", "--hardware")
