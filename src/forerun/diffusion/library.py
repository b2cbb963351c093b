"""Lazy import of the diffusers library, with an error that says how to install it."""

from __future__ import annotations

from typing import Any

from forerun.errors import ConfigError

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
