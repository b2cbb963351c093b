"""Opens pipeline directories of diffusers without running their code, and finds the shipped ones."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from forerun.diffusion.pipelines import denoiser_of
from forerun.errors import (
    CheckpointError,
    ConfigError,
    UnknownNameError,
    UnsupportedModelError,
    shown,
)
from forerun.files import is_regular, package_folder, parse_json, printable, read_text

INDEX = "model_index.json"
_LIBRARIES = ("diffusers", "transformers")
PIPELINES = ("images", "images-4-steps")
"""Pipelines that come with forerun-zoo."""
INSTALL = "pip install 'forerun[diffusion]'"


def diffusers() -> Any:
    """The module `diffusers`.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import diffusers
    except ImportError as problem:
        raise ConfigError(
            f"diffusion needs the library diffusers, which cannot be imported ({problem}); run {INSTALL}."
        ) from problem
    return diffusers


def open_pipeline(directory: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> Any:
    """Load a pipeline directory that diffusers wrote.

    Only classes of diffusers and transformers are loaded, and only safetensors. Components that the
    directory leaves out, such as the text encoder, stay `None`.

    Raises:
        CheckpointError: for a directory that is not a pipeline, has its own code, or lacks files.
        UnknownNameError: for a scheduler class that the installed diffusers lacks.
        UnsupportedModelError: for a pipeline class that the installed diffusers lacks, or a pipeline
            without a denoiser.
        ConfigError: if diffusers is not installed.
    """
    folder = Path(directory)
    where = printable(folder)
    index = _read_index(folder, where)
    library = diffusers()
    _check_classes(index, where, library)
    absent = {name: None for name, value in index.items() if _is_null(value)}
    pipeline_class = getattr(library, index["_class_name"])
    try:
        with _quiet():
            pipeline = pipeline_class.from_pretrained(
                folder,
                torch_dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                **absent,
            )
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as problem:
        reason = " ".join(str(problem).split())[:200]
        if "low_cpu_mem_usage" in reason:
            reason = "its parts of mixed precision take the package accelerate; install it"
        raise CheckpointError(f"the pipeline {where} cannot be loaded: {reason}") from problem
    denoiser_of(pipeline)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def save_pipeline(pipeline: Any, directory: Path) -> None:
    """Write an ordinary pipeline directory, with safetensors."""
    with _quiet():
        pipeline.save_pretrained(directory, safe_serialization=True)


def _read_index(folder: Path, where: str) -> dict[str, Any]:
    path = folder / INDEX
    if not is_regular(path):
        raise CheckpointError(f"{where} is not a pipeline directory: it has no {INDEX}.")
    index = parse_json(read_text(path, "pipeline", CheckpointError), str(path), CheckpointError)
    if not isinstance(index, dict) or "_class_name" not in index:
        raise CheckpointError(f"{printable(path)} does not name a pipeline class.")
    return index


def _is_null(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and value == [None, None]


def _check_classes(index: dict[str, Any], where: str, library: Any) -> None:
    """Refuse a checkpoint's own code, and classes that are not installed."""
    name = index["_class_name"]
    if not isinstance(name, str):
        raise CheckpointError(f"{where} brings a pipeline class of its own; its code is not run.")
    if not _is_pipeline(name, library):
        raise UnsupportedModelError(
            f"{where}: the installed diffusers has no pipeline {shown(name)}."
        )
    for component, value in index.items():
        if component.startswith("_") or not isinstance(value, list) or _is_null(value):
            continue
        if len(value) != 2 or not all(isinstance(part, str) for part in value):
            raise CheckpointError(f"{where}: {INDEX} has no class for {component}.")
        if value[0] not in _LIBRARIES and value[0] != "stable_diffusion":
            raise CheckpointError(
                f"{where} takes {component} from {value[0]!r}; only classes of "
                f"{' and '.join(_LIBRARIES)} are loaded, no code of a checkpoint."
            )
        if component == "scheduler":
            _check_scheduler(value[1], library)


def _check_scheduler(name: str, library: Any) -> None:
    names = [known for known in dir(library) if known.endswith("Scheduler")]
    if name not in names:
        raise UnknownNameError("scheduler", name, names)


def _is_pipeline(name: str, library: Any) -> bool:
    kind = getattr(library, name, None) if name.isidentifier() else None
    return isinstance(kind, type) and issubclass(kind, library.DiffusionPipeline)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of diffusers about components that are left out on purpose."""
    logging_of = diffusers().utils.logging
    before, shown = logging_of.get_verbosity(), logging_of.is_progress_bar_enabled()
    logging_of.set_verbosity(logging.ERROR)
    logging_of.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging_of.set_verbosity(before)
        if shown:
            logging_of.enable_progress_bar()


def shipped(name: str) -> Path:
    """Path of a file or folder among forerun-zoo's diffusion models.

    Raises:
        CheckpointError: if forerun-zoo is not installed, or lacks it.
    """
    folder = package_folder("forerun_zoo")
    if folder is None:
        raise CheckpointError(
            f"{name!r} comes with forerun-zoo; run: pip install ./zoo in forerun's repository."
        )
    path = folder / "diffusion" / name
    if not path.exists():
        raise CheckpointError(f"the installed forerun-zoo has no diffusion model {name!r}.")
    return path


def resolve(name: str) -> Path:
    """Path of a shipped pipeline by its name; any other name is a directory."""
    return shipped(name) if name in PIPELINES else Path(name)
