"""Training of DSpark heads: the module over random blocks of the answers, its objective and recipe."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.heads.dspark import DSparkConfig
from forerun.models.checkpoint import Checkpoint
from forerun.training.objective import Drafts, Objective
from forerun.training.settings import DSparkSettings
from forerun.training.target import Lesson, Teacher
from forerun.training.untrained import (
    PublishedModule,
    Untrained,
    attend,
    draft_offsets,
    layer_config,
    output_rows,
)

# Number of the target's hidden states that are fused, as in DeepSpec.
FUSED_LAYERS = 5


class DSparkModule(PublishedModule):
    """A DSpark head in training.

    Args:
        config: config of the head.
        target_hidden_size: size of the target's hidden states, which the head reads.
    """

    def __init__(self, config: DSparkConfig, target_hidden_size: int) -> None:
        shapes = config.shapes(target_hidden_size)
        super().__init__(config.layers, {k: v for k, v in shapes.items() if k != "d2t"})
        self.config = config
        with torch.no_grad():
            # The bigram term and the confidence are zero at first.
            for name in ("markov_head.markov_w2.weight", "confidence_head.proj.weight"):
                if name in shapes:
                    self.get_parameter(name).zero_()

    def forward(self, states: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Normed hidden states of the predicting positions, [B, A, draft_tokens, hidden_size].

        Args:
            states: hidden states of the target, [B, S, W].
            blocks: embeddings of the blocks' tokens, [B, A, n, hidden_size].
            anchors: position of each block's first token, [B, A]; the block sees the states before it.
        """
        rows, count, size, _ = blocks.shape
        context = self.normed(self.linear(states, "fc"), "hidden_norm")
        slots = torch.arange(states.shape[1], device=anchors.device)
        positions = (anchors[..., None] + torch.arange(size, device=anchors.device)).flatten(1)
        seen = _seen(anchors, len(slots), size)
        hidden = blocks.flatten(1, 2)
        for layer in range(self.shape.num_layers):
            normed = self.normed(hidden, f"layers.{layer}.input_layernorm")
            query, key, value = self.heads(normed, "qkv", positions, layer)
            text = self.heads(context, "kv", slots[None], layer)
            keys, values = (torch.cat(both, 2) for both in zip(text, (key, value), strict=True))
            mixed = attend(query, keys, values, seen)
            hidden = self.rest(hidden, mixed, layer)
        hidden = self.normed(hidden, "norm").view(rows, count, size, -1)
        return hidden[:, :, size - self.config.draft_tokens :]

    def before(self, token_ids: Tensor) -> Tensor | None:
        """Input of the bigram term for previous tokens, [..., markov_rank]; None without that term."""
        if not self.config.markov_rank:
            return None
        return functional.embedding(token_ids, self.weight("markov_head.markov_w1"))

    def confidence(self, hidden: Tensor, before: Tensor | None) -> Tensor | None:
        """Logit of the acceptance probability of each token, [N]; None without a confidence head."""
        if not self.config.confidence:
            return None
        if self.config.confidence == "markov":
            assert before is not None
            hidden = torch.cat((hidden, before.to(hidden.dtype)), dim=-1)
        return self.linear(hidden.float(), "confidence_head.proj")[..., 0]


class DSparkObjective(Objective):
    """Training objective of a DSpark head: blocks in the answers, against the target's rows."""

    decay = math.exp(-1 / 4)

    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts of the head on a batch, the same in training."""
        config, token_ids = self.module.config, lesson.batch.token_ids
        following = self.drawn(lesson, 1, config.draft_tokens)
        size = (*following.anchors.shape, config.block_size)
        filled = token_ids.new_full(size, config.mask_token_id)
        filled[..., 0] = token_ids.gather(1, following.anchors)
        embeddings = self.teacher.model.embed(filled.flatten(1)).view(*size, -1)
        with torch.autocast(embeddings.device.type, torch.bfloat16):
            outputs = self.module(
                lesson.features(config.target_layers), embeddings, following.anchors
            )
        assert self.rows is not None
        states, factors = outputs[following.there].bfloat16(), list[tuple[Tensor, Tensor]]()
        factors.append((states, self.rows.to(states.dtype)))
        places = (following.tokens - 1).clamp(max=token_ids.shape[1] - 1)
        earlier = token_ids.gather(1, places.flatten(1)).view(places.shape)[following.there]
        before = self.module.before(earlier)
        if before is not None:
            before = before.bfloat16()
            factors.append((before, self.module.weight("markov_head.markov_w2").bfloat16()))
        return Drafts(following, factors, self.module.confidence(states, before))


def _seen(anchors: Tensor, width: int, size: int) -> Tensor:
    """Attention mask of blocks, bool [B, 1, A * size, width + A * size].

    A position sees the keys of the text before its block, and the keys of its own block.

    Args:
        anchors: position of each block's first token, [B, A].
        width: tokens of the text.
        size: tokens of a block.
    """
    (batch, count), device = anchors.shape, anchors.device
    text = torch.arange(width, device=device) < anchors.repeat_interleave(size, dim=1)[..., None]
    within = torch.ones(size, size, dtype=torch.bool, device=device)
    blocks = torch.eye(count, dtype=torch.bool, device=device)
    own = torch.kron(blocks, within)
    return torch.cat((text, own.expand(batch, -1, -1)), dim=-1)[:, None]


def dspark(target: CausalLM, ids: Tensor, own: DSparkSettings, checkpoint: Checkpoint) -> Untrained:
    """A DSpark head in DeepSpec's layout.

    Args:
        target: model to draft for.
        ids: ids of the target's tokens that the head can draft, ascending.
        own: shape of the head.
        checkpoint: checkpoint of the target.
    """
    config = {
        **layer_config(target, checkpoint),
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "num_hidden_layers": own.layers,
        "layer_types": ["full_attention"] * own.layers,
        "block_size": own.block_size,
        "target_layer_ids": spread_layers(target.num_layers, FUSED_LAYERS),
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
    return Untrained(module, objective, config, draft_offsets(ids, target.vocab_size))


def spread_layers(num_layers: int, count: int) -> list[int]:
    """Layers of a target by DFlash's rule: evenly spaced from the second to the third-last."""
    first, last = min(1, num_layers - 1), max(num_layers - 3, min(1, num_layers - 1))
    if count == 1 or first == last:
        return [last]
    spread = [round(first + i * (last - first) / (count - 1)) for i in range(count)]
    return sorted(set(spread))
