"""Request of `forerun prove`: the model, drafter and sampler whose exactness is to be proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forerun.compression import Compression
from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions, context_of, settings_of, speculation
from forerun.engine.resolve import Resolved, choose
from forerun.errors import CheckpointError, ConfigError
from forerun.files import check_writable, write_file
from forerun.flags import settings_in
from forerun.measure.questions import FILES, read_questions
from forerun.options import FileName, option, options, part
from forerun.params import SamplingParams
from forerun.placement import Placement
from forerun.proof.effort import DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS, Effort
from forerun.proof.outside.options import Outside
from forerun.report.result import Result

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.models import Checkpoint

# Outputs of a proof have a fixed length, and seeds of their own.
_OF_OUTPUTS = (
    *("max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "logprobs_mode"),
    "seed",
)
_HELD_OUT = "held-out prompts of the zoo"


@options
class ProveRequest:
    """Prove that speculation leaves the target's distribution as it is.

    By enumeration: the rule and the sampler on small vocabularies, every outcome. By statistics:
    many outputs of your model and drafter, every token against the target's own row. By equality:
    greedy and seeded output against plain decoding. Exit code 1 where a defect is found, or where
    the method is approximate by design. With --endpoint, the same of any OpenAI-compatible server,
    from outside.
    """

    prompts: tuple[FileName, ...] = option(
        default=(),
        description=f"Your prompts, the first turns without a template: {FILES} Left out, the zoo's held-out "
        "prompts.",
        section="Proof",
        repeat=True,
    )
    certificate: FileName | None = option(
        default=None, description="Write a Markdown certificate there."
    )
    outside: Outside = part(default=Outside, section="From outside")
    effort: Effort = part(default=Effort, section="Proof")
    prompt_tokens: int = option(
        default=DEFAULT_PROMPT_TOKENS,
        ge=1,
        description="Longer prompts are cut to this many last tokens.",
    )
    batch_size: int = option(
        default=DEFAULT_BATCH, ge=1, le=2**16, description="Outputs generated at once."
    )
    model: ModelOptions = part(
        default=ModelOptions(placement=Placement(dtype="fp32")), section="Model"
    )
    prefix_reuse: bool = option(
        default=True,
        description="A prompt that begins like an earlier request's text runs only the rest.",
        section="Model",
    )
    compression: Compression = part(default=Compression, section="Cache", requires=("kv_method",))
    speculation: SpeculativeConfig = speculation(policy="fixed")
    sampling: SamplingParams = part(default=SamplingParams, section="Sampling", without=_OF_OUTPUTS)


def run(request: ProveRequest) -> Result:
    """Each part of the proof, and the certificate that is asked for.

    Raises:
        ForerunError: for a model, method, draft or file that does not fit.
    """
    from forerun.proof.certificate import certificate
    from forerun.proof.outside.run import prove_server

    if request.certificate is not None:
        check_writable("--certificate", request.certificate)
    outside = request.outside.endpoint is not None or request.outside.subject is not None
    result = prove_server(request) if outside else _prove(request)
    if request.certificate is not None:
        write_file("certificate", request.certificate, certificate(result))
    return result


def _prove(request: ProveRequest) -> Result:
    """The result of a proof of an engine in this process."""
    from forerun.proof.certificate import result_of
    from forerun.proof.prompts import encode_prompts
    from forerun.proof.proof import prove

    texts, choice = texts_of(request), choose(request.speculation, request.model.model)
    checkpoint = request.model.open()
    prompts = encode_prompts(checkpoint.tokenizer, texts, _room(request, checkpoint))
    engine = _engine(request, checkpoint, choice, prompts)
    proof = prove(engine, prompts, request.sampling, request.effort)
    settings = settings_in(request) | {
        **settings_of(engine.config),
        "dtype": engine.target.precision,
        "prompts": ", ".join(request.prompts) or _HELD_OUT,
        "num_prompts": len(prompts),
    }
    return replace(result_of(proof.as_dict()), settings=settings, device=engine.target.device)


def texts_of(request: ProveRequest) -> list[str]:
    """Prompts of the proof: the given ones, or those that come with forerun.

    Raises:
        ConfigError: if there are none.
        PromptError: for a file that cannot be read.
    """
    from forerun.models.zoo import is_zoo
    from forerun.proof.prompts import held_out_prompts

    if request.prompts:
        return [question.opening for question in read_questions(request.prompts)]
    try:
        return held_out_prompts()
    except CheckpointError as error:
        if is_zoo(request.model.model):
            raise
        raise ConfigError(
            "there are no prompts: forerun's own are in the package forerun-zoo, which is not "
            "installed; give a file with --prompts."
        ) from error


def _longest(request: ProveRequest, checkpoint: Checkpoint) -> int:
    """Tokens of a prompt and its output at most."""
    return request.model.max_context or checkpoint.summary.max_context


def _room(request: ProveRequest, checkpoint: Checkpoint) -> int:
    """Tokens of a prompt at most.

    Raises:
        ConfigError: where outputs leave none.
    """
    longest, output = _longest(request, checkpoint), request.effort.output_tokens
    if output >= longest:
        raise ConfigError(
            f"output_tokens is {output}; the context is {longest} tokens; give fewer."
        )
    return min(request.prompt_tokens, longest - output)


def _engine(
    request: ProveRequest, checkpoint: Checkpoint, choice: Resolved, prompts: Sequence[list[int]]
) -> Engine:
    """An engine with room for these prompts and their outputs."""
    needed = max(map(len, prompts)) + request.effort.output_tokens
    return request.model.load(
        checkpoint,
        choice,
        max_context=min(context_of(checkpoint, None, needed), _longest(request, checkpoint)),
        max_batch_size=request.batch_size,
        prefix_reuse=request.prefix_reuse,
        compression=request.compression,
    )
