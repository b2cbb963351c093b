"""Options of `forerun train`: of the data that a model writes, and of the drafters trained on it."""

from __future__ import annotations

from math import floor

from pydantic import Field

from forerun.options import options


@options
class DataSettings:
    """Sampling settings and limits of prompts and answers in training data."""

    num_conversations: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Conversations to write at most; left out, 1000 where the model asks, else all.",
    )
    max_tokens: int = Field(default=400, ge=1, le=2**20, description="Tokens of an answer at most.")
    temperature: float = Field(
        default=1.0, ge=0.0, le=100.0, description="Of the answers that are not greedy."
    )
    greedy_share: float = Field(
        default=0.33, ge=0.0, le=1.0, description="Share of the conversations answered greedily."
    )
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Answers keep this most likely share."
    )
    prompt_tokens: int = Field(
        default=160, ge=1, le=2**20, description="Tokens of a prompt that the model writes at most."
    )
    seed: int = Field(default=0, ge=0, lt=2**20, description="Of all draws; another gives others.")

    def temperature_of(self, item: int) -> float:
        """Temperature of the answers in conversation `item`; greedy conversations are evenly spread."""
        share = self.greedy_share
        return 0.0 if floor((item + 1) * share) > floor(item * share) else self.temperature


@options
class DrafterSettings:
    """Training settings that all drafters share."""

    minutes: float = Field(
        default=60.0, gt=0.0, le=1e6, description="Of training at most, without pauses."
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="Tokens of conversations at most; left out, no limit.",
    )
    max_length: int = Field(
        default=1024,
        ge=16,
        le=2**20,
        description="Tokens of a conversation; longer ones are left out.",
    )
    micro_batch_tokens: int = Field(
        default=1024, ge=16, le=2**24, description="Tokens that are worked on at once."
    )
    micro_batches: int = Field(
        default=1, ge=1, le=2**16, description="Micro-batches of a step, of all processes together."
    )
    matrix_learning_rate: float = Field(
        default=0.02, gt=0.0, le=10.0, description="Of the matrices in the layers, by Muon."
    )
    learning_rate: float = Field(
        default=1e-3, gt=0.0, le=10.0, description="Of all other weights, by AdamW."
    )
    validate_minutes: float = Field(
        default=5.0, gt=0.0, le=1e6, description="Minutes of training between two validations."
    )
    patience: int = Field(
        default=6,
        ge=1,
        le=10**6,
        description="Validations in a row without a longer acceptance after which training ends.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Of all that is drawn.")


@options
class HeadSettings(DrafterSettings):
    """Training settings that all heads share, besides those of all drafters."""

    draft_vocab_size: int = Field(
        default=16384,
        ge=16,
        le=2**31,
        description="Tokens that the head can draft: the most frequent ones of the answers.",
    )


@options
class DSparkSettings:
    """Shape and training density of a DSpark head."""

    layers: int = Field(default=2, ge=1, le=64, description="Decoder layers.")
    block_size: int = Field(default=7, ge=1, le=64, description="Tokens of a draft at most.")
    fused_layers: int = Field(
        default=5, ge=1, le=64, description="Hidden states of the target that are fused."
    )
    markov_rank: int = Field(
        default=128, ge=0, le=4096, description="Of the term of the token before; 0 for none."
    )
    density: float = Field(
        default=0.35,
        gt=0.0,
        le=1.0,
        description="Share of the answers' tokens at which blocks begin.",
    )


@options
class Eagle3Settings:
    """Unrolling of an EAGLE-3 head, and the shape of its layer."""

    steps: int = Field(default=5, ge=1, le=64, description="Tokens of a draft that are unrolled.")
    density: float = Field(
        default=0.35,
        gt=0.0,
        le=1.0,
        description="Share of the answers' tokens at which drafts begin.",
    )
    key_heads: int | None = Field(
        default=None,
        ge=1,
        le=2**16,
        description="Heads of keys and values; left out, as many as heads of queries.",
    )
    intermediate_size: int | None = Field(
        default=None,
        ge=1,
        le=2**20,
        description="Of the layer's MLP; left out, eight thirds of the hidden size.",
    )


@options
class LayerSkipSettings:
    """Position of an adapter behind an early exit, and the drafts that it is validated by."""

    exit_layer: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="How many of the target's first layers draft; left out, a tenth of them.",
    )
    steps: int = Field(
        default=5, ge=1, le=64, description="Tokens of the drafts that are validated."
    )


@options
class MedusaSettings:
    """Shape and training density of Medusa's heads."""

    heads: int = Field(default=4, ge=1, le=64, description="Tokens of a draft at most, one a head.")
    layers: int = Field(default=1, ge=1, le=64, description="Residual blocks of each head.")
    density: float = Field(
        default=0.5,
        gt=0.0,
        le=1.0,
        description="Share of the answers' tokens at which drafts begin.",
    )


@options
class DraftSettings:
    """Shape of a draft model, and the drafts that it is validated by."""

    layers: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Decoder layers; left out, 4, or half of those of a target of fewer than 8.",
    )
    hidden_size: int | None = Field(
        default=None,
        ge=2,
        le=2**20,
        description="Of the hidden states; left out, the target's, whose layers it begins with then.",
    )
    steps: int = Field(
        default=5, ge=1, le=64, description="Tokens of the drafts that are validated."
    )


def named(kind: str) -> str:
    """A kind of drafter with its article."""
    if kind in ("draft", "draft_model"):
        return "a draft model"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} head"
