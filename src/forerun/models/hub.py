"""Search for a checkpoint: from a name, a path or a hub id to a directory or a GGUF file."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.errors import CheckpointError, ConfigError
from forerun.files import printable
from forerun.models.zoo import PACKAGED, is_packaged, packaged_path
from forerun.options import Text, check

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SPLIT = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")
_COMMIT = re.compile(r"[0-9a-f]{40}")
GGUF = ".gguf"
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_WEIGHTS = ("*.safetensors",)
# Copies of the weights in other formats would double the download.
_COPIES = ("*/*", "consolidated*")


@dataclass(frozen=True)
class Location:
    """Location of a checkpoint.

    Attributes:
        directory: directory of its files.
        hub_id: id of a model on the hub; None for a directory of the user's own.
        revision: revision on the hub: the downloaded commit, if it is known.
        file: GGUF file that holds all of it; None if the directory does.
    """

    directory: Path
    hub_id: str | None = None
    revision: str | None = None
    file: Path | None = None

    @property
    def path(self) -> Path:
        """The file, or else the directory."""
        return self.file or self.directory

    def with_weights(self, patterns: tuple[str, ...] = _WEIGHTS) -> Location:
        """The location of the checkpoint with its weights, which are downloaded if they are missing.

        Args:
            patterns: patterns of the names of weight files.

        Raises:
            CheckpointError: if the download fails.
        """
        if self.hub_id is None or self.file is not None:
            return self
        directory = _download(self.hub_id, self.revision, (*_SMALL_FILES, *patterns))
        return replace(self, directory=directory)


def locate(name: str | os.PathLike[str], revision: str | None = None) -> Location:
    """Find a checkpoint; of one on the hub everything but the weights is downloaded.

    Args:
        name: `zoo`, `zoo-draft` or `smollm2`, a directory, a GGUF file, an id such as
            `Qwen/Qwen3-0.6B`, or a GGUF file on the hub such as `Qwen/Qwen3-0.6B-GGUF/NAME.gguf`.
        revision: branch, tag or commit on the hub.

    Raises:
        CheckpointError: if there is no such directory or file, or the download fails.
        ConfigError: for the revision of a directory or a file.
    """
    named = packaged_path(str(name)) if is_packaged(name) else check("model", name, Text)
    path = Path(os.path.expanduser(named))
    here = os.path.exists(path)
    if here and revision is not None:
        kind = "directory" if path.is_dir() else "file"
        raise ConfigError(
            f"revision {revision!r} is for a model on the hub, and {printable(path)} is a "
            f"{kind}; leave the revision out."
        )
    if os.path.isdir(path):
        return Location(path)
    if here and path.suffix == GGUF:
        return Location(path.parent, file=path)
    if here:
        raise CheckpointError(
            f"{printable(path)} is a file; give a GGUF file, or the directory that holds config.json."
        )
    if str(name).endswith(GGUF):
        return _locate_file(str(name), revision)
    if not _HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise CheckpointError(
            f"there is no directory {printable(name)}; "
            "give a checkpoint's directory, a GGUF file or a hub id such as Qwen/Qwen3-0.6B."
        )
    directory = _download(str(name), revision, _SMALL_FILES)
    # A branch may move between two downloads.
    commit = directory.name if _COMMIT.fullmatch(directory.name) else revision
    return Location(directory, str(name), commit)


def _locate_file(name: str, revision: str | None) -> Location:
    """Download a GGUF file from the hub, with all its parts if it is split."""
    owner, _, rest = name.partition("/")
    model, _, file = rest.partition("/")
    if not file or not _HUB_ID.fullmatch(f"{owner}/{model}") or name.startswith("."):
        raise CheckpointError(
            f"there is no file {printable(name)}; give a GGUF file, or one on the hub as "
            "OWNER/MODEL/FILE.gguf."
        )
    parts = f"{split[1]}-*-of-{split[2]}.gguf" if (split := _SPLIT.fullmatch(file)) else file
    directory = _download(f"{owner}/{model}", revision, (parts,), copies=())
    path = directory / file
    if not path.is_file():
        raise CheckpointError(f"{owner}/{model} has no file {file}; look at its files on the hub.")
    return Location(directory, f"{owner}/{model}", revision, path)


def _download(
    name: str,
    revision: str | None,
    patterns: tuple[str, ...],
    copies: tuple[str, ...] = _COPIES,
) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        directory = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(copies)
        )
    except (HFValidationError, OSError) as error:
        raise CheckpointError(_advice(name, revision, error)) from error
    return Path(directory)


def _advice(name: str, revision: str | None, error: Exception) -> str:
    """One line of advice about an error of the hub."""
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
    # Subclasses before their base classes.
    advice = {
        errors.GatedRepoError: "is gated: accept its licence on huggingface.co, then set HF_TOKEN",
        errors.RevisionNotFoundError: f"has no revision {revision!r}; leave it out for the newest",
        errors.RepositoryNotFoundError: absent,
        errors.HFValidationError: absent,
        errors.LocalEntryNotFoundError: offline,
        errors.OfflineModeIsEnabled: offline,
        Exception: f"could not be downloaded: {first}; try again or give a directory",
    }
    near = difflib.get_close_matches(name, PACKAGED, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{name} {next(text for kind, text in advice.items() if isinstance(error, kind))}.{hint}"
