"""The model card of a trained drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.report.markdown import as_markdown
from forerun.report.table import Table

PICTURE = "curve.svg"
"""File beside the card with the plot of acceptance length over the training."""


CERTIFICATE = "certificate.md"
"""File beside the card with the certificates of the proofs."""


def card_of(kind: str, own: Mapping[str, Any]) -> str:
    """The text of README.md.

    Args:
        kind: kind of the drafter, which is the name of the method that drafts with it.
        own: content of forerun.json.
    """
    report, target = own["report"], own["target"]
    rows = [
        (category, f"{length:.2f}", " ".join(f"{p:.2f}" for p in report["positions"][category]))
        for category, length in report["lengths"].items()
    ]
    what = "draft model" if kind == "draft_model" else f"{kind} head"
    command = "draft" if kind == "draft_model" else kind
    vocabulary = own["recipe"]["settings"].get("draft_vocab_size")
    begun = own["recipe"].get("begun_with_tokens")
    before = f" after those of a head of {begun} tokens that it began with" if begun else ""
    limit = f"; it can draft {vocabulary} tokens" if vocabulary else ""
    lines = [
        f"# {'An' if what[0] in 'aeiou' else 'A'} {what} for {target['name']}",
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
        f"{before}{limit}. It has {report['weight_bytes'] / 1e6:.1f} MB of weights, of which "
        f"{report['trained_bytes'] / 1e6:.1f} MB were trained. All settings are in `forerun.json`.",
        "",
        "## Figures",
        "",
        "Expected acceptance length on held-out conversations, the bonus token included, computed from "
        "the target's and the drafter's own probabilities; greedy where the answer was (T=0).",
        "",
        *_table(("category", "length", "acceptance by position"), rows),
        "",
        *(
            [f"![Acceptance length over the tokens of the training]({PICTURE})", ""]
            if "curve_by_category" in report
            else []
        ),
        *_contexts(report.get("contexts", {})),
        *_confidence(report.get("confidence_errors")),
        *_real_run(report.get("real_run", {}), report["lengths"]),
        *_proofs(own.get("proofs", ())),
    ]
    return "\n".join(lines)


def _contexts(contexts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines of the table of lengths by context; empty if they were not measured."""
    if not contexts:
        return []
    labels = list(dict.fromkeys(label for lengths in contexts.values() for label in lengths))
    rows = [
        [kind, *(_length(lengths.get(label)) for label in labels)]
        for kind, lengths in contexts.items()
    ]
    return [
        "The same by the tokens of the text before the draft:",
        "",
        *_table(["", *labels], rows),
        "",
    ]


def _confidence(errors: Mapping[str, Sequence[float]] | None) -> list[str]:
    """Lines on the calibration of the head's confidence; empty for a head without confidence."""
    if errors is None:
        return []
    before, after = (sum(errors[name]) / len(errors[name]) for name in ("before", "after"))
    what = "corrected by position, as in `forerun.json`" if after < before else "left as they were"
    return [
        f"What the head expects of its tokens is {before:.1%} off as published and {after:.1%} corrected "
        f"(expected calibration error over the positions); its expectations are {what}.",
        "",
    ]


def _real_run(report: Mapping[str, Any], lengths: Mapping[str, float]) -> list[str]:
    """Lines that compare the engine's measurements with expectations; empty without a run."""
    if not report:
        return []
    rows = []
    for run in report["runs"]:
        kind = f"T={run['temperature']:g}"
        own = [length for name, length in lengths.items() if name.endswith(f", {kind}")]
        expected = _length(sum(own) / len(own) if own else None)
        least, most = run["spread"]
        rows.append(
            (
                kind,
                _length(run["mean_acceptance_length"]),
                expected,
                f"{run['speedup']:.2f} ({least:.2f} to {most:.2f})",
                _equality(run),
            )
        )
    return [
        "## A real run",
        "",
        f"{report['runs'][0]['prompts']} held-out prompts, answered by the target "
        f"{_precision(report['precision'])} with at most {report['max_tokens']} tokens, "
        f"with chains of {report['num_speculative_tokens']} and plainly in "
        "turn; speed-ups are medians, with the least and the largest.",
        "",
        *_table(("", "acceptance length", "expected", "speed-up", "equal to plain decoding"), rows),
        "",
    ]


def _proofs(proofs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines on the results of `forerun prove`; empty if it did not run."""
    if not proofs:
        return []
    settings = proofs[0]["settings"]
    rows = [
        (
            ", ".join(f"{name} {value:g}" for name, value in proof["sampling"].items()),
            proof["level"],
            "no defect found" if proof["passed"] else "**not exact**",
        )
        for proof in proofs
    ]
    return [
        "## Proof",
        "",
        "What `forerun prove` found of these weights, with the target "
        f"{_precision(settings['dtype'])}, on {settings['num_prompts']} held-out prompts, "
        f"with chains of {settings['speculation']['num_speculative_tokens']} tokens and at "
        f"least {settings['effort']['num_tokens']} tokens for each of the statistics. "
        f"[The certificate]({CERTIFICATE}) has all settings and results.",
        "",
        *_table(("sampling", "promise", "result"), rows),
        "",
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return as_markdown(Table.of("", header, rows)).splitlines()


def _equality(run: Mapping[str, Any]) -> str:
    """Number of answers equal to plain decoding's, and the reasons for the other ones."""
    if run["identical"] is None:
        return "drawn"
    others = "".join(f", {count} {why}" for why, count in sorted(run["differences"].items()))
    return f"{run['identical']} of {run['prompts']}{others}"


def _precision(name: str) -> str:
    return "as stored" if name == "stored" else f"in {name}"


def _length(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
