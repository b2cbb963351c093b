"""Self-speculation on a quantized cache: the target drafts from the upper half of each number."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import View
from forerun.drafters.own_view import DRAFT_VOCAB_SIZE, DraftVocabSize, OwnViewDrafter
from forerun.options import options

WHOLE = View(sinks=0, window=2**31, coarse=True)


@options
class SelfQuantizedOptions:
    """How the target reads its int8 cache while it drafts, and in which layers."""

    quantized_sinks: int = Field(
        default=0,
        ge=0,
        le=2**31,
        description="First tokens of the text that the target reads while it drafts, beside a window.",
    )
    quantized_window: int = Field(
        default=WHOLE.window,
        ge=1,
        le=2**31,
        description="Most recent tokens that it reads; all by default.",
    )
    quantized_vocab: DraftVocabSize = DRAFT_VOCAB_SIZE
    quantized_skip_layers: tuple[Annotated[int, Field(ge=0, le=2**31)], ...] = Field(
        default=(),
        description="Layers that drafting leaves out besides, e.g. 8,9,12; never layer 0.",
    )


class SelfQuantizedDrafter(OwnViewDrafter):
    """Drafts with the target, which reads the upper nibbles of its int8 cache; verification reads both
    (QuantSpec, arXiv 2502.10424). One cache serves both, so the target's keys and values must be in int8.
    """

    name = "self_quantized"
    options = SelfQuantizedOptions

    @classmethod
    def build(cls, setup: DrafterSetup) -> SelfQuantizedDrafter:
        own = setup.read(SelfQuantizedOptions)
        view = View(own.quantized_sinks, own.quantized_window, coarse=True)
        return cls(setup.target, view, own.quantized_skip_layers, own.quantized_vocab)
