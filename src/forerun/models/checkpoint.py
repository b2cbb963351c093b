"""Checkpoints: all facts about a model that are known before it is loaded, and its loading."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import UnsupportedModelError
from forerun.interrupts import never_lost
from forerun.models.architecture import Architecture, for_context, native, read_architecture
from forerun.models.config import (
    check_config,
    read_config,
    read_end_tokens,
    read_sampling_defaults,
)
from forerun.models.cpu import CpuModel
from forerun.models.hf import load_adapter
from forerun.models.hub import Location, locate
from forerun.models.layouts import layout_of
from forerun.models.memory import ModelSummary, describe, kernel_bytes, stored_bytes
from forerun.models.run_config import (
    STORED,
    DeviceMemory,
    RunConfig,
    draft_precision,
    resolve,
    with_kv_dtype,
)
from forerun.models.sources import (
    CodedSource,
    SafetensorsSource,
    Source,
    TensorSource,
    has_weights,
    read_weights,
    with_own_head,
)
from forerun.models.stacked import taken_apart
from forerun.models.tokenizer import has_tokenizer, read_tokenizer
from forerun.models.transformer import Transformer
from forerun.placement import Placement

if TYPE_CHECKING:
    from forerun.models.gguf.source import Rounding

# Models that are shared within `loading_once`, by their settings.
_loaded: ContextVar[dict[Hashable, CausalLM] | None] = ContextVar("loaded", default=None)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model by name, with its parts, each read at its first use.

    It is a directory in the form in which transformers saves a model; subclasses read other forms.

    Attributes:
        name: the name that the user gave; messages and reports use it.
        location: place of its files.
        config: the checked config of transformers.
    """

    name: str
    location: Location
    config: Any

    quantized = False
    """True if the kernels can hold the weights as stored; then `source` is a `CodedSource`."""

    @classmethod
    @never_lost()
    def open(cls, name: str | os.PathLike[str], revision: str | None = None) -> Checkpoint:
        """Find a checkpoint and read its config, but none of its weights.

        Args:
            name: `zoo`, `zoo-draft` or `smollm2`, a directory, a GGUF file, a hub id such as
                `Qwen/Qwen3-0.6B`, or a GGUF file on the hub.
            revision: branch, tag or commit on the hub.

        Raises:
            CheckpointError: for missing, broken or inconsistent files.
            UnsupportedModelError: for a model type that transformers does not know.
            ConfigError: for the revision of a directory, which has none.
        """
        location, named = locate(name, revision), os.fspath(name)
        if location.file is None:
            return Checkpoint(named, location, read_config(location.directory))
        from forerun.models.gguf.checkpoint import GgufCheckpoint

        return GgufCheckpoint.read(named, location, location.file)

    @property
    def directory(self) -> Path:
        """Directory of the checkpoint's files."""
        return self.location.directory

    @property
    def native(self) -> bool:
        """True if forerun's own decoder runs the model, False if transformers does."""
        return native(self.config)

    @cached_property
    def architecture(self) -> Architecture:
        """Architecture of the model; untied if downloaded weights hold a separate output head.

        Raises:
            UnsupportedModelError: for a model that transformers runs.
            CheckpointError: for weights that cannot be read.
        """
        if not self.native:
            raise UnsupportedModelError(
                f"{self.name} ({self.config.model_type}) runs on transformers only."
            )
        return self._architecture()

    def _architecture(self) -> Architecture:
        """Architecture by the config, and by facts that only the weights show."""
        shape = read_architecture(self.config)
        here = shape.tied and has_weights(self.directory)
        return with_own_head(shape, self.source()) if here else shape

    @cached_property
    def summary(self) -> ModelSummary:
        """Sizes of the model.

        Raises:
            UnsupportedModelError: for an architecture that cannot be run speculatively.
            CheckpointError: for a config from which no model can be made.
        """
        summary = describe(self.config, self.name, self.architecture if self.native else None)
        if self.quantized:
            layout = layout_of(self.architecture)
            formats = cast(CodedSource, self.source()).formats(layout)
            summary.weight_bytes[STORED] = int(stored_bytes(layout, formats))
        return summary

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text.

        Raises:
            CheckpointError: if they are not tokens of the vocabulary.
        """
        return read_end_tokens(self.directory, self.config)

    @cached_property
    def sampling_defaults(self) -> dict[str, Any]:
        """The sampling parameters that the model recommends, by the names of `SamplingParams`.

        Raises:
            CheckpointError: for values that are not allowed.
        """
        return read_sampling_defaults(self.directory)

    @property
    def has_tokenizer(self) -> bool:
        """False if no tokenizer comes with the model, which then runs on token ids."""
        return has_tokenizer(self.directory)

    @cached_property
    @never_lost()
    def tokenizer(self) -> Any:
        """The model's tokenizer, of transformers.

        Raises:
            CheckpointError: if its files are missing or broken.
        """
        return read_tokenizer(self.directory, self.config)

    @cached_property
    def held(self) -> list[Rounding]:
        """The form in which the kernels hold each quantized weight; empty if weights are not quantized.

        Raises:
            CheckpointError: for weights that cannot be read.
        """
        return []

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the files are read, one sentence each."""
        if self.native and self.config.tie_word_embeddings and not self.architecture.tied:
            return (
                "config.json ties the output head to the embedding, but the weights hold another "
                "head, which is used.",
            )
        return ()

    def source(self) -> Source:
        """The model's weights, none of which is read yet.

        Raises:
            CheckpointError: if they are missing or broken.
        """
        return taken_apart(SafetensorsSource(self.directory))

    @property
    def stored_dtype(self) -> torch.dtype | None:
        """Type of the weights; None if it is unknown."""
        dtype = self.config.dtype
        if dtype is None and has_weights(self.directory):
            source = self.source()
            dtype = source.slice(next(iter(source.shapes)), 0, 0, 1).dtype
        return dtype if isinstance(dtype, torch.dtype) else None

    def run_config(self, placement: Placement) -> RunConfig:
        """The settings that the model will run with.

        Raises:
            ConfigError: for a precision that the device or backend lacks.
        """
        return resolve(placement, self.stored_dtype, native=self.native, quantized=self.quantized)

    def draft_run_config(self, placement: Placement, target: RunConfig) -> RunConfig:
        """The settings that the model will run with as the draft model of a target.

        It runs on the target's device and, with `auto`, on the same backend; on the kernels it is
        quantized, unless its files already are.

        Raises:
            ConfigError: for a precision that the device or backend lacks.
        """
        placement = replace(placement, device=str(target.device), kv_dtype="auto")
        if placement.dtype != "auto" or not self.native:
            return self.run_config(placement)
        run = self.run_config(replace(placement, backend=target.backend))
        # A GGUF file of fp16 weights also runs as stored, but a draft should read fewer bytes.
        if run.backend != "kernels" or (run.precision == STORED and self.stored_dtype is None):
            return run
        read = kernel_bytes(self.architecture, "int8", read=True)
        return replace(run, precision=draft_precision(read))

    @never_lost()
    def load(self, run: RunConfig) -> CausalLM:
        """Load the model.

        Raises:
            CheckpointError: for missing, corrupt or inconsistent weights.
            UnsupportedModelError: for an architecture that cannot be run speculatively.
            MemoryLimitError: if the weights do not fit into memory.
        """
        plain = self.of_weights(run)
        model = _once((self.location, plain), lambda: self._load(plain))
        return with_kv_dtype(model, run.kv_dtype)

    def of_weights(self, run: RunConfig) -> RunConfig:
        """The settings that change the weights or what is made of them; models share the rest."""
        long = self.native and run.context > self.architecture.max_context
        return replace(run, kv_dtype="auto", context=self.summary.max_context if long else 0)

    def _load(self, run: RunConfig) -> CausalLM:
        if self.native:
            self._refuse_quantized()
        complete = self.with_weights()
        if not self.native:
            with _memory_for(run, self.name):
                return load_adapter(
                    complete.directory, self.config, run.dtype, run.device, self.name
                )
        shape = for_context(complete.architecture, run.context)
        return build(shape, complete.source(), run, self.name)

    def with_weights(self) -> Checkpoint:
        """The checkpoint with its weights, which are downloaded if they are missing.

        Some facts about a model are only known from its weights.

        Raises:
            CheckpointError: if the download fails.
        """
        location = self.location.with_weights()
        return self if location == self.location else replace(self, location=location)

    def is_same(self, other: Checkpoint) -> bool:
        """True if the other is the same checkpoint, under any name."""
        return self.location.path.resolve() == other.location.path.resolve()

    def _refuse_quantized(self) -> None:
        settings = getattr(self.config, "quantization_config", None)
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        # Of gpt-oss, whose experts are published in no other form.
        if settings is not None and (self.config.model_type, method) != ("gpt_oss", "mxfp4"):
            raise UnsupportedModelError(
                f"{self.name} is quantized ({method}), which is not read; load the original "
                "checkpoint, with --dtype int8 or int4 to run it quantized, or a GGUF file of it."
            )


def load_model(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    backend: str = "auto",
) -> CausalLM:
    """Load a language model for plain or speculative decoding.

    The families of `forerun.models.families` run on forerun's own decoder, on a CPU with compiled
    kernels. Any other model that transformers knows and whose cache can be cropped runs on an
    adapter.

    Args:
        model: `zoo`, a checkpoint's directory, a GGUF file, or an id such as `Qwen/Qwen3-0.6B`.
        revision: branch, tag or commit on the hub.
        dtype: `fp32`, `bf16`, `fp16`, `fp64`, `int8` and `int4` (on the kernels), or `auto`: the
            checkpoint's (for float16 on a CPU: float32; for a GGUF file on the kernels its own
            blocks).
        device: `cpu`, `cuda`, `mps`, or `auto`: the fastest available.
        backend: `kernels`, `torch`, or `auto`: the kernels if they can run the model.

    Raises:
        CheckpointError: for missing, corrupt or inconsistent files.
        UnsupportedModelError: for an architecture that cannot be run speculatively.
        ConfigError: for a dtype or device that does not exist or is not available.
    """
    placement = Placement(dtype, device, backend)
    checkpoint = Checkpoint.open(model, revision)
    return checkpoint.load(checkpoint.run_config(placement))


def model_from_tensors(
    config: Any,
    tensors: Mapping[str, Tensor],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    backend: str = "torch",
    name: str = "model",
) -> CausalLM:
    """A model on forerun's own decoder from published tensors in memory, such as a `state_dict`.

    Args:
        config: config of transformers.
        tensors: the tensors by published key.
        dtype, device, backend: as in `load_model`.
        name: name of the model in messages.

    Raises:
        CheckpointError: for missing, unexpected or misshapen tensors.
        UnsupportedModelError: for a config that forerun's own decoder does not run.
    """
    if not native(config):
        raise UnsupportedModelError(
            f"{config.model_type} has no decoder in forerun; "
            "save the model and load it with load_model."
        )
    check_config(config, name)
    stored = next(iter(tensors.values())).dtype if tensors else None
    source = taken_apart(TensorSource(tensors, name))
    run = resolve(Placement(dtype, device, backend), stored)
    return build(with_own_head(read_architecture(config), source), source, run, name)


def build(shape: Architecture, source: Source, run: RunConfig, name: str) -> CausalLM:
    """Make a model on forerun's own decoder from its weights."""
    if run.backend == "kernels":
        return CpuModel(shape, source, run.precision, name)
    with _memory_for(run, name):
        weights = read_weights(source, layout_of(shape), run.dtype, run.device)
        return Transformer(shape, weights, name)


def _memory_for(run: RunConfig, name: str) -> DeviceMemory:
    what = f"the weights of {name} in {run.precision}"
    return DeviceMemory(run.device, what, "use a smaller dtype or model, or the device 'cpu'")


@contextmanager
def loading_once() -> Iterator[None]:
    """Within the block, load each checkpoint once for the same settings.

    A model keeps nothing between forwards: every engine has a cache of its own.
    """
    token = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(token)


def _once(key: Hashable, load: Callable[[], CausalLM]) -> CausalLM:
    """The result of `load`, or within `loading_once` its earlier result for the same key."""
    loaded = _loaded.get()
    if loaded is None:
        return load()
    if key not in loaded:
        loaded[key] = load()
    return loaded[key]
