"""`forerun info`: what a model is and needs, read from its config, and of a GGUF file a few rows."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from forerun.cli.combinations import check_context
from forerun.cli.commands import print_json
from forerun.cli.completion import completion
from forerun.cli.flags import json_option, place_options
from forerun.cli.options import Command, Option
from forerun.cli.param_types import Name
from forerun.cli.quiet import quiet_libraries
from forerun.engine.model_options import DEFAULT_MODEL, DEFAULT_SHOWN
from forerun.errors import CheckpointError, ConfigError
from forerun.files import size_text
from forerun.report.machine import made_with

if TYPE_CHECKING:
    from forerun.models import Checkpoint, Placement, RunConfig

# A context to count the caches' memory for, where the model has a longer one.
USUAL_CONTEXT = 4096


def info(name: str | None, model: str, **values: Any) -> None:
    """What a model is, what it needs and what would draft for it.

    MODEL is a checkpoint's directory, a GGUF file, a hub id, zoo (a small model of forerun's own) or
    smollm2. Only its config is read; the weights need not be there. Of a GGUF file a few rows are, to
    say how far the product is off.
    """
    if name is not None:
        source = click.get_current_context().get_parameter_source("model")
        if source is ParameterSource.COMMANDLINE and name != model:
            raise ConfigError(f"the model is {name!r} and {model!r}; give one of them.")
        model = name
    quiet_libraries()
    content = describe_model(model, **values)
    if values["json"]:
        print_json(content)
    else:
        _print(content)


def describe_model(
    model: str,
    *,
    revision: str | None,
    dtype: str,
    device: str,
    backend: str,
    max_context: int | None,
    **_: Any,
) -> dict[str, Any]:
    """Everything that the command says, as the object of `--json`."""
    from forerun.drafters import DRAFTERS
    from forerun.engine.config import SpeculativeConfig
    from forerun.engine.resolve import choose
    from forerun.models import Checkpoint, Placement

    placement = Placement(dtype, device, backend)
    checkpoint = Checkpoint.open(model, revision)
    run, summary = checkpoint.run_config(placement), checkpoint.summary
    check_context(max_context, summary.max_context, model)
    choice = choose(SpeculativeConfig(), model).config
    context = max_context or min(summary.max_context, USUAL_CONTEXT)
    return {
        **made_with(run.device),
        "model": model,
        **_of_checkpoint(checkpoint),
        **_of_run(checkpoint, run),
        "known_draft": choice.model,
        "default_method": choice.method,
        "methods": DRAFTERS.names(),
        "memory": _memory(checkpoint, choice.model, run, placement, context),
    }


def _of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    summary = checkpoint.summary
    return {
        "family": summary.family,
        "parameters": summary.parameters,
        "weight_bytes": summary.weight_bytes,
        "max_context": summary.max_context,
        "vocab_size": summary.vocab_size,
        "num_layers": summary.num_layers,
        "hidden_size": summary.hidden_size,
        "notes": list(checkpoint.notes),
    }


def _of_run(checkpoint: Checkpoint, run: RunConfig) -> dict[str, Any]:
    from forerun import _native
    from forerun.models import CpuModel, HFModel, Transformer
    from forerun.models.placement import STORED

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
    """Whether target, draft and caches for `context` tokens fit, in bytes."""
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


def _print(content: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in _rows(content).items():
        table.add_row(name, text)
    Console(highlight=False).print(table)


def _rows(content: dict[str, Any]) -> dict[str, str]:
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
        **({"tensors": "\n".join(map(_of_held, held))} if (held := content["tensors"]) else {}),
        "cache": f"{cache} a token",
        "context": f"{content['max_context']} tokens",
        "vocabulary": f"{content['vocab_size']} tokens",
        "layers": f"{content['num_layers']}, {content['hidden_size']} wide",
        "exactness": content["exactness"],
        "known draft": content["known_draft"] or "none; looking up (suffix) needs none",
        "methods": ", ".join(content["methods"]),
        **({"note": " ".join(content["notes"])} if content["notes"] else {}),
        "memory": _of_memory(content["memory"], content["hardware"]["device"]),
    }


def _of_held(held: dict[str, Any]) -> str:
    """Tensors of one type, and what they run in."""
    number = f"{held['tensors']} x {held['stored']}"
    if not held["error"]:
        kept = "as they are" if held["precision"] != "fp32" else "in fp32"
        return f"{number}, kept {kept}"
    return f"{number}, in {held['precision']}: off by {held['error']:.2%}"


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


command = Command(
    "info",
    params=[
        click.Argument(
            ["name"],
            type=Name(),
            required=False,
            metavar="[MODEL]",
            shell_complete=completion("model"),
        ),
        Option(
            "model",
            "Model",
            type=Name(),
            default=DEFAULT_MODEL,
            show_default=DEFAULT_SHOWN,
            help="MODEL as an option.",
        ),
        *place_options(
            context="Tokens to count memory for; left out, the model's context up to 4096."
        ),
        json_option(),
    ],
    callback=info,
    example="forerun info Qwen/Qwen3-4B",
    assumed="about {model}",
)
