"""From what a user names, a directory or a hub id, to a directory with the files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from forerun.errors import CheckpointError, ConfigError

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
# Copies of the weights in other formats would double the download.
_COPIES = ("*/*", "consolidated*")


def resolve(path_or_hub_id: str | Path, revision: str | None = None, *, weights: bool) -> Path:
    """The directory of a checkpoint, downloaded from the hub unless it is one already.

    Args:
        path_or_hub_id: a directory, or an id such as `Qwen/Qwen3-0.6B`.
        revision: branch, tag or commit on the hub.
        weights: whether the weights are needed too, or only config and tokenizer.

    Raises:
        CheckpointError: when there is no such directory, or the hub does not deliver.
        ConfigError: for the revision of a directory, which has none.
    """
    path = Path(path_or_hub_id).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ConfigError(
                f"revision {revision!r} is for a model on the hub, and {path} is a directory; "
                "leave the revision out."
            )
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the directory that holds config.json.")
    name = str(path_or_hub_id)
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise CheckpointError(
            f"there is no directory {name}; "
            "give a checkpoint's directory or a hub id such as Qwen/Qwen3-0.6B."
        )
    return _download(name, revision, weights)


def _download(name: str, revision: str | None, weights: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    patterns = [*_SMALL_FILES, "*.safetensors"] if weights else list(_SMALL_FILES)
    try:
        found = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=patterns, ignore_patterns=list(_COPIES)
        )
    except (HFValidationError, OSError) as error:
        raise CheckpointError(_advice(name, revision, error)) from error
    return Path(found)


def _advice(name: str, revision: str | None, error: Exception) -> str:
    """One line that says what to do about an error of the hub."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its licence on huggingface.co, then set HF_TOKEN."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {revision!r}; leave it out for the newest."
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return (
            f"{name} is neither a directory here nor a model on huggingface.co; check the name, "
            "and set HF_TOKEN if it is private."
        )
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return (
            f"{name} is not (completely) in the local hub cache and the hub cannot be reached; go "
            "online, unset HF_HUB_OFFLINE, or give a directory."
        )
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{name} could not be downloaded: {first}; try again or give a directory."


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: when it is missing or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}; give the directory of a complete checkpoint."
        ) from None
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({error}); download it again."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object; download it again.")
    return content
