"""Settings for the data that a model writes to train its drafters."""

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
    num_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10**12,
        description="Tokens of answers after which to stop.",
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
    prompt_temperature: float = Field(
        default=1.0, gt=0.0, le=100.0, description="Of the prompts that the model writes."
    )
    prompt_top_p: float = Field(
        default=0.95, gt=0.0, le=1.0, description="Those prompts keep this most likely share."
    )
    similarity: float = Field(
        default=0.7,
        gt=0.0,
        le=1.0,
        description="Share of 3-word runs in common that makes a prompt a near duplicate.",
    )
    seed: int = Field(default=0, ge=0, lt=2**20, description="Of all draws; another gives others.")

    def temperature_of(self, item: int) -> float:
        """Temperature of the answers in conversation `item`; greedy conversations are evenly spread."""
        share = self.greedy_share
        return 0.0 if floor((item + 1) * share) > floor(item * share) else self.temperature
