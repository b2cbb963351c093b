"""Recipes for each kind of drafter: config, module and objective before training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from forerun.contracts import CausalLM
from forerun.drafters.own_layers import check_runs_apart
from forerun.errors import TrainingError
from forerun.heads.dspark import DSparkConfig
from forerun.heads.eagle3 import LAYER_IDS, Eagle3Config, default_layers
from forerun.heads.layer_skip import ARCHITECTURE, LayerSkipConfig
from forerun.heads.layers import borrowed_rows
from forerun.heads.medusa import MedusaConfig
from forerun.models.architecture import Architecture, read_architecture
from forerun.models.checkpoint import Checkpoint
from forerun.models.layouts import layout_of
from forerun.training.acceptance import AcceptanceTable
from forerun.training.conversations import ConversationBatch
from forerun.training.draft import (
    DraftModule,
    DraftObjective,
    begins_as_target,
    config_like,
    embeddings_of,
    layers_of,
    spread,
    tokenizer_files,
)
from forerun.training.drafter_settings import (
    DraftSettings,
    DSparkSettings,
    Eagle3Settings,
    LayerSkipSettings,
    MedusaSettings,
)
from forerun.training.dspark import DSparkModule, DSparkObjective
from forerun.training.eagle3 import Eagle3Module, Eagle3Objective
from forerun.training.layer_skip import LayerSkipModule, norm_of
from forerun.training.loop import Part
from forerun.training.medusa import MedusaModule, MedusaObjective
from forerun.training.target import Teacher


class Objective(Protocol):
    """The training objective of a drafter."""

    def __call__(self, batch: ConversationBatch) -> Part:
        """The loss of a batch."""

    def evaluate(self, batches: Iterable[ConversationBatch], ranks: int = 0) -> AcceptanceTable:
        """Acceptance on held-out conversations, and that of `ranks` siblings."""


class Recipe(Protocol):
    """A function that makes a kind of drafter for training."""

    __name__: str

    def __call__(
        self, target: CausalLM, ids: Tensor, own: Any, checkpoint: Checkpoint, /
    ) -> Untrained:
        """A drafter before its training."""


@dataclass(frozen=True)
class Untrained:
    """A drafter before its training.

    Args:
        module: module with the parameters.
        objective: objective that trains the module.
        config: content of the drafter's config.json.
        hidden_layers: hidden layers of the target that the drafter reads, numbered as in
            `ForwardOutput.hidden`.
        tensors: function that returns the module's current tensors by published name.
        files: further files of the drafter's directory, by name.
    """

    module: nn.Module
    objective: Objective
    config: Mapping[str, Any]
    hidden_layers: tuple[int, ...]
    tensors: Callable[[], Mapping[str, Tensor]]
    files: Mapping[str, bytes] = field(default_factory=dict)


def dspark(target: CausalLM, ids: Tensor, own: DSparkSettings, checkpoint: Checkpoint) -> Untrained:
    """A DSpark head in DeepSpec's layout.

    Args:
        target: model to draft for.
        ids: ids of the target's tokens that the head can draft, ascending.
        own: shape of the head.
        checkpoint: checkpoint of the target.
    """
    config = {
        **_layers(target, checkpoint),
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "num_hidden_layers": own.layers,
        "layer_types": ["full_attention"] * own.layers,
        "block_size": own.block_size,
        "target_layer_ids": spread_layers(target.num_layers, own.fused_layers),
        "num_target_layers": target.num_layers,
        "mask_token_id": 0,
        "markov_rank": own.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": own.markov_rank > 0,
        "sample_from_anchor": True,
        "draft_vocab_size": len(ids),
    }
    read = DSparkConfig.read(config, "the config of a new head")
    module = DSparkModule(read, target.hidden_size)
    teacher = Teacher(target, read.target_layers, ids)
    objective = DSparkObjective(module, teacher, output_rows(target, ids), density=own.density)
    given = None if len(ids) == target.vocab_size else ids
    return Untrained(
        module, objective, config, teacher.hidden_layers, lambda: module.published(given)
    )


def eagle3(target: CausalLM, ids: Tensor, own: Eagle3Settings, checkpoint: Checkpoint) -> Untrained:
    """An EAGLE-3 head in the layout that all engines load: one layer, no flags.

    Raises:
        TrainingError: if the number of key heads does not divide the number of query heads.
    """
    layers = _layers(target, checkpoint)
    queries = layers["num_attention_heads"]
    # Drafted tokens reach the state through values alone, so by default values are as wide as the state.
    keys = own.key_heads or queries
    if queries % keys:
        raise TrainingError(
            f"key_heads is {keys}; it must divide the {queries} heads of the queries."
        )
    config = {
        **layers,
        "num_key_value_heads": keys,
        "intermediate_size": own.intermediate_size or layers["intermediate_size"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": len(ids),
    }
    fused = default_layers(target.num_layers)
    if not 0 <= min(fused) <= max(fused) <= target.num_layers:
        # The target has too few layers for the default.
        config[LAYER_IDS] = [0, target.num_layers // 2, target.num_layers]
    read = Eagle3Config.read(config, "the config of a new head")
    module = Eagle3Module(read, output_rows(target, ids))
    teacher = Teacher(target, read.layers_of(target.num_layers), ids)
    objective = Eagle3Objective(module, teacher, steps=own.steps, density=own.density)
    given = None if len(ids) == target.vocab_size else ids
    return Untrained(
        module, objective, config, teacher.hidden_layers, lambda: module.published(given)
    )


def layer_skip(
    target: CausalLM, ids: Tensor, own: LayerSkipSettings, checkpoint: Checkpoint
) -> Untrained:
    """An adapter behind an early exit, in forerun's own layout: one decoder layer.

    Raises:
        TrainingError: for an exit that is not inside the target.
        UnsupportedModelError: for a target whose layers do not run apart.
    """
    check_runs_apart(target)
    below = own.exit_layer or max(1, round(target.num_layers / 10))
    if below >= target.num_layers:
        raise TrainingError(
            f"the exit is after layer {below} and {target.name} has {target.num_layers}; give an "
            "exit_layer below its last layer."
        )
    config = {
        **_layers(target, checkpoint),
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "exit_layer": below,
        "num_target_layers": target.num_layers,
        "draft_vocab_size": len(ids),
    }
    read = LayerSkipConfig.read(config, "the config of a new head")
    module = LayerSkipModule(read, output_rows(target, ids), norm_of(target))
    teacher = Teacher(target, (below,), ids)
    objective = DraftObjective(module, teacher, steps=own.steps, layer=below)
    given = None if len(ids) == target.vocab_size else ids
    return Untrained(
        module, objective, config, teacher.hidden_layers, lambda: module.published(given)
    )


def medusa(
    target: CausalLM,
    ids: Tensor,
    own: MedusaSettings,
    checkpoint: Checkpoint,  # noqa: ARG001
) -> Untrained:
    """Medusa's heads in vLLM's layout, with the target's output head."""
    read = MedusaConfig(target.hidden_size, target.vocab_size, own.heads, own.layers, len(ids))
    module = MedusaModule(read)
    teacher = Teacher(target, (target.num_layers,), ids)
    objective = MedusaObjective(module, teacher, output_rows(target, ids), density=own.density)

    def tensors() -> dict[str, Tensor]:
        offsets = {} if len(ids) == target.vocab_size else {"d2t": ids - torch.arange(len(ids))}
        return {**module.state_dict(), **offsets}

    return Untrained(module, objective, read.published(), teacher.hidden_layers, tensors)


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
    tied = own.tied_embeddings == "yes"
    if own.tied_embeddings == "auto":
        tied = checkpoint.architecture.tied if checkpoint.native else text.tie_word_embeddings
    picked = spread(target.num_layers, layers) if begins_as_target(checkpoint, size) else None
    if picked is not None:
        config = config_like(checkpoint.config, picked, tied=tied)
    else:
        config = _small_llama(target, checkpoint, layers, size, tied=tied)
    shape = read_architecture(config)
    _refuse_larger(shape, checkpoint)
    embeddings = embeddings_of(target, tied=tied) if size == target.hidden_size else {}
    begins = layers_of(checkpoint, picked) if picked is not None else {}
    module = DraftModule(shape, {**begins, **embeddings})
    for name in embeddings:
        module.get_parameter(name).requires_grad_(own.train_embeddings)
    return Untrained(
        module,
        DraftObjective(module, Teacher(target, (), ids), steps=own.steps),
        json.loads(config.to_json_string()),
        (),
        module.state_dict,
        tokenizer_files(checkpoint.tokenizer),
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
        **_layers(target, checkpoint, size),
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": sorted(checkpoint.eos_token_ids),
    }
    return AutoConfig.for_model("llama", **content)


def output_rows(target: CausalLM, ids: Tensor) -> Tensor:
    """Rows of the target's output head, [Vd, hidden_size].

    Raises:
        TrainingError: for a target whose head is more than one product.
    """
    rows = borrowed_rows(target, ids)
    if rows is None:
        raise TrainingError(
            f"the output head of {target.name} is more than a product with a matrix (its logits are "
            "capped, or have a bias); heads that borrow it cannot be trained."
        )
    return rows


def spread_layers(num_layers: int, count: int) -> list[int]:
    """Layers of a target by DFlash's rule: evenly spaced from the second to the third-last."""
    first, last = min(1, num_layers - 1), max(num_layers - 3, min(1, num_layers - 1))
    if count == 1 or first == last:
        return [last]
    spread = [round(first + i * (last - first) / (count - 1)) for i in range(count)]
    return sorted(set(spread))


def _layers(target: CausalLM, checkpoint: Checkpoint, size: int | None = None) -> dict[str, Any]:
    """Config of a decoder layer for a hidden size, by default the target's.

    Heads have size 64 if that divides the hidden size. The base of the rotation is the target's.
    """
    size = size or target.hidden_size
    rope = getattr(checkpoint.config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    dim = next(d for d in (64, 32, 16, 8, 4, 2) if size % d == 0)
    heads = size // dim
    groups = next(n for n in (3, 4, 2, 1) if heads % n == 0)
    return {
        "hidden_size": size,
        "intermediate_size": max(64, round(size * 8 / 3 / 64) * 64),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // groups,
        "head_dim": dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": target.max_context,
        "vocab_size": target.vocab_size,
        "dtype": "bfloat16",
        "rope_theta": float(theta or 10000.0),
    }


def draft_ids(counts: Tensor, size: int, always: Iterable[int]) -> Tensor:
    """Ids of the tokens that a head can draft, ascending: the most frequent ones, and stop tokens.

    Of equally frequent tokens, the lower ids come first.

    Args:
        counts: count of each token in the answers, [V].
        size: size of the draft's vocabulary.
        always: stop tokens, which are always included.
    """
    ranked = counts.double() - torch.arange(len(counts)) / (2 * len(counts))
    ranked[list(always)] = torch.inf
    return ranked.topk(min(size, len(counts))).indices.sort().values


RECIPES: dict[str, Recipe] = {
    "draft": draft_model,
    "dspark": dspark,
    "eagle3": eagle3,
    "layer_skip": layer_skip,
    "medusa": medusa,
}
"""Recipe of each kind of drafter; a recipe's own name is that of the method that drafts with it."""
