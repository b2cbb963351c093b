"""`forerun info`: a model's sizes and needs, read from its config, and a few rows of a GGUF file."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions, context_of
from forerun.engine.resolve import choose
from forerun.errors import CheckpointError
from forerun.files import size_text
from forerun.options import options, part
from forerun.report.result import Result
from forerun.report.table import Cell, Table

if TYPE_CHECKING:
    from forerun.models import Checkpoint, Placement, RunConfig


_SUMMARY = (
    *("family", "parameters", "weight_bytes", "max_context", "vocab_size", "num_layers"),
    "hidden_size",
)


@options
class InfoRequest:
    """Show what a model is, what it needs and what would draft for it.

    MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo (a small model of forerun's own) or
    smollm2. Only its config is read; the weights need not be there. Of a GGUF file a few rows are, to
    say how far the product is off.
    """

    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        without=("threads", "kv_dtype"),
        argument="model",
        help={
            "model": "MODEL as an option.",
            "max_context": "Tokens to count memory for; left out, the model's context up to 4096.",
        },
    )


def run(request: InfoRequest) -> Result:
    """Facts about a model.

    Raises:
        ForerunError: for a model that cannot be run, or a context that it does not have.
    """
    from forerun.drafters import DRAFTERS
    from forerun.models import Checkpoint

    model, placement = request.model.model, request.model.placement
    checkpoint = Checkpoint.open(model, request.model.revision)
    run = checkpoint.run_config(placement)
    context = context_of(checkpoint, request.model.max_context)
    choice = choose(SpeculativeConfig(), model).config
    content = {
        "model": model,
        **{name: getattr(checkpoint.summary, name) for name in _SUMMARY},
        "notes": list(checkpoint.notes),
        **_of_run(checkpoint, run),
        "known_draft": choice.model,
        "default_method": choice.method,
        "methods": DRAFTERS.names(),
        "memory": _memory(checkpoint, choice.model, run, placement, context),
    }
    rows = [(Cell(name, style="bold"), text) for name, text in _rows(content, run).items()]
    return Result(content=content, tables=[Table.of("", ("", ""), rows, "ll")], device=run.device)


def _of_run(checkpoint: Checkpoint, run: RunConfig) -> dict[str, Any]:
    from forerun import _native
    from forerun.models import CpuModel, HFModel, Transformer
    from forerun.models.run_config import STORED

    exactness = {
        "kernels": CpuModel.exactness,
        "torch": Transformer.exactness,
        "transformers": HFModel.exactness,
    }
    backend = run.backend if checkpoint.native else "transformers"
    return {
        "backend": backend,
        "kernels": _native.kernels.level() if _native.AVAILABLE else None,
        "kernels_missing": _native.REASON or None,
        "dtype": run.precision,
        "tensors": [vars(held) for held in checkpoint.held] if run.precision == STORED else [],
        "cache_bytes_per_token": checkpoint.summary.cache_bytes_per_token(run.dtype),
        "exactness": exactness[backend],
    }


def _memory(
    checkpoint: Checkpoint, draft: str | None, run: RunConfig, placement: Placement, context: int
) -> dict[str, Any]:
    """Bytes that models and caches need for `context` tokens, and free bytes."""
    from forerun.engine.load import ModelPair
    from forerun.models import Checkpoint, available_bytes

    pair = ModelPair(checkpoint, run)
    if draft is not None:
        # Where its config is not available, `draft_counted` says so.
        with contextlib.suppress(CheckpointError):
            pair = pair.with_draft(Checkpoint.open(draft), replace(placement, dtype="auto"))
    needed = sum(need.total for need in pair.needs(1, context))
    available = available_bytes(run.device)
    return {
        "context": context,
        "needed": needed,
        "available": available,
        "fits": needed <= available,
        "draft_counted": pair.draft is not None or draft is None,
    }


def _rows(content: dict[str, Any], run: RunConfig) -> dict[str, str]:
    weights = ", ".join(
        f"{name} {size_text(size)}" for name, size in content["weight_bytes"].items()
    )
    cache = size_text(content["cache_bytes_per_token"])
    return {
        "model": content["model"],
        "family": content["family"],
        "runs on": _of_backend(content),
        "parameters": f"{content['parameters']:,}",
        "weights": weights,
        **({"tensors": "; ".join(map(_of_held, held))} if (held := content["tensors"]) else {}),
        "cache": f"{cache} a token",
        "context": f"{content['max_context']} tokens",
        "vocabulary": f"{content['vocab_size']} tokens",
        "layers": f"{content['num_layers']}, {content['hidden_size']} wide",
        "exactness": content["exactness"],
        "known draft": content["known_draft"] or "none; looking up (suffix) needs none",
        "methods": ", ".join(content["methods"]),
        **({"note": " ".join(content["notes"])} if content["notes"] else {}),
        "memory": _of_memory(content["memory"], str(run.device)),
    }


def _of_held(held: dict[str, Any]) -> str:
    """A text on the tensors of one type: their number, precision and size."""
    number = f"{held['tensors']} x {held['stored']}"
    file, memory = held["file_bytes"], held["held_bytes"]
    size = f" ({size_text(memory)}, {size_text(file)} in the file)" if memory > 1.03 * file else ""
    if not held["error"]:
        form = "as they are" if held["precision"] != "fp32" else "in fp32"
        return f"{number}, kept {form}{size}"
    return f"{number}, in {held['precision']}: off by {held['error']:.2%}{size}"


def _of_backend(content: dict[str, Any]) -> str:
    kinds = {
        "kernels": f"forerun's CPU kernels ({content['kernels']})",
        "torch": "forerun's decoders on torch",
        "transformers": "transformers",
    }
    missing = content["kernels_missing"]
    aside = f"; the CPU kernels are not available ({missing})" if missing else ""
    return kinds[content["backend"]] + aside


def _of_memory(memory: dict[str, Any], device: str) -> str:
    verdict = "fits" if memory["fits"] else "does not fit"
    aside = "" if memory["draft_counted"] else ", the draft model not counted"
    return (
        f"{verdict}: {size_text(memory['needed'])} with {memory['context']} tokens of context"
        f"{aside}; {size_text(memory['available'])} free on {device}"
    )
