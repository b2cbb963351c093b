"""The options of `forerun generate`: one table; defaults come from the dataclasses that they fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import click

from forerun.cli.config import config_option
from forerun.cli.options import (
    FileName,
    LayerNumbers,
    Name,
    Names,
    Option,
    TokenBias,
    TokenIds,
    Whole,
)
from forerun.engine.config import SpeculativeConfig
from forerun.params import SamplingParams

AT_LEAST_ONE = click.IntRange(min=1)

# Name, type and help of what fills SamplingParams; a type in a list marks a repeatable option.
SAMPLING: tuple[tuple[str, Any, str], ...] = (
    ("temperature", float, "0 takes the most likely token; else 1e-5 to 100."),
    ("top_k", int, "Keep the k most likely tokens; 0 keeps all."),
    ("top_p", float, "Keep the most likely tokens until their probability reaches this."),
    ("min_p", float, "Keep tokens with this share of the largest probability."),
    ("repetition_penalty", float, "Above 1: tokens of prompt and output become less likely."),
    ("presence_penalty", float, "Subtracted from the logits of tokens in the output."),
    ("frequency_penalty", float, "The same, once an occurrence."),
    ("logit_bias", [TokenBias()], "Added to a token's logit. Repeatable."),
    ("allowed_token_ids", TokenIds(), "Emit nothing else, e.g. 11,42."),
    ("banned_token_ids", TokenIds(), "Never emit these."),
    ("seed", int, "Makes the output a function of the request (rules auto and coupled)."),
    ("max_tokens", int, "Tokens of output at most."),
    ("stop", [Whole()], "Cut the text before this string. Repeatable."),
    ("stop_token_ids", TokenIds(), "End after one of these tokens."),
    ("ignore_eos", bool, "Go on after an end-of-text token."),
    ("logprobs", int, "Report each token's log probability and N alternatives (with --json)."),
    ("logprobs_mode", Name(), "raw, or processed: as drawn from."),
)

# The same for SpeculativeConfig, by the names of its fields; RENAMED are the flags' own.
SPECULATIVE: tuple[tuple[str, Any, str], ...] = (
    (
        "method",
        Name(),
        "The drafter, such as draft_model, suffix or cascade. Left out, one is picked.",
    ),
    ("model", Name(), "The draft model, a directory or a hub id."),
    ("revision", Name(), "Its revision on the hub."),
    (
        "draft_dtype",
        Name(),
        "Its precision: auto (on the CPU kernels int8 or int4), fp32, bf16, fp16, int8 or int4.",
    ),
    ("num_speculative_tokens", int, "Tokens to draft a round, along any path."),
    ("tree", Name(), "Draft trees: auto, or a JSON file with a fixed shape."),
    ("num_tree_nodes", int, "Nodes of an automatic tree at most."),
    ("prompt_lookup_min", int, "Shortest n-gram that method ngram looks up."),
    ("prompt_lookup_max", int, "Longest n-gram that method ngram looks up."),
    ("suffix_corpus", Name(), "A UTF-8 file that method suffix drafts from as well."),
    (
        "suffix_store_tokens",
        int,
        "Tokens of earlier output that method suffix keeps; of its corpus at most, if more than 0.",
    ),
    ("exit_layer", int, "Layers of the target that draft, for method layer_skip."),
    ("skip_layers", LayerNumbers(), "Or the layers that it leaves out, e.g. 3,4,6."),
    ("exit_adapter", Name(), "A file that helps the head to read an early exit."),
    (
        "cascade",
        Names(),
        "The methods of method cascade: suffix,draft_model:4 (tokens each may draft).",
    ),
    ("cascade_confidence", float, "How much of its draft a method must expect to be accepted."),
    (
        "rejection_sample_method",
        Name(),
        "The verification rule: auto, token, block, traversal, coupled, or typical (approximate).",
    ),
    ("draft_sample_method", Name(), "How a draft model picks: auto, greedy or probabilistic."),
    ("policy", Name(), "How the length of drafts changes: fixed or adaptive."),
    ("monitor", bool, "Stop drafting where it does not pay."),
)
RENAMED = {"model": "draft_model", "revision": "draft_revision"}
SPECULATIVE_FLAGS = tuple(RENAMED.get(name, name) for name, _, _ in SPECULATIVE)


def generate_options() -> list[click.Parameter]:
    """All options of `forerun generate`, in the order of its help."""
    return [
        Option("prompt", "Prompt", type=Whole(), help="The text to go on from."),
        Option(
            "prompt_file",
            "Prompt",
            type=FileName(),
            metavar="FILE",
            help="A UTF-8 file that holds it; - is standard input, as is leaving both out.",
        ),
        *model_options(),
        Option(
            "speculative",
            "Speculation",
            off=True,
            default=True,
            help="Draft ahead, or decode plainly.",
        ),
        *from_dataclass(SpeculativeConfig, SPECULATIVE, "Speculation"),
        Option(
            "prediction_file",
            "Speculation",
            type=FileName(),
            metavar="FILE",
            help="A UTF-8 file with the output that is expected, for method prediction.",
        ),
        *from_dataclass(SamplingParams, SAMPLING, "Sampling"),
        *_comparison_options(),
        Option(
            "show_rounds",
            "Other",
            is_flag=True,
            help="Show the draft of every round, what was accepted and what was emitted.",
        ),
        json_option(),
        config_option(),
    ]


def model_options(dtype: str = "auto") -> list[Option]:
    """The options that say which model to run, and where."""
    section = "Model"
    return [
        Option(
            "model",
            section,
            type=Name(),
            default="zoo",
            help="A checkpoint's directory, a hub id, or zoo, the small model of forerun.",
        ),
        *place_options(dtype),
        Option(
            "threads", section, type=AT_LEAST_ONE, help="Threads of the CPU; torch's own number."
        ),
    ]


def place_options(dtype: str = "auto") -> list[Option]:
    """The options that say how a model is to be run."""
    section = "Model"
    return [
        Option("revision", section, type=Name(), help="Branch, tag or commit on the hub."),
        Option(
            "dtype",
            section,
            type=Name(),
            default=dtype,
            help="auto (as stored), fp32, bf16, fp16, or on the CPU kernels int8 or int4.",
        ),
        Option("device", section, type=Name(), default="auto", help="auto, cpu, cuda or mps."),
        Option(
            "backend",
            section,
            type=Name(),
            default="auto",
            help="kernels (forerun's own, on the CPU), torch, or auto.",
        ),
        Option(
            "max_context",
            section,
            type=AT_LEAST_ONE,
            help="Tokens of prompt and output at most; as many as are needed.",
        ),
    ]


def json_option() -> Option:
    """`--json`."""
    return Option(
        "json", "Other", is_flag=True, help="Print one JSON object to standard output instead."
    )


def _comparison_options() -> list[Option]:
    section = "Comparison"
    return [
        Option("compare", section, is_flag=True, help="Decode plainly too; same text? how fast?"),
        Option(
            "compare_rounds",
            section,
            type=AT_LEAST_ONE,
            default=3,
            help="Pairs of timed runs for --compare.",
        ),
    ]


def from_dataclass(
    owner: type,
    rows: Iterable[tuple[str, Any, str]],
    section: str,
    defaults: Mapping[str, Any] | None = None,
) -> list[Option]:
    """Options for fields; `defaults` are a command's own."""
    members = {field.name: field for field in fields(owner)}
    own = defaults or {}
    return [
        _option(members[name], kind, text, section, own.get(name, members[name].default))
        for name, kind, text in rows
    ]


def _option(field: Field[Any], kind: Any, text: str, section: str, default: Any) -> Option:
    name = RENAMED.get(field.name, field.name) if section == "Speculation" else field.name
    default = None if default is MISSING else default
    if isinstance(kind, list):
        return Option(name, section, type=kind[0], multiple=True, help=text)
    if kind is bool:
        return Option(name, section, off=bool(default), is_flag=True, default=default, help=text)
    # An empty tuple is nothing that a help text should show.
    return Option(
        name, section, type=kind, default=default, help=text, show_default=default not in (None, ())
    )
