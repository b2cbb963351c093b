"""Video latent caching beside the full sampler at equal noise: passes, seconds and quality.

``python -m recipes.diffusion --work diffusion-work --stages images --clips clips`` makes the pipeline first.
``python -m benchmarks.diffusion_video --pipeline clips --out diffusion-video.json --sheet sheet.png``
``python -m benchmarks.diffusion_video --pipeline clips --out diffusion-video-seconds.json --what seconds``

Beside it stand the full sampler with fewer steps, which saves passes too, and key frames repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.diffusion_models import MAKE_CLIPS, Task, set_threads, shipped
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import psnr
from forerun.diffusion.settings import VideoLatentCacheConfig
from forerun.diffusion.sheets import save_clips, save_sheet
from forerun.diffusion.video_latent_cache import sample_clips
from forerun.errors import ConfigError
from forerun.files import write_text
from forerun.measure.intervals import Interval, mean
from forerun.measure.turns import in_turns
from recipes.classifier import (
    Classifier,
    feature_distance,
    label_accuracy,
    load_classifier,
    temporal_consistency,
)
from recipes.digits import NUM_FRAMES, draw_clips, load_digits

MAIN = VideoLatentCacheConfig(key_interval=4, refine_steps=8, finish_key_frames=False)
"""The setting whose parts are exchanged one by one."""
INTERVALS = {3: 8, 4: 5, 5: 4, 6: 3, 9: 2}
"""Interval between key frames, by their number in a clip."""
FEWER_STEPS = (24, 16, 14, 12, 8)
SHOWN_CLIPS = 4
SHOWN_FRAMES = range(0, NUM_FRAMES, 2)


def roughness(clips: Tensor) -> Interval:
    """Unevenness of motion in clips: mean acceleration of the digit's centre, in pixels per frame².

    The centre is the centre of brightness. A digit in uniform motion has no acceleration; a digit that
    jumps between frames has a large one. Clips are `[B, F, 1, H, W]` in [0, 1], of at least 3 frames.

    Raises:
        ConfigError: for shorter clips.
    """
    if clips.shape[1] < 3:
        raise ConfigError("an acceleration needs clips of at least 3 frames.")
    centres = brightness_centres(clips)
    bends = centres[:, 2:] - 2.0 * centres[:, 1:-1] + centres[:, :-2]
    return mean(bends.norm(dim=-1).mean(1).numpy())


def brightness_centres(clips: Tensor) -> Tensor:
    """Centre of brightness of each frame in pixels, `[B, F, 2]`, of clips `[B, F, 1, H, W]`."""
    light = clips[:, :, 0].double().clamp_min(0.0)
    total = light.sum((-2, -1)).clamp_min(1e-9)
    rows = torch.arange(light.shape[-2], dtype=torch.float64)
    columns = torch.arange(light.shape[-1], dtype=torch.float64)
    down = (light.sum(-1) * rows).sum(-1) / total
    across = (light.sum(-2) * columns).sum(-1) / total
    return torch.stack((down, across), -1)


def settings() -> dict[str, VideoLatentCacheConfig]:
    """What is compared: the numbers of key frames and last steps, then each part exchanged."""
    found = {}
    for keys, interval in INTERVALS.items():
        for last in (4, 6, 8, 12):
            config = replace(MAIN, key_interval=interval, refine_steps=last)
            found[f"{keys} key frames, {last} last steps"] = config
    for last in (0, 4, 8):
        for way in ("slerp", "linear"):
            config = replace(MAIN, refine_steps=last, interpolation=way)
            found[f"{way}, {last} last steps"] = config
    for keys in (4, 5):
        usual = replace(MAIN, key_interval=INTERVALS[keys])
        found[f"{keys} key frames finished"] = replace(usual, finish_key_frames=True)
        for last, stride in ((6, 2), (6, 4), (8, 2)):
            config = replace(usual, refine_steps=last, refine_stride=stride)
            found[f"{keys} key frames, {last} last steps of {stride}"] = config
    return found


def timed_settings() -> dict[str, VideoLatentCacheConfig]:
    """Those whose seconds are measured."""
    return {
        "5 key frames, 8 last steps": MAIN,
        "4 key frames, 8 last steps": replace(MAIN, key_interval=5),
        "5 key frames finished": replace(MAIN, finish_key_frames=True),
        "4 key frames, 6 last steps of 4": replace(
            MAIN, key_interval=5, refine_steps=6, refine_stride=4
        ),
    }


@dataclass(frozen=True)
class Judge:
    """What clips are compared with.

    Args:
        classifier: whose features count.
        labels: of the clips.
        reference: the full sampler's clips at the same noise, `[B, F, 1, 32, 32]` in [0, 1].
        real: frames of drawn clips of held-out digits, `[N, 1, 32, 32]` in [0, 1].
    """

    classifier: Classifier
    labels: Sequence[int]
    reference: Tensor
    real: Tensor

    def row(self, clips: Tensor) -> dict[str, Any]:
        """Every figure of quality, with its interval."""
        frames = clips.flatten(0, 1)
        by_frame = [label for label in self.labels for _ in range(clips.shape[1])]
        figures = {
            "psnr": psnr(clips, self.reference),
            "frechet": feature_distance(self.classifier, frames, self.real),
            "accuracy": label_accuracy(self.classifier, frames, by_frame),
            "consistency": temporal_consistency(self.classifier, clips),
            "roughness": roughness(clips),
        }
        return {name: asdict(figure) for name, figure in figures.items()}


def real_frames(count: int) -> Tensor:
    """Frames of `count` drawn clips of held-out digits."""
    clips, _ = draw_clips(load_digits(True), count, NUM_FRAMES, Generator().manual_seed(0))
    return clips.flatten(0, 1) / 2.0 + 0.5


def cached(pipeline: Any, task: Task, config: VideoLatentCacheConfig) -> tuple[Tensor, float]:
    """Clips `[B, F, 1, 32, 32]`, and how many times fewer passes they took."""
    clips = sample_clips(
        pipeline,
        task.noise(pipeline),
        steps=task.steps,
        config=config,
        labels=task.labels,
        guidance_scale=task.guidance_scale,
    )
    return clips.images, clips.factor


def quality(pipeline: Any, task: Task, classifier: Path, sheet: Path | None) -> list[Any]:
    """Every setting beside the full sampler, and beside the full sampler with fewer steps."""
    reference = task.run(pipeline)
    judge = Judge(load_classifier(classifier), task.labels, reference, real_frames(task.count))
    rows: list[Any] = []
    kept = {"full": reference}

    def add(name: str, factor: float, clips: Tensor) -> None:
        rows.append({"name": name, "passes": factor, **judge.row(clips)})
        short = {key: round(value["value"], 3) for key, value in list(rows[-1].items())[2:]}
        print(f"{name}: {factor:.2f} x fewer passes, {short}", flush=True)

    add("full", 1.0, reference)
    for steps in FEWER_STEPS:
        fewer = replace(task, steps=steps)
        add(f"full sampler, {steps} steps", task.steps / steps, fewer.run(pipeline))
    for name, config in settings().items():
        clips, factor = cached(pipeline, task, config)
        add(name, factor, clips)
        kept[name] = clips
    if sheet is not None:
        draw(sheet, kept)
    return rows


def draw(path: Path, kept: dict[str, Tensor]) -> None:
    """A few clips of some settings: every other frame as PNG, and all of them as GIF beside it."""
    names = [
        "full",
        "5 key frames, 8 last steps",
        "4 key frames, 6 last steps of 4",
        "slerp, 0 last steps",
        "linear, 0 last steps",
        "linear, 8 last steps",
    ]
    chosen = torch.stack([kept[name][:SHOWN_CLIPS] for name in names], 1)
    rows = chosen[:, :, list(SHOWN_FRAMES)].flatten(0, 1)
    save_sheet(rows, path)
    save_clips(chosen, path.with_suffix(".gif"))


def seconds(pipeline: Any, task: Task, rounds: int) -> list[Any]:
    """Seconds with the full sampler and with key frames, in turns, and the median of their ratios."""
    found = []
    for name, config in timed_settings().items():
        with_key_frames = partial(cached, pipeline, task, config)
        _, factor = with_key_frames()
        turns = in_turns(partial(task.run, pipeline), with_key_frames, rounds)
        row = {
            "name": name,
            "batch": task.count,
            "passes": factor,
            "seconds": turns.plain,
            "seconds_cached": turns.other,
            "ratio": turns.ratio,
            "ratio_low": turns.least,
            "ratio_high": turns.most,
        }
        print(row, flush=True)
        found.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipeline", type=Path, help=f"of clips, such as {MAKE_CLIPS} makes")
    parser.add_argument("--classifier", type=Path, default=shipped("classifier.safetensors"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sheet", type=Path, help="write some clips as PNG, and as GIF beside it")
    parser.add_argument("--what", choices=("quality", "seconds"), default="quality")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.pipeline is None or not options.pipeline.is_dir():
        problem = "is missing" if options.pipeline is None else f"{options.pipeline} is no folder"
        parser.error(f"--pipeline {problem}; give one of clips, such as this makes: {MAKE_CLIPS}")
    set_threads(options.threads)
    pipeline = open_pipeline(options.pipeline)
    task = Task(options.count, options.steps, num_frames=NUM_FRAMES)
    if options.what == "seconds":
        rows = seconds(pipeline, task, options.rounds)
    else:
        rows = quality(pipeline, task, options.classifier, options.sheet)
    about = {"clips": task.count, "frames": NUM_FRAMES, "steps": task.steps}
    content = {**about, "threads": options.threads, "rows": rows}
    write_text(options.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
