"""What `forerun roofline` is asked for, declared without loading any model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forerun.options import Text, options

LONGEST = 512
MOST_CONTEXT = 1 << 17

_Tokens = Annotated[int, Field(ge=1, le=LONGEST)]
_Context = Annotated[int, Field(ge=0, le=MOST_CONTEXT)]


@options
class Request:
    """What to place below the roof.

    Raises:
        ConfigError: for a number out of range.
    """

    model: Text = Field(description="The target.")
    draft_model: Text | None = Field(default=None, description="Beside it.")
    tokens: tuple[_Tokens, ...] = Field(
        default=(1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64),
        description="Of a forward that checks drafts; 1 is always among them.",
    )
    contexts: tuple[_Context, ...] = Field(
        default=(128, 4096), description="Tokens in the cache before it."
    )
    rounds: int = Field(
        default=5, ge=1, le=10_000, description="Times that everything is measured, in alternation."
    )

    @property
    def counts(self) -> list[int]:
        """The tokens of forwards, rising."""
        return sorted({1, *self.tokens})
