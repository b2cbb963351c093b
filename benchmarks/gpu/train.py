"""`train`: an EAGLE-3 head for a model, from packed tokens, by forerun's own training."""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.gpu.output import MOST_BYTES, Output
from benchmarks.gpu.parts import sha256_of, split_file
from benchmarks.gpu.subjects import model_path, work_folder
from benchmarks.gpu.tokens import unpack
from forerun.contracts import CausalLM
from forerun.errors import ConfigError
from forerun.files import atomic_path, read_text, write_text
from forerun.options import pick
from forerun.placement import Placement
from forerun.training.conversations import RECORDS
from forerun.training.drafter_run import DrafterRun
from forerun.training.loop import Trainer
from forerun.training.result import TrainingReport
from forerun.training.settings import Eagle3Settings, HeadSettings

KIND = "eagle3"
# A GPU takes more at once than the CPU that the defaults are for; a minute holds two validations.
GPU_SETTINGS = {"micro_batch_tokens": 16384, "validate_minutes": 0.4, "patience": 10**6}
TINY_SETTINGS = {
    "micro_batch_tokens": 64,
    "validate_minutes": 0.01,
    "patience": 10**6,
    "draft_vocab_size": 40,
    "steps": 2,
}
# Of the seconds, those that are left for the last validation and for writing.
_RESERVE = 0.1
_WEIGHTS = "model.safetensors"


def train(options: argparse.Namespace, output: Output) -> int:
    """Train until the minutes or the seconds are over; the same command goes on from there."""
    work = work_folder(options)
    work.mkdir(parents=True, exist_ok=True)
    with output.deadline(["training; the same command goes on"]):
        import torch

        if options.tiny:
            torch.set_num_threads(1)
        model = model_path(options)
        if model is None:
            raise ConfigError("train needs the model; give --model or --model-parts.")
        own, settings = _settings(options)
        data = [str(_data(options, work))]
        device = options.device or ("cpu" if options.tiny else "cuda")
        run = TimedRun(output, device, own, settings, model, data, work / "head")
        output.row("began", device=str(run.target.device), model=model, **run.report.conversations)
        report = run.run()
        run.hand_out(report)
        output.row("ended", by=run.ended_by, acceptance_length=report.best.mean_length)
    return 0 if output.fits() else 1


def _settings(options: argparse.Namespace) -> tuple[Any, Any]:
    """The settings of the head and of its training."""
    values: dict[str, Any] = dict(TINY_SETTINGS if options.tiny else GPU_SETTINGS)
    values["minutes"] = options.minutes or 0.7 * options.seconds / 60
    for text in options.set:
        name, _, value = text.partition("=")
        try:
            values[name] = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"--set {text} is not NAME=VALUE with a number; give one.") from error
    kinds = Eagle3Settings, HeadSettings
    known = {field.name for kind in kinds for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"{unknown[0]} is not a setting of {KIND}; known: {', '.join(sorted(known))}."
        )
    own, settings = (pick(kind, values) for kind in kinds)
    return own, settings


def _data(options: argparse.Namespace, work: Path) -> Path:
    """The conversations as training reads them, unpacked once."""
    file, source = work / "data.jsonl", work / "data.sha256"
    sums = "".join(f"{sha256_of(Path(path))}\n" for path in options.data)
    if file.exists():
        if options.data and read_text(source, "checksums", ConfigError) != sums:
            raise ConfigError(
                f"{work} holds a training on other conversations; give those, or another --work."
            )
        return file
    write_text(source, sums)
    if options.data:
        unpack([Path(path) for path in options.data], file)
    elif options.tiny:
        lines = [{RECORDS.mark: RECORDS.version}, *_tiny_records()]
        write_text(file, "".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        raise ConfigError("train needs conversations; give --data with the files of `pack`.")
    return file


def _tiny_records() -> Sequence[dict[str, Any]]:
    """Conversations of a few random tokens."""
    draws = random.Random(0)
    return [
        {
            "prompt_ids": [draws.randrange(1, 96) for _ in range(4)],
            "answer_ids": [draws.randrange(1, 40) for _ in range(10)],
            "category": "tiny",
            "temperature": float(number % 2),
        }
        for number in range(24)
    ]


class TimedRun(DrafterRun):
    """A training that ends before the seconds of its step do, and hands out what it has made."""

    def __init__(
        self,
        output: Output,
        device: str,
        own: Any,
        settings: Any,
        model: str,
        data: list[str],
        out: Path,
    ) -> None:
        self.output, self.ended_by = output, "budget"
        self._device = device
        super().__init__(KIND, own, settings, model, data, out)

    def _load_target(self) -> CausalLM:
        run = self.checkpoint.run_config(Placement("bf16", self._device, "torch"))
        return self.checkpoint.load(run)

    def _ends(self, trainer: Trainer) -> bool:
        if self.output.left < _RESERVE * self.output.seconds:
            self.ended_by = "time"
            return True
        return super()._ends(trainer)

    def _judge(self, trainer: Trainer) -> None:
        super()._judge(trainer)
        report, point = self.report, self.report.curve[-1]
        self.output.row(
            "validated",
            minutes=round(point.progress.seconds / 60, 3),
            tokens=point.progress.tokens,
            steps=point.progress.steps,
            loss=round(point.loss, 4),
            acceptance_length=round(point.mean_length, 4),
            best=round(report.best.mean_length, 4),
            tokens_a_second=round(report.tokens_per_second, 1),
        )
        self.hand_out(report)

    def hand_out(self, report: TrainingReport) -> None:
        """Copy the best head and the curve to the folder of results."""
        folder = self.output.folder
        for name in ("config.json", "forerun.json"):
            with atomic_path(folder / name) as temporary:
                shutil.copyfile(self.out / name, temporary)
        weights = self.out / _WEIGHTS
        if weights.stat().st_size <= MOST_BYTES:
            with atomic_path(folder / _WEIGHTS) as temporary:
                shutil.copyfile(weights, temporary)
        else:
            # First the checksum: parts of two heads, should the step end between them, are then refused.
            write_text(folder / f"{_WEIGHTS}.sha256", f"{sha256_of(weights)}\n")
            split_file(weights, folder / f"{_WEIGHTS}.part", MOST_BYTES)
        curve = [
            {
                "minutes": point.progress.seconds / 60,
                "tokens": point.progress.tokens,
                "acceptance_length": point.mean_length,
            }
            for point in report.curve
        ]
        write_text(folder / "curve.jsonl", "".join(f"{json.dumps(point)}\n" for point in curve))
