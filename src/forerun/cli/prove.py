"""`forerun prove`: is the output of a model, drafter and rule the target's own?"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.asked import (
    in_steps,
    load_engine,
    open_checkpoint,
    sampling_params,
    speculation,
)
from forerun.cli.bars import bars
from forerun.cli.commands import Files, give
from forerun.cli.derived import notes
from forerun.cli.options import Command
from forerun.cli.prove_flags import prove_options
from forerun.cli.quiet import quiet_libraries
from forerun.errors import CheckpointError, ConfigError
from forerun.options import changes, pick
from forerun.proof.effort import PARTS, Effort
from forerun.report.target_file import check_writable, write_file

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.params import SamplingParams
    from forerun.proof.proof import Proof


@click.pass_context
def prove(ctx: click.Context, /, **values: Any) -> int:
    """Prove that speculation leaves the target's distribution as it is.

    By enumeration: the rule and the sampler on small vocabularies, every outcome. By statistics:
    many outputs of your model and drafter, every token against the target's own row. By equality:
    greedy and seeded output against plain decoding. Exit code 1 where a defect is found, or where
    the method is approximate by design.
    """
    if values["certificate"] is not None:
        check_writable("--certificate", values["certificate"])
    # --seed is that of the proof; its requests have their own.
    params = sampling_params({**values, "seed": None})
    effort = pick(Effort, {**values, "parts": values["part"] or PARTS})
    texts = _read_texts(values)
    engine, prompts = _load(ctx, values, texts, effort)
    proof = _prove(engine, prompts, params, effort)
    return _report(values, engine, params, effort, proof, len(prompts))


def _read_texts(values: dict[str, Any]) -> list[str]:
    from forerun.measure.questions import read_questions
    from forerun.models.zoo import is_zoo
    from forerun.proof.prompts import held_out_prompts

    if values["prompts"]:
        return [question.opening for question in read_questions(values["prompts"])]
    try:
        return held_out_prompts()
    except CheckpointError as error:
        if is_zoo(values["model"]):
            raise
        raise ConfigError(
            "there are no prompts: forerun's own are in the package forerun-zoo, which is not "
            "installed; give a file with --prompts."
        ) from error


def _load(
    ctx: click.Context, values: dict[str, Any], texts: list[str], effort: Effort
) -> tuple[Engine, list[list[int]]]:
    """The engine, with room for these prompts, and their token ids."""
    quiet_libraries()
    from forerun.proof.prompts import encode_prompts

    choice = speculation(ctx, values, values["model"])
    checkpoint = open_checkpoint(values)
    longest = values["max_context"] or checkpoint.summary.max_context
    if effort.output_tokens >= longest:
        raise ConfigError(
            f"--output-tokens is {effort.output_tokens}; the context is {longest} tokens; "
            "give fewer."
        )
    most_tokens = min(values["prompt_tokens"], longest - effort.output_tokens)
    prompts = encode_prompts(checkpoint.tokenizer, texts, most_tokens)
    needed = in_steps(max(len(prompt) for prompt in prompts) + effort.output_tokens)
    engine = load_engine(
        values,
        checkpoint,
        choice,
        max_context=min(needed, longest),
        max_batch_size=values["batch_size"],
        prefix_reuse=values["prefix_reuse"],
    )
    return engine, prompts


def _prove(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, effort: Effort
) -> Proof:
    from forerun.proof.proof import prove as run

    with bars():
        return run(engine, prompts, params, effort)


def _report(
    values: dict[str, Any],
    engine: Engine,
    params: SamplingParams,
    effort: Effort,
    proof: Proof,
    num_prompts: int,
) -> int:
    from forerun.proof.certificate import certificate, result_of
    from forerun.report.machine import made_with

    settings = _settings(values, engine, params, effort, num_prompts)
    content = {"settings": settings, **proof.as_dict()}
    code = give(
        replace(result_of(content), device=engine.target.device), Files(json=values["json"])
    )
    if values["certificate"] is not None:
        whole = {**made_with(engine.target.device), **content}
        write_file("certificate", values["certificate"], certificate(whole))
    return code


def _settings(
    values: dict[str, Any],
    engine: Engine,
    params: SamplingParams,
    effort: Effort,
    num_prompts: int,
) -> dict[str, Any]:
    """The settings that make the same proof again."""
    return {
        "model": values["model"],
        "revision": values["revision"],
        "dtype": engine.target.precision,
        "kv_dtype": values["kv_dtype"],
        "prompts": ", ".join(values["prompts"]) or "held-out prompts of the zoo",
        "num_prompts": num_prompts,
        "prompt_tokens": values["prompt_tokens"],
        "batch_size": values["batch_size"],
        "prefix_reuse": values["prefix_reuse"],
        "speculation": engine.config.as_dict(),
        "sampling": changes(params),
        "effort": asdict(effort),
    }


command = Command(
    "prove",
    params=prove_options(),
    callback=prove,
    example="forerun prove --model Qwen/Qwen3-0.6B --method ngram",
    assumed="proving {model} on held-out prompts, for some minutes",
    notes=notes,
)
