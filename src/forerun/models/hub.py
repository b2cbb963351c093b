"""Finding a checkpoint: from a zoo model, a directory or a hub id to a directory with its files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.errors import CheckpointError, ConfigError
from forerun.files import printable
from forerun.models.zoo import is_zoo, zoo_path
from forerun.options import Text, check

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_WEIGHTS = ("*.safetensors",)
# Copies of the weights in other formats would double the download.
_COPIES = ("*/*", "consolidated*")


@dataclass(frozen=True)
class Location:
    """Where a checkpoint lies.

    Attributes:
        directory: with its files.
        hub_id: of a model on the hub; None for a directory of the user's own.
        revision: on the hub: the commit that was downloaded, where it is known.
    """

    directory: Path
    hub_id: str | None = None
    revision: str | None = None

    def with_weights(self) -> Location:
        """The same checkpoint with its weights, which are downloaded where they are not here yet.

        Raises:
            CheckpointError: when the download fails.
        """
        if self.hub_id is None:
            return self
        directory = _download(self.hub_id, self.revision, (*_SMALL_FILES, *_WEIGHTS))
        return replace(self, directory=directory)


def locate(name: str | os.PathLike[str], revision: str | None = None) -> Location:
    """Find a checkpoint; of one on the hub everything but the weights is downloaded.

    Args:
        name: `zoo` or `zoo-draft`, a directory, or an id such as `Qwen/Qwen3-0.6B`.
        revision: branch, tag or commit on the hub.

    Raises:
        CheckpointError: when there is no such directory, or the download fails.
        ConfigError: for the revision of a directory.
    """
    named = zoo_path(str(name)) if is_zoo(name) else check("model", name, Text)
    path = Path(os.path.expanduser(named))
    if os.path.isdir(path):
        if revision is None:
            return Location(path)
        raise ConfigError(
            f"revision {revision!r} is for a model on the hub, and {printable(path)} is a "
            "directory; leave the revision out."
        )
    if os.path.exists(path):
        raise CheckpointError(
            f"{printable(path)} is a file; give the directory that holds config.json."
        )
    if not _HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise CheckpointError(
            f"there is no directory {printable(name)}; "
            "give a checkpoint's directory or a hub id such as Qwen/Qwen3-0.6B."
        )
    directory = _download(str(name), revision, _SMALL_FILES)
    # A branch may move between two downloads.
    commit = directory.name if _COMMIT.fullmatch(directory.name) else revision
    return Location(directory, str(name), commit)


def _download(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        directory = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(_COPIES)
        )
    except (HFValidationError, OSError) as error:
        raise CheckpointError(_advice(name, revision, error)) from error
    return Path(directory)


def _advice(name: str, revision: str | None, error: Exception) -> str:
    """One line that says what to do about an error of the hub."""
    from huggingface_hub import errors

    first = (str(error).splitlines() or [type(error).__name__])[0]
    absent = (
        "is neither a directory here nor a model on huggingface.co; check the name, and set HF_TOKEN "
        "if it is private"
    )
    offline = (
        "is not (completely) in the local hub cache and the hub cannot be reached; go online, unset "
        "HF_HUB_OFFLINE, or give a directory"
    )
    # A kind before those that it belongs to.
    advice = {
        errors.GatedRepoError: "is gated: accept its licence on huggingface.co, then set HF_TOKEN",
        errors.RevisionNotFoundError: f"has no revision {revision!r}; leave it out for the newest",
        errors.RepositoryNotFoundError: absent,
        errors.HFValidationError: absent,
        errors.LocalEntryNotFoundError: offline,
        errors.OfflineModeIsEnabled: offline,
        Exception: f"could not be downloaded: {first}; try again or give a directory",
    }
    return f"{name} {next(text for kind, text in advice.items() if isinstance(error, kind))}."
