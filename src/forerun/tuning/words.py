"""What was found, in words: what to use, what to expect, where it loses; and as a config file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.theory.advice import HARDLY
from forerun.tuning.prediction import Prediction
from forerun.tuning.tune import Tuning
from forerun.tuning.workbench import Candidate

# The share of predictions that should be within this error.
CLOSE = 0.1


def verdict(tuning: Tuning, batch_sizes: Sequence[int]) -> list[str]:
    """Sentences for people."""
    lines = [
        _verdict(tuning.best(size), size if len(batch_sizes) > 1 else None) for size in batch_sizes
    ]
    run = tuning.confirmed
    if run:
        close = sum(abs(one.error or 0.0) <= CLOSE for one in run)
        lines.append(
            f"{close} of {len(run)} predictions that were run are within {CLOSE:.0%} of what was measured."
        )
    lines += [f"Not tried: {name} ({reason})" for name, reason in tuning.refused.items()]
    return lines


def _verdict(best: Prediction, batch_size: int | None) -> str:
    where = "" if batch_size is None else f"Batch {batch_size}: "
    known = "confirmed" if best.confirmed is not None else "predicted"
    name, gain = _named(best), f"{best.best_known:.2f} x plain decoding ({known})"
    if best.best_known < 1.0 + HARDLY:
        return f"{where}Decode plainly: the best setting, {name}, reaches {gain}."
    text = f"{where}Use {name}: expect {gain}, {best.tokens_per_forward:.2f} tokens a forward."
    losing = ", ".join(f"{name} ({value:.2f} x)" for name, value in best.loses_on.items())
    return f"{text} It loses on {losing}." if losing else text


def _named(one: Prediction) -> str:
    return f"{one.candidate} with {one.num_tokens} token{'s' if one.num_tokens > 1 else ''} a round"


def config_values(tuning: Tuning, batch_size: int, model: str) -> dict[str, Any]:
    """The best setting of a batch size as options of the command line, by the names of their flags."""
    best = tuning.best(batch_size)
    values: dict[str, Any] = {"model": model}
    if best.best_known < 1.0 + HARDLY:
        return {**values, "speculative": False}
    candidate: Candidate = tuning.candidates[best.candidate]
    values["method"] = candidate.method
    if candidate.model is not None:
        values["draft-model"] = candidate.model
    values["num-speculative-tokens"] = best.num_tokens
    if candidate.tree_nodes is not None:
        values |= {"tree": "auto", "num-tree-nodes": candidate.tree_nodes}
    return values | {name.replace("_", "-"): value for name, value in candidate.options}


def as_toml(values: Mapping[str, Any], comments: Sequence[str]) -> str:
    """A file for `--config`."""
    # JSON's texts, numbers and booleans are TOML's.
    lines = [*(f"# {line}" for line in comments)]
    lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "".join(f"{line}\n" for line in lines)
