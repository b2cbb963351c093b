"""A model of transformers that is already in memory, as a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.models.architecture import Architecture, for_context, native, read_architecture
from forerun.models.checkpoint import Checkpoint, build
from forerun.models.config import check_config, check_end_tokens, sampling_defaults
from forerun.models.hf import HFModel, refuse_unsupported
from forerun.models.hub import Location
from forerun.models.run_config import RunConfig, dtype_name, resolve, with_kv_dtype
from forerun.models.sources import Source, TensorSource, with_own_head
from forerun.models.stacked import taken_apart
from forerun.placement import Placement


def is_model(value: Any) -> bool:
    """True if a value is a model of transformers."""
    return isinstance(value, torch.nn.Module) and hasattr(value, "config")


@dataclass(frozen=True, eq=False)
class LoadedModel(Checkpoint):
    """A checkpoint whose model is in memory.

    Attributes:
        model: model of transformers. Forerun's own decoder copies or shares its weights; a model
            that it does not run is run as it is.
        own_tokenizer: tokenizer of transformers; None for token ids alone.
        loaded: models that `load` has made, by their settings.
    """

    model: Any
    own_tokenizer: Any = None
    loaded: dict[RunConfig, CausalLM] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> LoadedModel:
        """Make a checkpoint from a model in memory.

        Raises:
            UnsupportedModelError: for a model that cannot be run speculatively.
            CheckpointError: for a config with values that no model has.
        """
        name = getattr(model, "name_or_path", "") or type(model).__name__
        described = callable(getattr(model.config, "get_text_config", None))
        if not described or not callable(getattr(model, "generate", None)):
            raise UnsupportedModelError(
                f"{name} is not a causal language model of transformers, with its head; load it with "
                "AutoModelForCausalLM."
            )
        refuse_unsupported(model.config, name)
        check_config(model.config, name)
        return cls(name, Location(Path(name)), model.config, model, tokenizer)

    @property
    def _generation(self) -> Any:
        return getattr(self.model, "generation_config", None)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        text = self.config.get_text_config()
        said = getattr(self._generation, "eos_token_id", None)
        value = getattr(text, "eos_token_id", None) if said is None else said
        return check_end_tokens(value, f"{self.name}: eos_token_id", text.vocab_size)

    @cached_property
    def sampling_defaults(self) -> dict[str, Any]:
        settings = {} if self._generation is None else self._generation.to_dict()
        return sampling_defaults(settings, self.name)

    @property
    def has_tokenizer(self) -> bool:
        return self.own_tokenizer is not None

    @property
    def tokenizer(self) -> Any:
        return self.own_tokenizer

    def _architecture(self) -> Architecture:
        return with_own_head(read_architecture(self.config), self.source())

    def source(self) -> Source:
        from transformers.core_model_loading import revert_weight_conversion

        # Experts are stacked in memory, and single matrices in files.
        tensors = self.model.state_dict()
        if getattr(self.config, "num_experts_per_tok", None):
            tensors = revert_weight_conversion(self.model, tensors)
        return taken_apart(TensorSource(tensors, self.name))

    @cached_property
    def native(self) -> bool:
        """True if forerun's own decoder runs the model: a plain one of a family that it knows."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as KNOWN

        changed = (
            getattr(self.config, "quantization_config", None) is not None
            or getattr(self.model, "_hf_peft_config_loaded", False)
            or len(set((getattr(self.model, "hf_device_map", None) or {}).values())) > 1
        )
        plain = type(self.config) in KNOWN and type(self.model) is KNOWN[type(self.config)]
        return plain and not changed and native(self.config)

    def run_config(self, placement: Placement) -> RunConfig:
        """The settings that the model will run with: by default its own device and precision.

        Raises:
            ConfigError: for a precision that the device or backend lacks, and for a change to a
                model that transformers runs.
        """
        device = str(self.model.device)
        here = replace(placement, device=device) if placement.device == "auto" else placement
        run = resolve(here, self.model.dtype, native=self.native)
        if self.native:
            return run
        dtype = dtype_name(self.model.dtype)
        if placement.dtype not in ("auto", dtype) or run.device != self.model.device:
            raise ConfigError(
                f"{self.name} runs on transformers as it is, in {dtype} on {device}; move it with "
                "model.to(...) first, and leave dtype and device out."
            )
        return replace(run, precision=dtype)

    def load(self, run: RunConfig) -> CausalLM:
        """The model, ready to run.

        Raises:
            ConfigError: for a model in training mode that transformers runs.
            CheckpointError, UnsupportedModelError, MemoryLimitError: as `Checkpoint.load` does.
        """
        if self.native:
            plain = self.of_weights(run)
            if plain not in self.loaded:
                shape = for_context(self.architecture, plain.context)
                self.loaded[plain] = build(shape, self.source(), plain, self.name)
            return with_kv_dtype(self.loaded[plain], run.kv_dtype)
        if self.model.training:
            raise ConfigError(
                f"{self.name} is in training mode, which drops out values; call model.eval()."
            )
        return HFModel(self.model, self.name)

    def is_same(self, other: Checkpoint) -> bool:
        """True if the other is a checkpoint of the same model."""
        return isinstance(other, LoadedModel) and other.model is self.model
