"""The options of `forerun generate`, and those that it shares with other commands."""

from __future__ import annotations

import os
from typing import Any

import click

from forerun.cli.config import config_option
from forerun.cli.derived import SPECULATION, derived, speculation_options
from forerun.cli.options import Option, warn
from forerun.cli.param_types import FileName, Name, Variable, Whole
from forerun.cli.session import session_option
from forerun.compression import Compression
from forerun.engine.model_options import DEFAULT_MODEL, DEFAULT_SHOWN
from forerun.errors import shown
from forerun.params import SamplingParams

AT_LEAST_ONE = click.IntRange(min=1)
# Tokens of an answer at most, unless asked otherwise.
CHAT_TOKENS = 1024
# Help of `--max-context`.
AS_NEEDED = "Tokens of prompt and output at most; as many as are needed."


def generate_options() -> list[click.Parameter]:
    """All options of `forerun generate`, in the order of its help."""
    return [
        click.Argument(["text"], type=Whole(), nargs=-1, callback=_one_text, metavar="[PROMPT]"),
        Option("prompt", "Prompt", type=Whole(), help="The same, as an option."),
        Option(
            "prompt_file",
            "Prompt",
            type=FileName(),
            help="A UTF-8 file that holds it; - is standard input, as is leaving both out.",
        ),
        messages_option("A conversation to answer (- is standard input)"),
        Option(
            "raw",
            "Prompt",
            is_flag=True,
            help="Send the text as it is, without the model's chat template.",
        ),
        *template_options(),
        *model_options(),
        *cache_options(),
        session_option(
            "Read what a prompt shares with an earlier one from there, if it exists, and write it at the end."
        ),
        *drafting_options(),
        Option(
            "prediction_file",
            "Method prediction",
            type=FileName(),
            help="A UTF-8 file with the output that is expected, for method prediction.",
        ),
        *derived(SamplingParams, "Sampling"),
        *_comparison_options(),
        Option(
            "show_rounds",
            "Other",
            is_flag=True,
            help="Show every round: what was drafted, with p, q and the uniform of every test, and emitted.",
        ),
        Option(
            "html",
            "Other",
            type=FileName(),
            help="Write a page there too: tokens by origin, the draft where the pointer is.",
        ),
        json_option(),
        config_option(),
    ]


def chat_options() -> list[click.Parameter]:
    """All options of `forerun chat`."""
    sampling = derived(
        SamplingParams,
        "Sampling",
        without=("logprobs", "logprobs_mode"),
        defaults={"max_tokens": CHAT_TOKENS},
    )
    return [
        messages_option("A conversation to go on with"),
        *template_options(),
        *model_options(
            context="Tokens of a conversation at most; left out, the model's context up to 4096.",
        ),
        *cache_options(),
        session_option("Go on with the conversation there, if it exists, and write it at the end."),
        *drafting_options(),
        *sampling,
        config_option(),
    ]


def messages_option(what: str) -> Option:
    """`--messages`."""
    text = f"{what}: a JSON list of messages with role and content, or an object that holds one."
    return Option("messages", "Prompt", type=FileName(), help=text)


def template_options() -> list[Option]:
    """The options that say how messages become a prompt."""
    return [
        system_option(),
        template_var_option(),
        Option(
            "show_prompt",
            "Prompt",
            is_flag=True,
            help="Show the prompt as it was sent, on standard error.",
        ),
    ]


def system_option() -> Option:
    """`--system`."""
    return Option("system", "Prompt", type=Whole(), help="A system message before the others.")


def questions_option(name: str, section: str, what: str, more: str = "") -> Option:
    """Option for files of questions; `what` begins the help, `more` ends it."""
    return Option(
        name,
        section,
        type=FileName(),
        multiple=True,
        help=f"{what}: JSON lines (turns, messages, prompt, question or text; also .gz), text with one a "
        f"line, or a folder of such files and of texts that are one each. Repeatable. {more}".strip(),
    )


def template_var_option() -> Option:
    """`--template-var`."""
    return Option(
        "template_var",
        "Prompt",
        type=Variable(),
        multiple=True,
        callback=_each_once,
        metavar="NAME=VALUE",
        help="A variable of the chat template, such as enable_thinking=false. Repeatable.",
    )


def drafting_options() -> list[Option]:
    """Whether to speculate, and how."""
    text = "Draft ahead, or decode plainly."
    return [
        Option("speculative", SPECULATION, off=True, default=True, help=text),
        *speculation_options(),
    ]


def _each_once(
    ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[str, Any], ...]
) -> tuple[tuple[str, Any], ...]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"it gives {name} twice; give it once.", ctx, param)
    return pairs


def _one_text(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        raise click.UsageError(f'The prompt is several words; quote it: "{" ".join(words)}".')
    return words[0] if words else None


def model_options(dtype: str = "auto", context: str = AS_NEEDED) -> list[Option]:
    """The options that say which model to run, and where.

    Args:
        dtype: its default.
        context: help of `--max-context`.
    """
    section = "Model"
    return [
        Option(
            "model",
            section,
            type=Name(),
            default=DEFAULT_MODEL,
            show_default=DEFAULT_SHOWN,
            help="A checkpoint's directory, a GGUF file, a hub id, zoo (a small model of forerun's own) or "
            "smollm2.",
        ),
        *place_options(dtype, context),
        threads_option(section),
    ]


def cache_options() -> list[Option]:
    """The options of the target's cache: of what precision it is, and what of it is evicted."""
    return [kv_dtype_option("Cache"), *derived(Compression, "Cache")]


def kv_dtype_option(section: str = "Model") -> Option:
    """`--kv-dtype`."""
    return Option(
        "kv_dtype",
        section,
        type=Name(),
        default="auto",
        help="Precision of the target's keys and values: auto (as its weights, or bf16), fp32, bf16, int8 or "
        "int4; part of the model, like --dtype.",
    )


def place_options(dtype: str = "auto", context: str = AS_NEEDED) -> list[Option]:
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
        Option("max_context", section, type=AT_LEAST_ONE, help=context),
    ]


def threads_option(section: str) -> Option:
    """`--threads`."""
    text = "Threads of the CPU, its cores at most; torch's own number."
    return Option("threads", section, type=AT_LEAST_ONE, callback=_clamped, help=text)


def _clamped(ctx: click.Context, __: click.Parameter, threads: int | None) -> int | None:
    """As many threads as there are cores: more only wait for each other."""
    cores = os.cpu_count() or 1
    if threads is None or threads <= cores or ctx.resilient_parsing:
        return threads
    warn(f"--threads is {shown(threads)}; this machine has {cores} cores, which are used.")
    return cores


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
