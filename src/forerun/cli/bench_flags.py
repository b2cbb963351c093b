"""The options of `forerun bench`."""

from __future__ import annotations

import click

from forerun.bench.peers.process import CALL_SECONDS
from forerun.bench.settings import FIXED
from forerun.bench.workloads import BUILT_IN
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.flags import (
    json_option,
    kv_dtype_option,
    model_options,
    questions_option,
    system_option,
    template_var_option,
)
from forerun.cli.lists import Numbers, Wholes, list_option
from forerun.cli.options import Option
from forerun.cli.param_types import FileName, Listed, Name, Whole
from forerun.drafters.lookup.corpus_cache import CorpusOptions
from forerun.engine.config import SpeculativeConfig
from forerun.params import SamplingParams

MINUTES = 5.0
LENGTHS = "3,6"
TEMPERATURES = "0,1"
MAX_TOKENS = 128
_LONGEST, _MOST_NODES, _MOST_ROWS, _HOTTEST = 64, 1024, 1024, 10.0


def bench_options() -> list[click.Parameter]:
    """All options, in the order of the help."""
    return [
        *_workload_options(),
        *model_options(model="smollm2"),
        kv_dtype_option(),
        *_crossed_options(),
        *_speculation_options(),
        *derived(
            SamplingParams,
            "Sampling",
            without=("temperature", "logprobs", "logprobs_mode"),
            defaults={"max_tokens": MAX_TOKENS},
        ),
        *_peer_options(),
        *_output_options(),
    ]


def _workload_options() -> list[Option]:
    section = "Workload"
    return [
        questions_option("prompts", section, "Your prompts"),
        Option(
            "workloads",
            section,
            type=Listed(str, "names"),
            default=",".join(BUILT_IN),
            help="Built-in prompts to measure on where there are no --prompts.",
        ),
        Option(
            "limit",
            section,
            type=click.IntRange(1, 10**6),
            help="Questions of each category at most; all.",
        ),
        Option(
            "skip_bad",
            section,
            is_flag=True,
            help="Leave out lines that are no questions, counted.",
        ),
        Option(
            "by_file",
            section,
            is_flag=True,
            help="Categories are files, by their names, and not what questions say.",
        ),
        Option(
            "minutes",
            section,
            type=click.FloatRange(0, 10**5),
            default=MINUTES,
            help="Begin no further prompt after so many; 0 measures all.",
        ),
        Option(
            "raw", section, is_flag=True, help="Send texts as they are, without a chat template."
        ),
        system_option(),
        template_var_option(),
    ]


def _crossed_options() -> list[Option]:
    section = "What to measure (lists: 1,2,4; integers also 1-8)"
    return [
        _names(
            "methods",
            "Drafters, and default: what forerun picks by itself, cold and warm. Left out, the likely ones.",
        ),
        Option(
            "draft_model",
            section,
            type=Name(),
            multiple=True,
            help="A draft model or trained head, for the methods that it is for. Repeatable.",
        ),
        list_option("lengths", section, Wholes(1, _LONGEST), LENGTHS, "Tokens to draft a round."),
        _names("trees", "chain, auto, or JSON files with shapes.", "chain"),
        list_option(
            "tree_nodes",
            section,
            Wholes(1, _MOST_NODES),
            str(SpeculativeConfig.num_tree_nodes),
            "Nodes of automatic trees at most.",
        ),
        _names("policies", "How far to draft: fixed, so that losses show, auto, adaptive.", FIXED),
        list_option("temperatures", section, Numbers(0, _HOTTEST), TEMPERATURES, "0 is greedy."),
        list_option("batch_sizes", section, Wholes(1, _MOST_ROWS), "1", "Requests at once."),
    ]


def _names(name: str, text: str, default: str | None = None) -> Option:
    section = "What to measure (lists: 1,2,4; integers also 1-8)"
    return Option(name, section, type=Listed(str, "names"), default=default, help=text)


def _speculation_options() -> list[Option]:
    kept = ("rejection_sample_method", "draft_sample_method")
    others = [name for name in SpeculativeConfig.__dataclass_fields__ if name not in kept]
    section = "Speculation"
    return [
        *derived(SpeculativeConfig, section, without=others),
        *derived(CorpusOptions, section),
        Option(
            "method_option",
            section,
            type=Whole(),
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of methods or policies, for those that read it. Repeatable.",
        ),
    ]


def _peer_options() -> list[Option]:
    section = "Other engines"
    return [
        Option(
            "against",
            section,
            type=Listed(str, "names"),
            help="transformers, llama.cpp, openvino: the same model, prompts and numbers of tokens, plain "
            "and at the best length of their drafts; greedy, a request at a time.",
        ),
        Option(
            "peers_python",
            section,
            type=FileName(),
            help="The interpreter that has them; this one.",
        ),
        Option(
            "peers_cache",
            section,
            type=FileName(),
            metavar="FOLDER",
            help="Where models that were converted for them are kept; the user's cache.",
        ),
        Option(
            "peers_limit",
            section,
            type=click.FloatRange(1, 10**5),
            default=CALL_SECONDS,
            metavar="SECONDS",
            help="One that takes longer to load a model or to answer a prompt is ended.",
        ),
    ]


def _output_options() -> list[Option]:
    def file(name: str, text: str) -> Option:
        return Option(name, "Other", type=FileName(), help=text)

    return [
        file("rows", "Add every measured pair to a new file, as JSON lines, while it runs."),
        file(
            "resume", "The same with a file of an earlier run, whose pairs are not measured again."
        ),
        file("html", "Write the report as a page, with charts."),
        file("markdown", "Write the report as Markdown."),
        json_option(),
        config_option(),
    ]
