"""Step distillation: each halving's student beside the undistilled model at the same number of steps.

``python -m benchmarks.diffusion_distillation --work DIR --out FILE``; DIR is the recipe's. The halvings
from the scheduler's own number of timesteps to the first teacher's need no training: they are DDIM
with fewer steps, and are measured as what they are.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.diffusion_models import Task, set_threads, shipped
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import psnr
from forerun.diffusion.sheets import save_sheet
from forerun.diffusion.step_distillation import Student
from forerun.files import atomic_path, write_text
from recipes.classifier import Classifier, feature_distance, label_accuracy, load_classifier
from recipes.diffusion import distill_images, train_images, train_vae
from recipes.digits import draw_images, load_digits

CLOSED = (1024, 512, 256, 128)
TRAINED = (64, 32, 16, 8, 4)
SHOWN = 20
NUM_REAL = 1000


def real_images(count: int) -> Tensor:
    """Held-out digits as the recipe draws them, in [0, 1]."""
    images, _ = draw_images(load_digits(held_out=True), count, Generator().manual_seed(1))
    return images / 2.0 + 0.5


def measured(
    images: Tensor, reference: Tensor, classifier: Classifier, labels: list[int], real: Tensor
) -> dict[str, Any]:
    """All measures of some images; the reference is the full sampler's from the same noise."""
    shared = min(len(images), len(reference))
    return {
        "samples": len(images),
        "psnr": asdict(psnr(images[:shared], reference[:shared])),
        "frechet": asdict(feature_distance(classifier, images, real)),
        "accuracy": asdict(label_accuracy(classifier, images, labels)),
    }


def students(work: Path) -> dict[int, Any]:
    """The pipeline of each halving, from the recipe's states."""
    students: dict[int, Any] = {}
    vae = train_vae(work)

    def keep(student: Student) -> None:
        students[student.steps] = student.pipeline

    distill_images(work, vae, train_images(work, vae), after=keep)
    return students


def full_samples(teacher: Any, work: Path, count: int) -> Tensor:
    """The full sampler's images, made once."""
    path = work / f"full-{count}.pt"
    if not path.exists():
        with atomic_path(path) as temporary:
            torch.save(Task(count, CLOSED[0]).run(teacher), temporary)
    images: Tensor = torch.load(path, weights_only=True)
    return images


def study(
    models: dict[tuple[str, int], Any], counts: tuple[int, int], work: Path, out: Path
) -> dict[str, Tensor]:
    """Measure what the file does not hold yet; some images of each."""
    classifier = load_classifier(shipped("classifier.safetensors"))
    real = real_images(NUM_REAL)
    reference = full_samples(models["undistilled", 64], work, counts[1])
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    known = {(row["model"], row["steps"]) for row in rows}
    pictures = {"full": reference[:SHOWN]}
    for (name, steps), pipeline in models.items():
        pictures[f"{name} {steps}"] = Task(SHOWN, steps).run(pipeline) if steps <= 8 else reference
        if (name, steps) in known:
            continue
        task = Task(counts[steps > TRAINED[0]], steps)
        figures = measured(task.run(pipeline), reference, classifier, task.labels, real)
        rows.append({"model": name, "steps": steps, **figures})
        print(rows[-1], flush=True)
        write_text(out, json.dumps(rows, indent=1) + "\n")
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--undistilled", action="store_true", help="without the students")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--closed-count", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    set_threads(options.threads)
    teacher = open_pipeline(shipped("images"))
    models: dict[tuple[str, int], Any] = {
        ("undistilled", steps): teacher for steps in (*CLOSED[1:], *TRAINED)
    }
    if not options.undistilled:
        trained = students(options.work)
        models |= {("student", steps): pipeline for steps, pipeline in trained.items()}
    pictures = study(models, (options.count, options.closed_count), options.work, options.out)
    if options.sheet is not None:
        chosen = ["full", "undistilled 8", "student 8", "undistilled 4", "student 4"]
        save_sheet(torch.stack([pictures[name] for name in chosen]), options.sheet)


if __name__ == "__main__":
    main()
