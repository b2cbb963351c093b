"""Training DSpark heads: blocks that begin at random tokens of the answers, and what they minimize."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from forerun.heads.dspark import DSparkConfig
from forerun.training.acceptance import AcceptanceTable
from forerun.training.compiled import in_bf16
from forerun.training.conversations import ConversationBatch
from forerun.training.evaluation import Drafts, evaluate
from forerun.training.loop import Part
from forerun.training.losses import kl_share, rejection_loss
from forerun.training.published import PublishedModule, attend
from forerun.training.target import Lesson, Teacher

# Of the confidence head's loss, beside that of the tokens.
_CONFIDENCE_SHARE = 0.1


class DSparkModule(PublishedModule):
    """A head as it is trained.

    Args:
        config: of the head.
        target_hidden_size: of the states that it reads.
    """

    def __init__(self, config: DSparkConfig, target_hidden_size: int) -> None:
        shapes = config.shapes(target_hidden_size)
        super().__init__(config.layers, {k: v for k, v in shapes.items() if k != "d2t"})
        self.config = config
        with torch.no_grad():
            # A head begins without a bigram term, and with no opinion of itself.
            for name in ("markov_head.markov_w2.weight", "confidence_head.proj.weight"):
                if name in shapes:
                    self.get_parameter(name).zero_()

    def forward(self, states: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Hidden states of the positions that predict, normed, [B, A, draft_tokens, hidden_size].

        Args:
            states: of the target, [B, S, W].
            blocks: embeddings of the blocks' tokens, [B, A, n, hidden_size].
            anchors: the place of each block's first token, [B, A]; the block sees the states before it.
        """
        rows, count, size, _ = blocks.shape
        context = self.normed(self.linear(states, "fc"), "hidden_norm")
        slots = torch.arange(states.shape[1], device=anchors.device)
        positions = (anchors[..., None] + torch.arange(size, device=anchors.device)).flatten(1)
        seen = _seen(anchors, len(slots), size, causal=self.config.causal)
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
        """What the bigram term reads of the tokens before, [..., markov_rank]; None without such a term."""
        if not self.config.markov_rank:
            return None
        return functional.embedding(token_ids, self.weight("markov_head.markov_w1"))

    def confidence(self, hidden: Tensor, before: Tensor | None) -> Tensor | None:
        """The logit of the acceptance probability of each token, [N]; None without that head."""
        if not self.config.confidence:
            return None
        if self.config.confidence == "markov":
            assert before is not None
            hidden = torch.cat((hidden, before.to(hidden.dtype)), dim=-1)
        return self.linear(hidden.float(), "confidence_head.proj")[..., 0]


class DSparkObjective:
    """What a head learns from conversations: blocks that begin in the answers, against the target's rows.

    Args:
        module: the head.
        teacher: the target, over the draft's vocabulary, with the states that the head reads.
        output_rows: of the target's output head, over the draft's vocabulary, [Vd, hidden_size].
        density: share of the answers' tokens at which blocks begin.
        decay: the k-th token of a block weighs exp(-(k - 1) / decay).
        seed: of where they begin.
    """

    def __init__(
        self,
        module: DSparkModule,
        teacher: Teacher,
        output_rows: Tensor,
        *,
        density: float = 0.35,
        decay: float = 4.0,
        seed: int = 0,
    ) -> None:
        self.module, self.teacher = module, teacher
        self._rows, self._density, self._decay, self._seed = output_rows, density, decay, seed

    def __call__(self, batch: ConversationBatch) -> Part:
        """The loss of a batch: rejections, smoothed by KL the more the less is accepted, and that of the
        confidence head."""
        lesson = self.teacher.show(batch)
        blocks = _Blocks.drawn(lesson, self.module.config, self._density, self._seed)
        states, before = self._run(lesson, blocks)
        weights = torch.exp(-blocks.places / self._decay)
        factors = self._factors(states, before)
        share = kl_share(factors, lesson.probs, blocks.rows)
        total, accepted = rejection_loss(factors, lesson.probs, blocks.rows, weights, share)
        confidence = self.module.confidence(states, before)
        if confidence is not None:
            wanted = accepted.clamp(0, 1)
            losses = functional.binary_cross_entropy_with_logits(
                confidence, wanted, reduction="none"
            )
            total = total + _CONFIDENCE_SHARE * (losses * weights).sum()
        return Part(total, float(weights.sum()), batch.tokens)

    def evaluate(self, batches: Iterable[ConversationBatch], ranks: int = 0) -> AcceptanceTable:
        """Acceptance on conversations that are held out; see `evaluation.evaluate`."""
        return evaluate(self.teacher, self.drafts, batches, ranks)

    def drafts(self, lesson: Lesson) -> Drafts:
        """What it drafts on a batch."""
        blocks = _Blocks.drawn(lesson, self.module.config, self._density, self._seed)
        states, before = self._run(lesson, blocks)
        count = blocks.anchors.shape[1]
        return Drafts(
            torch.arange(len(blocks.anchors), device=states.device).repeat_interleave(count),
            blocks.anchors.flatten() + 1,
            blocks.there.flatten(0, 1),
            blocks.rows,
            [(torch.ones_like(blocks.rows, dtype=torch.bool), self._factors(states, before))],
            self.module.confidence(states, before),
        )

    def _run(self, lesson: Lesson, blocks: _Blocks) -> tuple[Tensor, Tensor | None]:
        """The states [N, hidden_size] of the positions that predict tokens of the answers, and what the
        bigram term reads before each."""
        config, token_ids = self.module.config, lesson.batch.token_ids
        size = (*blocks.anchors.shape, config.block_size)
        filled = token_ids.new_full(size, config.mask_token_id)
        filled[..., 0] = token_ids.gather(1, blocks.anchors)
        embeddings = self.teacher.model.embed(filled.flatten(1)).view(*size, -1)
        with in_bf16(embeddings.device):
            outputs = self.module(lesson.features(config.target_layers), embeddings, blocks.anchors)
        before = self.module.before(blocks.before(token_ids))
        states = outputs[blocks.there].bfloat16()
        return states, None if before is None else before.bfloat16()

    def _factors(self, states: Tensor, before: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        factors = [(states, self._rows.to(states.dtype))]
        if before is not None:
            matrix = self.module.weight("markov_head.markov_w2")
            factors.append((before, matrix.to(states.dtype)))
        return factors


class _Blocks:
    """Where blocks begin, and which of their tokens the target wrote.

    Args:
        rows: which of the target's rows predicts each token of a batch, [B, S]; -1 for none.
        anchors: the tokens that blocks begin with, [B, A].
        drawn: which of these are there, bool [B, A]; the rest is padding.
        size: tokens of a draft.

    Attributes:
        there: tokens that the target wrote, with all before them in the block, bool [B, A, size].
        rows: the target's row of each of those, [N].
        places: in its block, from 0, [N].
    """

    def __init__(self, rows: Tensor, anchors: Tensor, drawn: Tensor, size: int) -> None:
        self.anchors = anchors
        tokens = anchors[..., None] + 1 + torch.arange(size, device=anchors.device)
        padded = functional.pad(rows, (0, size + 1), value=-1)
        own = padded.gather(1, tokens.flatten(1)).view(tokens.shape)
        self.there = ((own >= 0) & drawn[..., None]).int().cumprod(-1).bool()
        self.rows = own[self.there]
        self.places = torch.arange(size, device=anchors.device).expand(tokens.shape)[self.there]
        self._tokens = tokens

    @classmethod
    def drawn(cls, lesson: Lesson, config: DSparkConfig, density: float, seed: int) -> _Blocks:
        """At a share of the tokens before an answer's token, at least one a conversation."""
        first = lesson.rows[:, 1:] >= 0
        generator = torch.Generator().manual_seed(seed * 1_000_003 + int(lesson.rows.max()))
        # Drawn on the CPU, so that blocks begin with the same tokens on every device.
        noise = torch.rand(first.shape, generator=generator).to(first.device)
        order = noise.masked_fill(~first, 2.0).argsort(-1)
        counts = (first.sum(-1) * density).ceil().long()
        most = max(int(counts.max()), 1)
        there = torch.arange(most, device=counts.device) < counts[:, None]
        return cls(lesson.rows, order[:, :most], there, config.draft_tokens)

    def before(self, token_ids: Tensor) -> Tensor:
        """The token before each of those that are there, [N]."""
        places = (self._tokens - 1).clamp(max=token_ids.shape[1] - 1)
        return token_ids.gather(1, places.flatten(1)).view(places.shape)[self.there]


def _seen(anchors: Tensor, width: int, size: int, *, causal: bool) -> Tensor:
    """Which keys the positions of blocks see, bool [B, 1, A * size, width + A * size]: of the text those
    before the block, and those of their own block.

    Args:
        anchors: the place of each block's first token, [B, A].
        width: tokens of the text.
        size: of a block.
        causal: whether positions of a block see only those before them.
    """
    (batch, count), device = anchors.shape, anchors.device
    text = torch.arange(width, device=device) < anchors.repeat_interleave(size, dim=1)[..., None]
    within = torch.ones(size, size, dtype=torch.bool, device=device)
    blocks = torch.eye(count, dtype=torch.bool, device=device)
    own = torch.kron(blocks, within.tril() if causal else within)
    return torch.cat((text, own.expand(batch, -1, -1)), dim=-1)[:, None]
