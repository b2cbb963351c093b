"""Training of EAGLE-3 heads: the module over whole texts, unrolled as in drafting, and its objective.

EAGLE-3 is trained by the steps that it will take (training-time test, arXiv 2503.01840). The first step
reads the target's states; each later step reads the output of the step before, with the text's own
tokens. Keys of the first step belong to the text, keys of later steps to the draft, so every step sees
what it will see in drafting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.heads.eagle3 import LAYER_IDS, Eagle3Config, default_layers
from forerun.models.architecture import ACTIVATIONS
from forerun.models.checkpoint import Checkpoint
from forerun.models.rope import frequencies, rotate
from forerun.training.objective import Drafts, Objective, at
from forerun.training.settings import Eagle3Settings
from forerun.training.target import Lesson, Teacher
from forerun.training.untrained import (
    NamedModule,
    Untrained,
    draft_offsets,
    layer_config,
    output_rows,
)

# Standard deviation of randomly initialized matrices.
_DEVIATION = 0.02
_ATTENTION, _MLP = "layers.0.self_attn", "layers.0.mlp"


class Eagle3Module(NamedModule):
    """An EAGLE-3 head in training.

    Norms are initialized as ones, matrices at random.

    Args:
        config: config of the head, of one layer and without flags.
        lm_head: rows of the target's output head over the draft's vocabulary, [Vd, hidden_size]; they
            are the head's output rows, which are not trained.
    """

    def __init__(self, config: Eagle3Config, lm_head: Tensor) -> None:
        shapes = {name: size for name, size in config.shapes().items() if name != "d2t"}
        initial = {
            name: torch.ones(size) if len(size) == 1 else torch.randn(size) * _DEVIATION
            for name, size in shapes.items()
        }
        super().__init__({**initial, "lm_head.weight": lm_head})
        self.get_parameter("lm_head.weight").requires_grad_(False)
        self.config, self.shape = config, config.layers
        self._activation = ACTIVATIONS[self.shape.activation]
        self._inverse, self._rotary_scale = frequencies(self.shape)
        if config.target_hidden_size == config.layers.hidden_size:
            with torch.no_grad():
                # At first the residual is the highest state, which the output head reads best.
                self.get_parameter("fc.weight")[:, -config.target_hidden_size :] += torch.eye(
                    config.target_hidden_size
                )

    def forward(self, states: Tensor, embeddings: Tensor, anchors: Tensor, steps: int) -> Tensor:
        """Input of the output head at every step of every draft.

        Args:
            states: hidden states of the target, [B, S, W].
            embeddings: embeddings of the text's tokens, [B, S, hidden_size].
            anchors: tokens whose states drafts begin with, [B, A], each below S - 1; step k predicts the
                token at anchor + 2 + k.
            steps: tokens of a draft.

        Returns:
            Hidden states, [B, A, steps, hidden_size].
        """
        fused = self.linear(states, "fc")[:, :-1]
        context = self._joined(embeddings[:, 1:], fused)
        slots = torch.arange(context.shape[1], device=anchors.device)
        keys, values = self._heads(context, "kv", slots[None])
        unseen = keys.new_zeros(anchors.shape[0], 1, anchors.shape[1], len(slots))
        unseen = unseen.masked_fill(slots > anchors[:, None, :, None], -torch.inf)
        # A draft sees only its own drafted tokens. The keys of its first step are among the text's.
        drafted: list[tuple[Tensor, Tensor]] = []
        hidden, last = at(fused, anchors), embeddings.shape[1] - 1
        outputs = []
        for step in range(steps):
            positions = anchors + step
            following = at(embeddings, (positions + 1).clamp(max=last))
            joined = self._joined(following, hidden)
            query, key, value = self._heads(joined, "qkv", positions)
            if step:
                drafted.append((key, value))
            hidden = self._rest(hidden, attend_drafts(query, keys, values, unseen, drafted))
            outputs.append(self._normed(hidden, "norm"))
        return torch.stack(outputs, dim=2)

    def _joined(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Input of the attention."""
        normed = self._normed(hidden, "layers.0.hidden_norm")
        return torch.cat((self._normed(embeddings, "layers.0.input_layernorm"), normed), dim=-1)

    def _normed(self, hidden: Tensor, name: str) -> Tensor:
        weight = self.weight(name).to(hidden.dtype)
        return functional.rms_norm(hidden, weight.shape, weight, self.shape.norm_eps)

    def _heads(self, hidden: Tensor, names: str, positions: Tensor) -> list[Tensor]:
        """Queries, keys or values, [B, heads, n, head_dim]; queries and keys are rotated.

        Args:
            hidden: hidden states, [B, n, width].
            names: letters of `qkv`.
            positions: positions of the tokens, [B, n] or [1, n].
        """
        angles = positions[..., None].float() * self._inverse.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        made = []
        for name in names:
            flat = self.linear(hidden, f"{_ATTENTION}.{name}_proj")
            vectors = flat.view(*flat.shape[:2], -1, self.shape.head_dim).transpose(1, 2)
            if name != "v":
                scale, dtype = self._rotary_scale, vectors.dtype
                cos, sin = ((part * scale).to(dtype) for part in (angles.cos(), angles.sin()))
                vectors = rotate(vectors, (cos, sin, False))
            made.append(vectors)
        return made

    def _rest(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Output of the layer from its residual [B, n, hidden_size] and the attention heads' output."""
        hidden = residual + self.linear(mixed, f"{_ATTENTION}.o_proj")
        normed = self._normed(hidden, "layers.0.post_attention_layernorm")
        gate, up = (self.linear(normed, f"{_MLP}.{name}_proj") for name in ("gate", "up"))
        return hidden + self.linear(self._activation(gate) * up, f"{_MLP}.down_proj")


def attend_drafts(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    unseen: Tensor,
    drafted: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Attention of drafts over the text and over their own tokens, [B, A, heads * head_dim].

    A draft has few tokens of its own, so elementwise products with them are cheaper than columns of a
    mask over all drafts.

    Args:
        query: query of each draft, [B, heads, A, head_dim].
        keys, values: keys and values of the text, [B, kv_heads, S, head_dim].
        unseen: -inf for tokens that a draft does not see, else 0, [B, 1, A, S].
        drafted: keys and values of each draft's own tokens so far, [B, kv_heads, A, head_dim].
    """
    groups, size = query.shape[1] // keys.shape[1], keys.shape[2]

    def repeated(vectors: Tensor) -> Tensor:
        return vectors.repeat_interleave(groups, 1) if groups > 1 else vectors

    query = query * query.shape[-1] ** -0.5
    scores = [query @ repeated(keys).transpose(-1, -2) + unseen]
    scores += [(query * repeated(key)).sum(-1, keepdim=True) for key, _ in drafted]
    shares = torch.cat(scores, -1).softmax(-1).to(values.dtype)
    mixed = shares[..., :size] @ repeated(values)
    for place, (_, value) in enumerate(drafted, start=size):
        mixed = mixed + shares[..., place, None] * repeated(value)
    return mixed.transpose(1, 2).flatten(2)


class Eagle3Objective(Objective):
    """Training objective of an EAGLE-3 head: its drafts in the answers, against the target's rows."""

    decay = 0.8

    def drafts(self, lesson: Lesson, *, training: bool = False) -> Drafts:
        """Drafts of the head on a batch, the same in training."""
        # A token is predicted from the state two tokens before it and from the token between.
        following = self.drawn(lesson, 2, self.steps)
        embeddings = self.teacher.model.embed(lesson.batch.token_ids)
        states = lesson.features(self.module.config.layers_of(self.teacher.model.num_layers))
        with torch.autocast(embeddings.device.type, torch.bfloat16):
            outputs = self.module(states, embeddings, following.anchors, self.steps)
        matrix = self.module.get_parameter("lm_head.weight").bfloat16()
        return Drafts(following, outputs[following.there].bfloat16(), matrix)


def eagle3(target: CausalLM, ids: Tensor, own: Eagle3Settings, checkpoint: Checkpoint) -> Untrained:
    """An EAGLE-3 head in the layout that all engines load: one layer, no flags."""
    layers = layer_config(target, checkpoint)
    config = {
        **layers,
        # Drafted tokens reach the state through values alone, so values are as wide as the state.
        "num_key_value_heads": layers["num_attention_heads"],
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
    return Untrained(module, objective, config, vocabulary_of(ids, target.vocab_size))


def vocabulary_of(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """Tensors d2t and t2d, a mask of the target's tokens that can be drafted; nothing if they are all."""
    offsets = draft_offsets(ids, vocab_size)
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {**offsets, "t2d": mask} if offsets else {}
