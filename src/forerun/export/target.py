"""Facts about a head's target that a check needs, read from its config and tokenizer alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.engine.chat import ChatTemplate
from forerun.errors import ForerunError
from forerun.models import Checkpoint


@dataclass(frozen=True)
class Target:
    """Sizes and conventions of a target.

    Attributes:
        rope: rotary embedding in transformers' format; empty for a model without one.
        template_hash: SHA-256 of the chat template; None without one.
        end_tokens: tokens that end a text.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context: int
    rope: Mapping[str, Any] = field(default_factory=dict)
    template_hash: str | None = None
    end_tokens: frozenset[int] = frozenset()

    @property
    def default_layers(self) -> tuple[int, int, int]:
        """Hidden layers that EAGLE-3 uses if a config names none."""
        return (2, self.num_layers // 2, self.num_layers - 3)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Target:
        """The facts about the target in a checkpoint."""
        summary, config = checkpoint.summary, checkpoint.config
        rope = getattr(config, "rope_parameters", None)
        return cls(
            name=checkpoint.name,
            vocab_size=summary.vocab_size,
            hidden_size=summary.hidden_size,
            num_layers=summary.num_layers,
            max_context=summary.max_context,
            rope=dict(rope) if isinstance(rope, Mapping) else {},
            template_hash=_template_hash(checkpoint),
            end_tokens=checkpoint.eos_token_ids,
        )


def _template_hash(checkpoint: Checkpoint) -> str | None:
    try:
        template = ChatTemplate.of(checkpoint.tokenizer)
    except ForerunError:  # A target without a tokenizer has no template either.
        return None
    return None if template is None else hash_of(template.source)


def hash_of(template: str) -> str:
    """SHA-256 by which forerun.json identifies a chat template."""
    return hashlib.sha256(template.encode("utf-8")).hexdigest()
