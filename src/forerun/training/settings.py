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
        description="Most conversations to write; by default 1000 if the model writes the prompts, else all.",
    )
    max_tokens: int = Field(default=400, ge=1, le=2**20, description="Maximum tokens of an answer.")
    temperature: float = Field(
        default=1.0, ge=0.0, le=100.0, description="Temperature of answers that are not greedy."
    )
    greedy_share: float = Field(
        default=0.33,
        ge=0.0,
        le=1.0,
        description="Share of conversations that are answered greedily.",
    )
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Top-p of the answers.")
    prompt_tokens: int = Field(
        default=160, ge=1, le=2**20, description="Maximum tokens of a prompt that the model writes."
    )
    seed: int = Field(default=0, ge=0, lt=2**20, description="Seed of all draws.")

    def temperature_of(self, item: int) -> float:
        """Temperature of the answers in conversation `item`; greedy conversations are evenly spread."""
        share = self.greedy_share
        return 0.0 if floor((item + 1) * share) > floor(item * share) else self.temperature


@options
class DrafterSettings:
    """Training settings that all drafters share."""

    minutes: float = Field(
        default=60.0, gt=0.0, le=1e6, description="Maximum minutes of training, without pauses."
    )
    tokens: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="Maximum tokens to train on; no limit by default.",
    )
    max_length: int = Field(
        default=1024,
        ge=16,
        le=2**20,
        description="Maximum tokens of a conversation; longer ones are left out.",
    )
    micro_batch_tokens: int = Field(
        default=1024, ge=16, le=2**24, description="Tokens of a micro-batch."
    )
    micro_batches: int = Field(default=1, ge=1, le=2**16, description="Micro-batches of a step.")
    matrix_learning_rate: float = Field(
        default=0.02, gt=0.0, le=10.0, description="Learning rate of the layers' matrices (Muon)."
    )
    learning_rate: float = Field(
        default=1e-3, gt=0.0, le=10.0, description="Learning rate of all other weights (AdamW)."
    )
    validate_minutes: float = Field(
        default=5.0, gt=0.0, le=1e6, description="Minutes of training between two validations."
    )
    patience: int = Field(
        default=6,
        ge=1,
        le=10**6,
        description="Training ends after this many validations in a row without a longer acceptance.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of all draws.")


@options
class HeadSettings(DrafterSettings):
    """Training settings that all heads share, besides those of all drafters."""

    draft_vocab_size: int = Field(
        default=16384,
        ge=16,
        le=2**31,
        description="Number of tokens that the head can draft, the most frequent ones in the answers.",
    )


@options
class Eagle3Settings:
    """Unrolling of an EAGLE-3 head."""

    steps: int = Field(default=5, ge=1, le=64, description="Tokens of a draft that are unrolled.")
    density: float = Field(
        default=0.35,
        gt=0.0,
        le=1.0,
        description="Share of the answers' tokens at which drafts begin.",
    )


@options
class MedusaSettings:
    """Shape and training density of Medusa's heads."""

    heads: int = Field(
        default=4, ge=1, le=64, description="Maximum tokens of a draft, one for each head."
    )
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
        description="Decoder layers; by default 4, or half of those of a target with fewer than 8.",
    )
    hidden_size: int | None = Field(
        default=None,
        ge=2,
        le=2**20,
        description="Hidden size; by default the target's, and then layers start as copies of the target's.",
    )
    steps: int = Field(
        default=5, ge=1, le=64, description="Tokens of the drafts that are validated."
    )


def named(kind: str) -> str:
    """A kind of drafter with its article."""
    if kind in ("draft", "draft_model"):
        return "a draft model"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} head"
