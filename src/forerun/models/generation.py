"""The sampling settings that a model's authors recommend, from generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.errors import CheckpointError, ForerunError, shown
from forerun.models.config import GENERATION_CONFIG, read_object
from forerun.options import changes
from forerun.params import SamplingParams

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_sampling_defaults(directory: Path) -> dict[str, Any]:
    """The sampling parameters that a checkpoint recommends, by name; {} if it recommends none.

    `do_sample: false` is temperature 0, whatever the others say.

    Raises:
        CheckpointError: if the file is not JSON, or for a value that is not allowed.
    """
    path = directory / GENERATION_CONFIG
    if not path.exists():
        return {}
    return sampling_defaults(read_object(path), str(path))


def sampling_defaults(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The recommended sampling parameters in settings that use transformers' names.

    Args:
        values: the settings.
        where: source of the settings, for messages.

    Raises:
        CheckpointError: for a value that is not allowed.
    """
    sample = values.get("do_sample")
    if sample is not None and not isinstance(sample, bool):
        raise CheckpointError(
            f"{where}: do_sample is {shown(sample)}; it must be true, false or null."
        )
    chosen = {name: values[name] for name in _NAMES if values.get(name) is not None}
    try:
        found = changes(SamplingParams(**chosen))
    except ForerunError as error:
        raise CheckpointError(f"{where}: {error}") from None
    if sample is False:
        kept = ("repetition_penalty",)
        found = {name: found[name] for name in kept if name in found}
        found["temperature"] = 0.0
    return found
