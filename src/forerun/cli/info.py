"""`forerun info`: what a model is and needs, read from its config alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.combinations import check_context
from forerun.cli.flags import json_option, place_options
from forerun.cli.options import Command, Name
from forerun.cli.quiet import quiet_libraries

if TYPE_CHECKING:
    from forerun.models import ModelSummary, Storage

# A context to count the caches' memory for, where the model has a longer one.
USUAL_CONTEXT = 4096


@dataclass(frozen=True)
class Memory:
    """Whether target, draft and their caches fit, in bytes.

    Args:
        context: tokens that the caches are counted for.
        needed: by everything together.
        available: on the device now; None if it cannot be told.
        fits: None if it cannot be told.
        draft_counted: False where the draft model's config could not be had.
    """

    context: int
    needed: int
    available: int | None
    fits: bool | None
    draft_counted: bool


def info(model: str, **values: Any) -> None:
    """What a model is, what it needs and what would draft for it.

    MODEL is a checkpoint's directory, a hub id, or zoo, the small model of forerun. Only its
    config is read; the weights need not be there.
    """
    quiet_libraries()
    content = describe_model(model, **values)
    if values["json"]:
        from forerun.cli.report import print_json

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
    """Everything that the command tells, as the object of `--json`."""
    from forerun.cli.machine import hardware, versions
    from forerun.cli.report import SCHEMA_VERSION
    from forerun.drafters import drafter_names
    from forerun.engine.config import SpeculativeConfig
    from forerun.engine.load import locate
    from forerun.engine.pairs import choose
    from forerun.models import describe, load_config, resolve_device, storage_of

    config = load_config(locate(model), revision=revision)
    place = resolve_device(device)
    storage = storage_of(config, place, dtype, backend)
    summary = describe(config, model)
    check_context(max_context, summary.max_context, model)
    choice = choose(SpeculativeConfig(), model).config
    context = max_context or min(summary.max_context, USUAL_CONTEXT)
    return {
        "schema_version": SCHEMA_VERSION,
        "versions": versions(),
        "hardware": hardware(place),
        "model": model,
        **_of_summary(summary),
        **_of_storage(summary, storage),
        "known_draft": choice.model,
        "default_method": choice.method,
        "methods": drafter_names(),
        "memory": asdict(_memory(config, choice.model, storage, backend, place, context)),
    }


def _of_summary(summary: ModelSummary) -> dict[str, Any]:
    return {
        "family": summary.family,
        "parameters": summary.parameters,
        "weight_bytes": summary.weight_bytes,
        "max_context": summary.max_context,
        "vocab_size": summary.vocab_size,
        "num_layers": summary.num_layers,
        "hidden_size": summary.hidden_size,
    }


def _of_storage(summary: ModelSummary, storage: Storage) -> dict[str, Any]:
    from forerun import _native
    from forerun.models import CpuModel, HFModel, Transformer

    exactness = {
        "kernels": CpuModel.exactness,
        "torch": Transformer.exactness,
        "transformers": HFModel.exactness,
    }
    backend = storage.backend if summary.native else "transformers"
    return {
        "backend": backend,
        "kernels": _native.kernels.level() if _native.AVAILABLE else None,
        "kernels_missing": _native.REASON or None,
        "dtype": storage.precision,
        "cache_bytes_per_token": summary.cache_bytes_per_token(storage.cache_dtype),
        "exactness": exactness[backend],
    }


def _memory(
    config: Any, draft: str | None, storage: Storage, backend: str, device: Any, context: int
) -> Memory:
    from forerun.engine.load import locate
    from forerun.errors import CheckpointError
    from forerun.models import available_bytes, draft_storage_of, load_config, memory_need

    needs = {"target": (config, storage)}
    if draft is not None:
        try:
            draft_config = load_config(locate(draft))
            kept = draft_storage_of(draft_config, device, storage, backend=backend)
            needs["draft"] = (draft_config, kept)
        except CheckpointError:
            pass  # Not here and not to be had: said by `draft_counted`.
    needed = sum(
        memory_need(name, one, kept, rows=1, capacity=context).total
        for name, (one, kept) in needs.items()
    )
    available = available_bytes(device)
    fits = None if available is None else needed <= available
    return Memory(context, needed, available, fits, draft is None or "draft" in needs)


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
    weights = ", ".join(f"{name} {_size(size)}" for name, size in content["weight_bytes"].items())
    cache = _size(content["cache_bytes_per_token"])
    return {
        "model": content["model"],
        "family": content["family"],
        "runs on": _of_backend(content),
        "parameters": f"{content['parameters']:,}",
        "weights": weights,
        "cache": f"{cache} a token in {content['dtype']}",
        "context": f"{content['max_context']} tokens",
        "vocabulary": f"{content['vocab_size']} tokens",
        "layers": f"{content['num_layers']}, {content['hidden_size']} wide",
        "exactness": content["exactness"],
        "known draft": content["known_draft"] or "none; prompt lookup (ngram) needs none",
        "methods": ", ".join(content["methods"]),
        "memory": _of_memory(Memory(**content["memory"]), content["hardware"]["device"]),
    }


def _of_backend(content: dict[str, Any]) -> str:
    kinds = {
        "kernels": f"forerun's CPU kernels ({content['kernels']})",
        "torch": "forerun's decoders on torch",
        "transformers": "transformers",
    }
    missing = content["kernels_missing"]
    aside = f"; the CPU kernels are not installed ({missing})" if missing else ""
    return kinds[content["backend"]] + aside


def _of_memory(memory: Memory, device: str) -> str:
    verdict = {True: "fits", False: "does not fit", None: "nobody knows whether it fits"}
    available = "unknown" if memory.available is None else _size(memory.available)
    aside = "" if memory.draft_counted else ", the draft model not counted"
    return (
        f"{verdict[memory.fits]}: {_size(memory.needed)} with {memory.context} tokens of context"
        f"{aside}; {available} free on {device}"
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


command = Command(
    "info",
    params=[
        click.Argument(["model"], type=Name(), default="zoo", required=False, metavar="[MODEL]"),
        *place_options(),
        json_option(),
    ],
    callback=info,
    help=info.__doc__,
)
