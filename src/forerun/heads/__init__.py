"""Trained heads: small modules that draft from their target's hidden states. One file per head.

Importing this package loads neither torch nor NumPy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.files import is_regular

CONFIG = "config.json"
# A longer file is not the config of a head.
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class HeadKind:
    """The marks by which the config of a kind of head is recognized.

    Args:
        architectures: names of its classes in other engines.
        speculators: its `speculators_model_type`.
        keys: keys that no other config has.
    """

    architectures: re.Pattern[str]
    speculators: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()

    def fits(self, config: Mapping[str, Any]) -> bool:
        """True if a config is that of such a head."""
        names = config.get("architectures")
        known = isinstance(names, list) and any(
            isinstance(name, str) and self.architectures.fullmatch(name) for name in names
        )
        spoken = config.get("speculators_model_type")
        named = isinstance(spoken, str) and spoken in self.speculators
        return bool(known or named or self.keys & config.keys())


HEADS = {
    "eagle3": HeadKind(
        re.compile(
            "LlamaForCausalLMEagle3?|Eagle3?(Llama|Qwen3)ForCausalLM|Eagle3LlamaForCausalLM"
            "|Eagle3?(Speculator|DraftModel)"
        ),
        frozenset({"eagle", "eagle3"}),
        frozenset({"eagle_config"}),
    ),
    "medusa": HeadKind(
        re.compile("Medusa(Model|LMHeadModel|ForCausalLM)|.*ForCausalLMMedusa"),
        keys=frozenset({"medusa_num_heads"}),
    ),
}
"""The kinds of heads that forerun reads, by the name of the method that drafts with them."""


def kind_of(config: Mapping[str, Any]) -> str | None:
    """The kind of head that a config.json describes; None for anything else."""
    return next((name for name, kind in HEADS.items() if kind.fits(config)), None)


def kind_at(path: str | os.PathLike[str]) -> str | None:
    """The kind of head in a directory of this machine; None for anything else.

    Never raises: defects of the directory are reported when it is opened.
    """
    file = Path(path).expanduser() / CONFIG
    try:
        if not is_regular(file) or file.stat().st_size > _MOST_BYTES:
            return None
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, RuntimeError):
        return None
    return kind_of(content) if isinstance(content, dict) else None
