"""The model card of a trained drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def card_of(kind: str, own: Mapping[str, Any]) -> str:
    """The text of README.md.

    Args:
        kind: of the drafter, the name of the method that drafts with it.
        own: the content of forerun.json.
    """
    report, target = own["report"], own["target"]
    rows = [
        f"| {category} | {length:.2f} | {' '.join(f'{p:.2f}' for p in report['positions'][category])} |"
        for category, length in report["lengths"].items()
    ]
    what = "draft model" if kind == "draft_model" else f"{kind} head"
    command = "draft" if kind == "draft_model" else kind
    vocabulary = own["recipe"]["settings"].get("draft_vocab_size")
    limit = f"; at most {vocabulary} draft tokens" if vocabulary else ""
    lines = [
        f"# A {what} for {target['name']}",
        "",
        f"It drafts for {target['name']} ({target['num_layers']} layers of {target['hidden_size']}, "
        f"{target['vocab_size']} tokens), whose own answers it was trained on by `forerun train {command}`.",
        "",
        f"    forerun generate --model {target['name']} --draft-model THIS_DIRECTORY --prompt ...",
        "",
        "## Data",
        "",
        *(f"- {count} conversations {what}" for what, count in report["conversations"].items()),
        "",
        "## Recipe",
        "",
        f"{report['steps']} steps, {report['tokens']} tokens, {report['seconds'] / 60:.0f} minutes"
        f"{limit}. It has {report['weight_bytes'] / 1e6:.1f} MB of weights, of which "
        f"{report['trained_bytes'] / 1e6:.1f} MB were trained. All settings are in `forerun.json`.",
        "",
        "## Figures",
        "",
        "Expected acceptance length on held-out conversations, the bonus token included, computed from "
        "the target's and the drafter's own probabilities; greedy where the answer was (T=0).",
        "",
        "| category | length | acceptance by position |",
        "|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)
