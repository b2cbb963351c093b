"""`forerun diffusion`: every command on tiny pipelines with random weights, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from forerun.diffusion.loading import open_pipeline, save_pipeline
from tests.helpers.command_line import Cli
from tests.helpers.refusals import refused
from tests.helpers.tiny_pipelines import (
    WIDTH,
    clip_pipeline,
    transformer_pipeline,
    unet_pipeline,
    unguided_pipeline,
)

FEW = ("--count", "3", "--steps", "6", "--threads", "1")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pipelines")
    makers = {
        "unet": unet_pipeline,
        "transformer": transformer_pipeline,
        "unguided": unguided_pipeline,
        "clips": clip_pipeline,
    }
    for name, make in makers.items():
        save_pipeline(make(), root / name)
    return {name: str(root / name) for name in makers}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sampled(cli: Cli, folder: str, *options: str) -> Any:
    result = cli.run("diffusion", "sample", "--pipeline", folder, *FEW, *options, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_methods_take_fewer_evaluations(cli: Cli, folders: dict[str, str]) -> None:
    labels = ("--labels", "1,4")
    plain = sampled(cli, folders["unet"], *labels)
    assert (plain["exactness"], plain["calls"], plain["evaluations"]) == ("exact", 6, 36)
    cached = sampled(
        cli,
        folders["unet"],
        *labels,
        "--method",
        "cfg_cache",
        "--cfg-interval",
        "2",
        "--no-cfg-extrapolate",
    )
    assert (cached["exactness"], cached["evaluations"]) == ("approximate", 27)
    again = sampled(cli, folders["unet"], *labels, "--method", "feature_cache", "--compare")
    assert again["exactness"] == "approximate"
    assert again["full"]["evaluations"] == 36
    assert again["psnr"]["low"] <= again["psnr"]["value"] <= again["psnr"]["high"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unet", ("--labels", "2", "--eta", "1")),
        ("unet", ("--labels", "2", "--scheduler", "ddpm")),
        ("transformer", ("--labels", "2,300", "--eta", "0.5")),
        ("unguided", ("--scheduler", "ddpm")),
    ],
)
def test_speculative_sampling_is_exact_and_says_so(
    cli: Cli, folders: dict[str, str], name: str, options: tuple[str, ...]
) -> None:
    made = sampled(
        cli, folders[name], "--method", "speculative", "--num-draft-steps", "3", *options
    )
    assert made["exactness"] == "exact"
    assert made["sequential_passes"] == made["calls"] <= 6
    assert 0 <= made["acceptance"] <= 1


def test_prompts_from_a_file(cli: Cli, folders: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "conditions.safetensors"
    save_file({"prompt_embeds": torch.randn(2, 3, WIDTH)}, file)
    made = sampled(cli, folders["unet"], "--conditions", str(file))
    assert made["evaluations"] == 36


def test_pictures(cli: Cli, folders: dict[str, str], tmp_path: Path) -> None:
    sheet, clip = tmp_path / "sheet.png", tmp_path / "clip.gif"
    result = cli.run(
        "diffusion",
        "sample",
        "--pipeline",
        folders["unet"],
        *FEW,
        "--labels",
        "1",
        "--output",
        str(sheet),
    )
    assert result.exit_code == 0, result.output
    assert "3 samples (exact): 6 passes" in result.stdout
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"
    options = (
        "--method",
        "key_frames",
        "--key-interval",
        "2",
        "--refine-steps",
        "1",
        "--frames",
        "4",
    )
    result = cli.run(
        *("diffusion", "sample", "--pipeline", folders["clips"], *FEW, "--labels", "1"),
        *options,
        *("--output", str(clip)),
    )
    assert result.exit_code == 0, result.output
    assert "approximate: changes the samples" in result.stderr
    with Image.open(clip) as picture:
        assert (picture.format, getattr(picture, "n_frames", 1)) == ("GIF", 4)


def test_a_picture_is_written_without_being_asked_for_and_replaces_none(
    cli: Cli, folders: dict[str, str], tmp_path: Path
) -> None:
    command = ("diffusion", "sample", "--pipeline", folders["unet"], *FEW)
    first, second = (cli.run(*command, "--labels", label) for label in ("1", "2"))
    assert "written to samples.png" in first.stderr
    assert "written to samples-2.png" in second.stderr
    pictures = [(tmp_path / name).read_bytes() for name in ("samples.png", "samples-2.png")]
    assert pictures[0] != pictures[1]
    content = sampled(cli, folders["unet"])
    assert Path(content["output"]).exists()


def test_a_comparison_says_in_words_which_was_faster(cli: Cli, folders: dict[str, str]) -> None:
    command = ("diffusion", "sample", "--pipeline", folders["unet"], *FEW, "--labels", "1")
    result = cli.run(*command, "--method", "cfg_cache", "--compare")
    words = ("SLOWER than", "times as fast as", "as long as")
    assert sum(word in result.stdout for word in words) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "clips"])
def test_the_bench(cli: Cli, folders: dict[str, str], tmp_path: Path, name: str) -> None:
    plot, sheet = (
        tmp_path / "roofline.png",
        tmp_path / f"sheet.{'gif' if name == 'clips' else 'png'}",
    )
    few = ("--count", "2", "--steps", "10", "--pairs", "1", "--batches", "1,2", "--threads", "1")
    frames = ("--frames", "6") if name == "clips" else ("--plot", str(plot))
    pipeline = ("--pipeline", folders[name], "--labels", "1", "--sheet", str(sheet))
    result = cli.run("diffusion", "bench", *pipeline, *few, *frames, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    methods = {row["setting"].partition(",")[0]: row for row in content["rows"]}
    expected = {"cfg_cache", "feature_cache", "key_frames" if name == "clips" else "speculative"}
    assert set(methods) == expected
    for method, row in methods.items():
        assert row["exactness"] == ("exact" if method == "speculative" else "approximate")
        assert 0 < row["least"] <= row["speedup"] <= row["most"]
    assert methods["cfg_cache"]["full_evaluations"] == (2 * 2 * 10 * (6 if name == "clips" else 1))
    single, double = content["roofline"]
    assert double["flops"] == pytest.approx(2 * single["flops"])
    assert double["bytes"] == single["bytes"]
    with Image.open(sheet) as picture:
        assert picture.height > 7 * 16 * 2  # A row for each setting.
    if name == "unet":
        assert plot.exists()


def test_distilling_leaves_a_pipeline(cli: Cli, folders: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "student"
    result = cli.run(
        *("diffusion", "distill", "--pipeline", folders["unet"], "--labels", "1,2"),
        *("--output", str(output), "--start-steps", "8", "--end-steps", "4", "--train-steps", "2"),
        *("--examples", "6", "--batch-size", "2", "--threads", "1"),
    )
    assert result.exit_code == 0, result.output
    assert "a student of 4 steps (approximate)" in result.stdout
    assert type(open_pipeline(output)).__name__ == "StableDiffusionPipeline"
    again = cli.run(
        *("diffusion", "distill", "--pipeline", folders["unet"], "--output", str(output)),
    )
    refused(again, "not empty")


def test_wrong_use(cli: Cli, folders: dict[str, str], tmp_path: Path) -> None:
    def sample(name: str, *options: str) -> Any:
        return cli.run("diffusion", "sample", "--pipeline", folders[name], *FEW, *options)

    none = ("--labels", "1", "--method", "speculative", "--eta", "0")
    refused(sample("unet", *none), "deterministic", "eta")
    refused(sample("unguided", "--labels", "1"), "not conditional")
    refused(sample("unguided", "--method", "cfg_cache"), "guidance")
    refused(sample("unet", "--labels", "1", "--frames", "4"), "makes images")
    refused(sample("unet", "--labels", "1", "--method", "key_frames"), "clips")
    refused(sample("unet", "--labels", "99"), "label 99")
    refused(sample("unet", "--labels", "1", "--output", str(tmp_path / "x.gif")), ".png")
    refused(sample("unet", "--conditions", str(tmp_path / "none")), "none")
    refused(cli.run("diffusion", "sample", "--pipeline", str(tmp_path)), "not a pipeline")
    refused(cli.run("diffusion", "bench", "--methods", "magic"), "magic")
    refused(sample("unet", "--labels", "1", "--steps", "65"), "trained with 64")
    refused(sample("unet", "--feature-interval", "3"), "options of method feature_cache are given")
    other = ("--method", "cfg_cache", "--num-draft-steps", "3")
    refused(sample("unet", *other), "options of method speculative are given", "cfg_cache")
    bench = ("diffusion", "bench", "--pipeline", folders["unguided"], *FEW, "--batches", "1")
    result = cli.run(*bench, "--methods", "cfg_cache")
    assert "without cfg_cache, every 2 steps" in result.output
    result = cli.run(*bench, "--methods", "none")
    assert (result.exit_code, result.output.count("FLOP a byte")) == (0, 1)


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ({"prompt_embeds": torch.zeros(2, 3, WIDTH + 1)}, "tokens"),
        ({"prompt_embeds": torch.zeros(2, WIDTH)}, "prompt_embeds"),
        ({"prompt_embeds": torch.zeros(0, 3, WIDTH)}, "prompt_embeds"),
        ({"other": torch.zeros(2, 3, WIDTH)}, "prompt_embeds"),
        (
            {
                "prompt_embeds": torch.zeros(2, 3, WIDTH),
                "negative_prompt_embeds": torch.zeros(5, 3, WIDTH),
            },
            "alike",
        ),
        ({"prompt_embeds": torch.full((2, 3, WIDTH), float("nan"))}, "not finite"),
    ],
)
def test_conditions_that_do_not_fit(
    cli: Cli, folders: dict[str, str], tmp_path: Path, tensors: dict[str, Any], word: str
) -> None:
    file = tmp_path / "conditions.safetensors"
    save_file(tensors, file)
    few = ("--count", "3", "--steps", "6", "--threads", "1")
    options = ("--conditions", str(file), "--method", "speculative", "--eta", "1")
    refused(cli.run("diffusion", "sample", "--pipeline", folders["unet"], *few, *options), word)


def test_distilling_refuses_what_is_of_another_run(
    cli: Cli, folders: dict[str, str], tmp_path: Path
) -> None:
    def distill(*options: str) -> Any:
        few = ("--start-steps", "4", "--end-steps", "2", "--train-steps", "1", "--examples", "2")
        work = ("--work", str(tmp_path / "work"), "--batch-size", "2", "--threads", "1")
        return cli.run("diffusion", "distill", "--pipeline", folders["unet"], *few, *work, *options)

    assert distill("--labels", "1", "--output", str(tmp_path / "one")).exit_code == 0
    refused(distill("--labels", "2", "--output", str(tmp_path / "two")), "other options")
    file = tmp_path / "file"
    file.write_text("x")
    refused(distill("--output", str(file)), "is a file")
