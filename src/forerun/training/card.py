"""The model card of a trained head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def card_of(kind: str, own: Mapping[str, Any]) -> str:
    """The text of README.md.

    Args:
        kind: of the head, a method's name.
        own: the content of forerun.json.
    """
    report, target = own["report"], own["target"]
    rows = [
        f"| {category} | {length:.2f} | {' '.join(f'{p:.2f}' for p in report['positions'][category])} |"
        for category, length in report["lengths"].items()
    ]
    settings = own["recipe"]["settings"]
    lines = [
        f"# A {kind} head for {target['name']}",
        "",
        f"It drafts for {target['name']} ({target['num_layers']} layers of {target['hidden_size']}, "
        f"{target['vocab_size']} tokens), whose own answers it was trained on by `forerun train {kind}`.",
        "",
        f"    forerun generate --model {target['name']} --draft-model THIS_DIRECTORY --prompt ...",
        "",
        "## Data",
        "",
        *(f"- {count} conversations {what}" for what, count in report["conversations"].items()),
        "",
        "## Recipe",
        "",
        f"{report['steps']} steps, {report['tokens']} tokens, {report['seconds'] / 60:.0f} minutes; "
        f"at most {settings['draft_vocab_size']} draft tokens. All settings are in `forerun.json`.",
        "",
        "## Figures",
        "",
        "Expected acceptance length on held-out conversations, the bonus token included, computed from "
        "the target's and the head's own probabilities; greedy where the answer was (T=0).",
        "",
        "| category | length | acceptance by position |",
        "|---|---|---|",
        *rows,
        "",
        *_contexts(report.get("contexts", {})),
    ]
    return "\n".join(lines)


def _contexts(contexts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The table of lengths by context; nothing where they were not measured."""
    if not contexts:
        return []
    labels = list(dict.fromkeys(label for lengths in contexts.values() for label in lengths))
    rows = [
        f"| {kind} | {' | '.join(_length(lengths.get(label)) for label in labels)} |"
        for kind, lengths in contexts.items()
    ]
    return [
        "The same by the tokens of the text before the draft:",
        "",
        f"| | {' | '.join(labels)} |",
        f"|---|{'---|' * len(labels)}",
        *rows,
        "",
    ]


def _length(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
