"""Self-speculation at long contexts: the target drafts from a part of its own cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import View
from forerun.drafters.own_view import DRAFT_VOCAB_SIZE, DraftVocabSize, OwnViewDrafter
from forerun.options import options

USUAL_VIEW = View(sinks=4, window=512, blocks=8)


@options
class SelfSparseOptions:
    """What of its cache the target reads while it drafts, and in which layers."""

    sparse_sinks: int = Field(
        default=USUAL_VIEW.sinks,
        ge=0,
        le=2**31,
        description="First tokens of the text that the target reads while it drafts.",
    )
    sparse_window: int = Field(
        default=USUAL_VIEW.window,
        ge=1,
        le=2**31,
        description="And the most recent ones; verification reads all.",
    )
    sparse_blocks: int = Field(
        default=USUAL_VIEW.blocks,
        ge=0,
        le=2**25,
        description="Blocks of 64 tokens between that each layer and key head reads besides, those whose "
        "mean key has the largest product with the queries.",
    )
    sparse_vocab: DraftVocabSize = DRAFT_VOCAB_SIZE
    sparse_skip_layers: tuple[Annotated[int, Field(ge=0, le=2**31)], ...] = Field(
        default=(),
        description="Layers that drafting leaves out besides, e.g. 8,9,12; never layer 0.",
    )


class SelfSparseDrafter(OwnViewDrafter):
    """Drafts with the target, which reads only the first and the newest keys and the best blocks between.

    The view of sinks and a window is StreamingLLM's (arXiv 2309.17453), as a draft MagicDec's (arXiv
    2408.11049), here without a cache of its own; blocks are chosen as in MoBA (arXiv 2502.13189).
    """

    name = "self_sparse"
    options = SelfSparseOptions

    def __init__(
        self,
        target: CausalLM,
        view: View = USUAL_VIEW,
        skip_layers: Collection[int] = (),
        draft_vocab_size: int = DRAFT_VOCAB_SIZE,
    ) -> None:
        super().__init__(target, view, skip_layers, draft_vocab_size)

    @classmethod
    def build(cls, setup: DrafterSetup) -> SelfSparseDrafter:
        own = setup.read(SelfSparseOptions)
        view = View(own.sparse_sinks, own.sparse_window, blocks=own.sparse_blocks)
        return cls(setup.target, view, own.sparse_skip_layers, own.sparse_vocab)
