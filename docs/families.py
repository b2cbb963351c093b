"""Writes the table of model families in docs/models.md: where each runs.

python docs/families.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoConfig

from forerun.errors import UnsupportedModelError
from forerun.models.families import FAMILIES
from forerun.models.gguf.families import FAMILIES as GGUF
from forerun.models.hf import refuse_unsupported

PAGE = Path(__file__).parent / "models.md"
BEGIN, END = "<!-- families: generated -->\n", "<!-- /families -->"
# Families without a decoder here that people ask for.
OTHERS = (
    *(
        "deepseek_v3",
        "gemma3n_text",
        "gemma4_text",
        "gpt_neox",
        "granitemoehybrid",
        "jamba",
        "lfm3",
    ),
    *("mamba2", "olmoe", "phi", "qwen2_moe", "qwen3_5_text", "qwen3_next", "t5"),
)


def table() -> str:
    """Families by where they run."""
    read = {
        kind for family in GGUF.values() for kind in (family.model_type, family.experts) if kind
    }
    refused = {kind for kind in OTHERS if _is_refused(kind)}
    rows = {
        "kernels and torch, GGUF too": FAMILIES.keys() & read,
        "kernels and torch": FAMILIES.keys() - read,
        "the adapter": set(OTHERS) - refused,
        "nothing: refused by name": refused,
    }
    lines = [f"| {place} | {_listed(kinds)} |" for place, kinds in rows.items()]
    return "| run by | `model_type` |\n| --- | --- |\n" + "\n".join(lines) + "\n"


def _listed(kinds: set[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in sorted(kinds))


def _is_refused(kind: str) -> bool:
    try:
        refuse_unsupported(AutoConfig.for_model(kind), kind)
    except UnsupportedModelError:
        return True
    return False


def render(page: str) -> str:
    """The page with its table as it is now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(render(PAGE.read_text("utf-8")), "utf-8")
