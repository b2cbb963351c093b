"""`forerun simulate`: the published tables, simulation beside formula, the object of --json."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from forerun.cli.main import application
from forerun.theory.formulas import optimal_length
from tests.helpers.command_line import Write
from tests.helpers.refusals import refused
from tests.helpers.simulate_command import cells, content, simulate
from tests.helpers.terminal import COLOURED, GREEN, in_terminal

ROW = {"acceptance", "cost_ratio", "length", "tokens_per_round", "cost_per_token"}
ROW |= {"speedup", "best", "pays"}
DRAWN = {"simulated_tokens_per_round", "simulated_speedup", "interval"}


def test_the_object_has_its_keys() -> None:
    result = content("--rounds", "100", "--lengths", "1,2")
    assert set(result) == {"schema_version", "versions", "hardware", "mode", "settings", "rows"}
    assert set(result["versions"]) == {"forerun", "numpy", "python"}
    assert set(result["hardware"]) == {"cpu", "cores"}
    assert result["hardware"]["cpu"]
    assert result["hardware"]["cores"] >= 1
    assert result["mode"] == "sweep"
    assert result["settings"]["rounds"] == 100
    assert {frozenset(row) for row in result["rows"]} == {frozenset(ROW | DRAWN)}


def test_the_lengths_of_the_tutorial() -> None:
    """Its sweep at cost ratio 0.1; the cell that it prints as 1.83 is 1.825."""
    acceptances = ["0.5", "0.7", "0.85", "0.95"]
    result = simulate("--acceptance", ",".join(acceptances))
    rows = cells(result.stdout)
    assert [row[1] for row in rows] == [str(length) for length in range(1, 13)]
    first = [1.36, 1.46, 1.44, 1.38, 1.31, 1.24, 1.17, 1.11, 1.05, 1.00, 0.95, 0.91]
    assert [float(row[2].rstrip("*-")) for row in rows] == first
    assert [row[1] for row in rows if row[2].endswith("-")] == ["10", "11", "12"]
    best = {2: "1.46*", 4: "1.98*", 7: "2.85*", 12: "4.42*"}
    for column, (length, cell) in enumerate(best.items(), start=2):
        assert [row[1] for row in rows if row[column].endswith("*")] == [str(length)]
        assert rows[length - 1][column] == cell
    assert result.stderr == "* best length, - no faster than plain decoding\n"


def test_the_wall_clock_table_of_the_tutorial() -> None:
    ratios = ("--cost-ratio", "0.01,0.05,0.1,0.2,0.5", "--lengths", "5")
    rows = cells(simulate("--acceptance", "0.3,0.5,0.7,0.8,0.9,0.95", *ratios).stdout)
    assert [row[2].rstrip("*-") for row in rows] == ["1.36", "1.14", "0.95", "0.71", "0.41"]
    assert [row[5].rstrip("*-") for row in rows] == ["3.51", "2.95", "2.46", "1.84", "1.05"]
    slower = [cell.endswith("-") for row in rows for cell in row[2:]]
    assert sum(slower) == 6  # the cells that the tutorial marks


def test_rows_are_the_formulas() -> None:
    result = content("--acceptance", "0,0.4,1", "--cost-ratio", "0,0.3", "--lengths", "1-4,9")
    assert len(result["rows"]) == 3 * 2 * 5
    for row in result["rows"]:
        alpha, ratio, length = row["acceptance"], row["cost_ratio"], row["length"]
        # 1 + α + … + α^length tokens, for `length` drafted ones and a forward.
        tokens = sum(alpha**count for count in range(length + 1))
        assert row["tokens_per_round"] == pytest.approx(tokens)
        assert row["speedup"] == pytest.approx(tokens / (1 + ratio * length))
        assert row["cost_per_token"] == pytest.approx(1 / row["speedup"])
        assert row["pays"] is (row["speedup"] > 1)
    for alpha in (0.4, 1.0):
        (best,) = (
            row["length"]
            for row in result["rows"]
            if row["best"] and (row["acceptance"], row["cost_ratio"]) == (alpha, 0.0)
        )
        assert best == 9 == min(9, optimal_length(alpha, 0.0))


def test_simulated_rounds_agree_with_the_formula() -> None:
    result = content("--rounds", "4000", "--cost-ratio", "0.05,0.2", "--acceptance", "0.3,0.6,0.9")
    inside = [
        low <= row["speedup"] <= high for row in result["rows"] for low, high in [row["interval"]]
    ]
    assert len(inside) == 72
    # 95 % of them are expected; fewer than 64 of 72 would come once in a hundred seeds.
    assert 64 <= sum(inside) < 72
    for row in result["rows"]:
        low, high = row["interval"]
        assert low < row["simulated_speedup"] < high
        assert high - low < 0.1 * row["speedup"]


def test_a_setting_draws_its_own_numbers() -> None:
    options = ("--rounds", "100", "--acceptance", "0.6")
    alone = content(*options, "--lengths", "4")["rows"]
    beside = content(*options, "--lengths", "2-4", "--cost-ratio", "0.3,0.1")["rows"]
    assert alone[0] in [row | {"best": True} for row in beside]
    other = content(*options, "--lengths", "4", "--seed", "1")["rows"]
    assert other[0]["simulated_speedup"] != alone[0]["simulated_speedup"]


def test_a_pipe_gets_aligned_text_and_a_terminal_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--acceptance", "0.2,0.9", "--lengths", "1-6")
    lines = simulate(*options).stdout.splitlines()
    assert "\x1b" not in "".join(lines)
    assert {line.index("0.1") for line in lines[2:]} == {lines[2].index("0.1")}
    shown = in_terminal(monkeypatch, "simulate", *options)
    assert GREEN not in shown  # bold too
    assert "\x1b[1;32m" in shown
    assert "3.26*" in COLOURED.sub("", shown)
    monkeypatch.setenv("NO_COLOR", "1")
    bare = in_terminal(monkeypatch, "simulate", *options)
    assert "32m" not in bare
    assert "3.26*" in bare


PLAN = ("--hardware", "h100", "--target", "llama-3.1-70b", "--draft", "8b", "--num-devices", "4")


@pytest.mark.parametrize(
    "options",
    [
        ("--rounds", "100", "--lengths", "1,2", "--acceptance", "0.5,0.9"),
        (*PLAN, "--batch", "1,16384", "--context", "1k,8k,32k,128k", "--acceptance", "0.5"),
    ],
    ids=lambda options: options[0],
)
def test_nothing_is_cut_however_narrow_the_terminal(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped, shown = {}, {}
    for width in ("40", "400"):
        monkeypatch.setenv("COLUMNS", width)
        piped[width] = simulate(*options).stdout
        lines = COLOURED.sub("", in_terminal(monkeypatch, "simulate", *options)).splitlines()
        shown[width] = {" ".join(line.split()) for line in lines}
    assert piped["40"] == piped["400"]
    for table in piped["400"].split("\n\n"):
        title, header, *rows = (" ".join(line.split()) for line in table.splitlines())
        assert {title, *rows} <= shown["40"]
        assert {title, header, *rows} <= shown["400"]


@pytest.mark.parametrize("name", ["acceptance", "lengths"])
def test_an_empty_list_is_refused(write: Write, name: str) -> None:
    file = write("config.toml", f"{name} = []\n")
    result = CliRunner().invoke(application, ["simulate", "--config", file])
    refused(result, f"--{name}", "the list is empty")


def test_it_answers_without_torch() -> None:
    """The sweep, its simulation and a plan, each in a fresh process: loading torch takes seconds."""
    for options in (
        [],
        ["--rounds", "10000", "--cost-ratio", "0.05,0.1,0.2"],
        ["--hardware", "h100", "--target", "llama-3.1-70b", "--draft", "8b"],
        ["--json"],
    ):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys\n"
                "from forerun.cli.main import application\n"
                f"try: application.main(['simulate', *{options!r}], prog_name='forerun')\n"
                "except SystemExit: pass\n"
                "loaded = {'torch', 'transformers', 'tokenizers', 'matplotlib'} & set(sys.modules)\n"
                "print(loaded or 'none', file=sys.stderr)",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.splitlines()[-1] == "none", done.stderr
        assert done.stdout


def test_help_loads_no_numpy() -> None:
    code = (
        "import sys\nfrom forerun.cli.main import application\n"
        "try: application.main(['simulate', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'torch', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"--hardware" in done.stdout
