"""`forerun diffusion sample`: images as a contact sheet, clips as a GIF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from forerun import diffusion
from forerun.diffusion.commands.requests import ACROSS, Methods, Sampling
from forerun.errors import ConfigError
from forerun.options import FileName, option, options
from forerun.report.result import Result

if TYPE_CHECKING:
    from torch import Tensor


@options
class SampleRequest(Methods, Sampling):
    """Make images or clips, with fewer network passes if you like, and write a picture of them.

    Methods are cfg_cache, feature_cache and key_frames (of clips), which change the samples, and speculative,
    which is exact: its samples have the law of a stochastic sampler, which is chosen where none is given.
    """

    compare: bool = option(
        default=False,
        description="Run the sampler as it is too, from the same noise.",
        section="Other",
    )
    output: FileName | None = Field(
        default=None,
        description="Contact sheet (.png), or of clips a .gif, to write; samples.png or samples.gif, with "
        "a number where it exists, unless given.",
    )


def run(request: SampleRequest) -> Result:
    """Make samples and write a picture of them.

    Raises:
        ForerunError: for a pipeline, conditions or settings that do not fit together.
    """
    pipeline = request.open()
    request, notes = _with_noise(request, pipeline)
    job, config = request.samples(pipeline), request.config()
    output = picture_path("output", request.output, clips=job.num_frames is not None)
    if request.compare:  # The first call takes longer, whatever the method.
        diffusion.methods.call_denoiser(pipeline, request.count, job.num_frames)
    made = diffusion.make(pipeline, job, config)
    full = diffusion.make(pipeline, job) if request.compare else None
    save_rows(_in_rows(made.images), output)
    if not made.exact:
        notes.append("approximate: changes the samples")
    return Result(
        settings={"eta": request.eta, "scheduler": request.scheduler},
        content={
            "mode": "diffusion sample",
            **_content(request.method, made, full),
            "output": str(output),
        },
        answers=_answers(request.method, made, full),
        notes=[*notes, f"written to {output}"],
        device=made.images.device,
    )


def _with_noise(request: SampleRequest, pipeline: Any) -> tuple[SampleRequest, list[str]]:
    """The request with a stochastic sampler where speculative sampling needs one, and what was chosen."""
    methods = diffusion.methods
    if request.method != "speculative" or methods.is_stochastic(pipeline, request.eta or 0.0):
        return replace(request, eta=request.eta or 0.0), []
    chosen: dict[str, Any] = {}
    if request.scheduler == "own" and type(pipeline.scheduler).__name__ != "DDIMScheduler":
        methods.exchange_scheduler(pipeline, "ddpm")
        chosen = {"scheduler": "ddpm"}
    elif request.eta is None:
        chosen = {"eta": 1.0}
    if not chosen:
        return request, []
    words = " ".join(f"{name} {value}" for name, value in chosen.items())
    return replace(request, **chosen), [
        f"speculative sampling needs a sampler that adds noise: {words} was chosen"
    ]


def _content(method: str, made: diffusion.Made, full: diffusion.Made | None) -> dict[str, Any]:
    content = {"method": method, "exactness": _exactness(made), **_costs(made), **made.facts}
    if full is not None:
        content |= {
            "full": _costs(full),
            "psnr": asdict(diffusion.psnr(made.images, full.images)),
        }
    return content


def _costs(made: diffusion.Made) -> dict[str, Any]:
    counted = made.evaluations
    return {"calls": counted.calls, "evaluations": counted.samples, "seconds": made.seconds}


def _exactness(made: diffusion.Made) -> str:
    return "exact" if made.exact else "approximate"


def _answers(method: str, made: diffusion.Made, full: diffusion.Made | None) -> list[str]:
    counted = made.evaluations
    answers = [
        f"{_number(len(made.images), 'sample')} ({_exactness(made)}): {counted.calls} passes of the network, "
        f"{_number(counted.samples, 'sample')} in them, {made.seconds:.2f} s"
    ]
    if full is not None:
        counted = full.evaluations
        answers.append(
            f"the sampler as it is: {counted.calls} passes, {counted.samples} samples, "
            f"{full.seconds:.2f} s; PSNR of these against its own "
            f"{diffusion.psnr(made.images, full.images).value:.1f} dB"
        )
        if method != "none":
            answers.append(_in_words(method, full.seconds / made.seconds))
    return answers


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _in_words(method: str, speedup: float) -> str:
    """Sentence that says which of the two was faster."""
    if 0.98 <= speedup <= 1.02:
        return f"{method} took as long as the sampler as it is."
    if speedup > 1.0:
        return f"{method} was {speedup:.2f} times as fast as the sampler as it is."
    why = (
        "; it runs more samples a pass, which pays for few samples of many steps"
        if method == "speculative"
        else ""
    )
    return f"{method} was SLOWER than the sampler as it is: {1 / speedup:.2f} times its time{why}."


def picture_path(name: str, given: str | None, *, clips: bool) -> Path:
    """File for a picture: the given one, or a new one in this folder.

    Raises:
        ConfigError: for a file of another kind, or a folder.
    """
    wanted, what = (".gif", "clips") if clips else (".png", "images")
    if given is None:
        names = (f"samples{'' if number == 1 else f'-{number}'}{wanted}" for number in count(1))
        return next(path for path in map(Path, names) if not path.exists())
    path = Path(given)
    if path.suffix.lower() != wanted:
        raise ConfigError(f"{name} is {given}; {what} are written to a file that ends in {wanted}.")
    if path.is_dir():
        raise ConfigError(f"{name} is {given}, a directory; give a file's name.")
    return path


def save_rows(rows: Sequence[Tensor], path: Path) -> None:
    """Write the first samples of each row as a contact sheet, or of clips as a GIF."""
    import torch

    from forerun.diffusion.sheets import save_clips, save_sheet

    cut = torch.stack([row[:ACROSS] for row in rows])
    (save_clips if rows[0].ndim == 5 else save_sheet)(cut, path)


def _in_rows(images: Tensor) -> list[Tensor]:
    """Samples in rows; the last row is filled up with grey."""
    import torch

    columns = min(ACROSS, len(images))
    missing = -len(images) % columns
    filled = torch.cat((images, torch.full((missing, *images.shape[1:]), 0.35)))
    return list(torch.split(filled, columns))
