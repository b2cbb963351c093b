"""Commands of diffusion as Python calls: what they choose, say and refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import EulerDiscreteScheduler

from forerun.diffusion.commands import bench, sample
from forerun.diffusion.commands.bench import DiffusionBenchRequest
from forerun.diffusion.commands.sample import SampleRequest
from forerun.diffusion.loading import save_pipeline
from forerun.diffusion.settings import FeatureCacheConfig
from forerun.errors import ConfigError
from forerun.progress import heard_by, watched_by
from tests.helpers.tiny_pipelines import unet_pipeline


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(folder: Path, scheduler: Any = None) -> str:
    pipeline = unet_pipeline()
    if scheduler is not None:
        pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config)
    save_pipeline(pipeline, folder / "pipeline")
    return str(folder / "pipeline")


@pytest.mark.parametrize(
    ("scheduler", "chosen"),
    [(None, {"eta": 1.0}), (EulerDiscreteScheduler, {"scheduler": "ddpm"})],
    ids=["DDIM", "no noise"],
)
def test_speculative_sampling_chooses_a_sampler_with_noise_and_says_so(
    tmp_path: Path, scheduler: Any, chosen: dict[str, Any]
) -> None:
    request = SampleRequest(
        method="speculative", pipeline=saved(tmp_path, scheduler), count=2, steps=6, labels=(1,)
    )
    result = sample.run(request)
    content = result.as_dict()
    assert content["exactness"] == "exact"
    assert {name: content["settings"][name] for name in chosen} == chosen
    (name, value), *_ = chosen.items()
    assert any(f"{name} {value}" in note for note in result.notes)
    given = SampleRequest(
        method="speculative",
        pipeline=request.pipeline,
        count=2,
        steps=6,
        labels=(1,),
        eta=1.0,
        scheduler="ddim",
    )
    again = sample.run(given)
    assert not any("chosen" in note for note in again.notes)


def test_noise_that_was_ruled_out_is_not_added(tmp_path: Path) -> None:
    request = SampleRequest(
        method="speculative", pipeline=saved(tmp_path), count=1, steps=4, eta=0.0
    )
    with pytest.raises(ConfigError, match="deterministic"):
        sample.run(request)


@pytest.mark.parametrize(
    ("speedup", "word"), [(0.5, "SLOWER"), (1.0, "as long as"), (2.0, "times as fast")]
)
@pytest.mark.parametrize("method", ["cfg_cache", "speculative"])
def test_the_words_of_a_comparison_follow_its_seconds(
    method: str, speedup: float, word: str
) -> None:
    assert word in sample._in_words(method, speedup)


def test_rows_of_the_bench_are_said_as_they_come(tmp_path: Path) -> None:
    events: list[str] = []
    request = DiffusionBenchRequest(
        pipeline=saved(tmp_path),
        methods=("feature_cache",),
        count=1,
        steps=4,
        pairs=1,
        batches=(1,),
    )

    def watch(what: str, done: int, total: int) -> None:
        events.append(f"{what} {done} of {total}")

    with watched_by(watch), heard_by(events.append):
        result = bench.run(request)
    first, second = (row["setting"] for row in result.rows)
    lines = [next(line for line in events if line.startswith(name)) for name in (first, second)]
    assert "times as fast" in lines[0]
    # The first row is there before the second is timed.
    assert events.index(lines[0]) < events.index("settings 1 of 2") < events.index(lines[1])


def test_every_method_has_options_and_refuses_those_of_others() -> None:
    for method in ("cfg_cache", "feature_cache", "key_frames", "speculative"):
        declared = type(getattr(SampleRequest(), method)).__pydantic_fields__.values()
        texts = [field.description for field in declared if field.description]
        assert texts
        assert all(text.startswith(f"{method}: ") for text in texts)
    with pytest.raises(ConfigError, match="options of method feature_cache are given"):
        SampleRequest(method="cfg_cache", feature_cache=FeatureCacheConfig(3))


def test_pictures_beyond_a_row_fill_rows() -> None:
    rows = sample._in_rows(torch.zeros(12, 1, 4, 4))
    assert [len(row) for row in rows] == [10, 10]
    assert float(rows[1][2:].mean()) == pytest.approx(0.35)
