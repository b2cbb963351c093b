"""Training of draft models: small Llama-like models, distilled from any target on its own answers.

Acceptance is 1 - total variation (arXiv 2211.17192, corollary 3.6), and the total variation is minimized
directly (arXiv 2310.08461). If possible, a draft model is initialized with some of the target's layers,
its embedding and its output head.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, TrainingError
from forerun.heads.layers import borrowed_rows
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import as_transformers
from forerun.models.families import LLAMA_LIKE
from forerun.models.layouts import HEAD, layout_of
from forerun.models.sources import match_keys
from forerun.training.objective import AnchoredTokens, Drafts, Objective
from forerun.training.settings import DraftSettings
from forerun.training.target import Lesson, Teacher
from forerun.training.untrained import Untrained, layer_config

EMBEDDING = "model.embed_tokens.weight"


class TextObjective(Objective):
    """Training objective of a draft model: the target's row for every token of the answers."""

    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts on a batch, one after another, so that every token of an answer is in one."""
        with torch.autocast(lesson.probs.device.type, torch.bfloat16):
            output = self.module.model(lesson.batch.token_ids, use_cache=False)
        states, matrix = output.last_hidden_state, self.module.lm_head.weight
        # A token is predicted by the state of the token before it.
        wanted = lesson.rows[:, 1:]
        first, size = (wanted >= 0).int().argmax(-1), wanted.shape[1]
        anchors = first[:, None] + torch.arange(0, size, self.steps, device=wanted.device)
        following = AnchoredTokens(
            lesson.rows, anchors, torch.ones_like(anchors).bool(), 1, self.steps
        )
        rows, *_ = following.there.nonzero(as_tuple=True)
        predicting = states[rows, following.tokens[following.there] - 1]
        return Drafts(following, predicting.bfloat16(), matrix.bfloat16())


def spread(num_layers: int, count: int) -> list[int]:
    """Indices of `count` layers of a target, evenly spaced from the first to the last."""
    if count == 1:
        return [0]
    return [round(i * (num_layers - 1) / (count - 1)) for i in range(count)]


def begins_as_target(checkpoint: Checkpoint, hidden_size: int) -> bool:
    """True if a draft model of this hidden size can be initialized with layers of the target."""
    config = checkpoint.config
    return (
        checkpoint.native and config.model_type in LLAMA_LIKE and config.hidden_size == hidden_size
    )


def config_like(target: Any, layers: Sequence[int], *, tied: bool) -> Any:
    """Config of a model that consists of some layers of the target."""
    config = as_transformers(target)
    config.num_hidden_layers, config.tie_word_embeddings = len(layers), tied
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.layer_types = [kinds[layer] for layer in layers]
    config.architectures = [f"{config.model_type.capitalize()}ForCausalLM"]
    config.dtype = torch.bfloat16
    return config


def layers_of(
    checkpoint: Checkpoint, layers: Sequence[int], names: Iterable[str]
) -> dict[str, Tensor]:
    """Tensors of a draft by name, from some layers of a target and its final norm.

    Raises:
        CheckpointError: for weights that are missing or broken.
    """
    complete = checkpoint.with_weights()
    source = complete.source()
    stored = match_keys(source, layout_of(complete.architecture))
    theirs = {
        name: re.sub(r"(?<=layers\.)\d+", lambda place: str(layers[int(place[0])]), name)
        for name in names
        if name not in (EMBEDDING, HEAD)
    }
    return {name: source.read(stored[own]) for name, own in theirs.items()}


def embeddings_of(target: CausalLM, *, tied: bool) -> dict[str, Tensor]:
    """The target's embedding and output head, by their published names in a draft of equal size.

    If the two are tied, the matrix is the output head's, or the embedding if the output head is more than
    one product.
    """
    every = torch.arange(target.vocab_size)
    tables: dict[str, Tensor] = {}
    with suppress(ConfigError):  # The embedding has another width than the layers.
        tables[EMBEDDING] = target.embed(every[None].to(target.device))[0].cpu().float()
    with suppress(ConfigError):  # The output head cannot be run alone.
        rows = borrowed_rows(target, every)
        if rows is not None:
            tables[EMBEDDING if tied else HEAD] = rows.cpu().float()
    return tables


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """The files of a tokenizer by name."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def draft_model(
    target: CausalLM, ids: Tensor, own: DraftSettings, checkpoint: Checkpoint
) -> Untrained:
    """A draft model made of some of the target's layers, or a small Llama initialized at random.

    Layers are taken from a Llama-like target of equal hidden size. A random Llama takes the target's
    embedding and output head if the hidden sizes are equal.

    Raises:
        TrainingError: for an odd hidden size, and for a model with no fewer parameters than the target.
    """
    size = own.hidden_size or target.hidden_size
    layers = own.layers or max(1, min(4, target.num_layers // 2))
    if size % 2:
        raise TrainingError(
            f"hidden_size is {size}; it must be even, so that pairs of numbers are rotated."
        )
    text = checkpoint.config.get_text_config()
    tied = checkpoint.architecture.tied if checkpoint.native else text.tie_word_embeddings
    picked = spread(target.num_layers, layers) if begins_as_target(checkpoint, size) else None
    if picked is not None:
        config = config_like(checkpoint.config, picked, tied=tied)
    else:
        config = _small_llama(target, checkpoint, layers, size, tied=tied)
    shape, content = read_architecture(config), json.loads(config.to_json_string())
    _refuse_larger(shape, checkpoint)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    embeddings = embeddings_of(target, tied=tied) if size == target.hidden_size else {}
    begins = layers_of(checkpoint, picked, layout_of(shape).published) if picked is not None else {}
    with torch.no_grad():
        for name, tensor in {**begins, **embeddings}.items():
            module.get_parameter(name).copy_(tensor)
    for name in embeddings:
        module.get_parameter(name).requires_grad_(False)
    return Untrained(
        module,
        TextObjective(module, Teacher(target, (), ids), steps=own.steps),
        content,
        files=tokenizer_files(checkpoint.tokenizer),
    )


def _refuse_larger(shape: Architecture, target: Checkpoint) -> None:
    ours, theirs = layout_of(shape).num_parameters(), target.summary.parameters
    if ours >= theirs:
        raise TrainingError(
            f"layers {shape.num_layers} and hidden_size {shape.hidden_size} make a draft model of {ours} "
            f"parameters, no smaller than {target.name} ({theirs}); give fewer layers, or a smaller hidden "
            "size."
        )


def _small_llama(
    target: CausalLM, checkpoint: Checkpoint, layers: int, size: int, *, tied: bool
) -> Any:
    """Config of a small Llama with the target's vocabulary."""
    content = {
        **layer_config(target, checkpoint, size),
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": sorted(checkpoint.eos_token_ids),
    }
    return AutoConfig.for_model("llama", **content)
