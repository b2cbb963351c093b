"""What a model, its cache, a drafter, a rule and a policy must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from forerun.core import Draft, Drawing, Exactness, ForwardOutput, Plan, Sequence, Verdict

if TYPE_CHECKING:
    from forerun.randomness import Randomness

LogitsFor = Literal["all", "last", "none"]


class Cache(Protocol):
    """Keys and values of a batch of rows, each with its own length.

    A forward pass appends its tokens to each row; `keep` and `trim` take back what was rejected.
    Slot and position agree for committed tokens; the nodes of a tree lie in slots in the order of
    the forward pass, whatever their positions.
    """

    @property
    def capacity(self) -> int:
        """Slots a row, in tokens."""

    def length(self, row: int) -> int:
        """Filled slots of `row` in its shortest layer."""

    def view(self, rows: Several[int]) -> Any:
        """The same cache seen as a batch of these rows, to be handed to `CausalLM.forward`."""

    def keep(self, row: int, start: int, slots: Several[int]) -> None:
        """Of the slots from `start` on, keep only `start + slots[i]`, moved to `start + i`."""

    def trim(self, row: int, length: int) -> None:
        """Forget all slots of `row` from `length` on."""


class CausalLM(Protocol):
    """A language model with a cache that can be rolled back."""

    name: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    max_context: int
    device: torch.device
    dtype: torch.dtype
    """Of logits and hidden states."""
    precision: str
    """Of the weights: `fp32`, `bf16`, `int8` and so on."""
    exactness: Exactness

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache of `rows` rows with `capacity` slots each."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: Any,
        tree_mask: Tensor | None = None,
        hidden_layers: Several[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """Run new tokens and append their keys and values to the cache.

        Args:
            token_ids: [B, n], int64.
            positions: [B, n]; -1 marks padding, which stands at the end of a row, is seen by no
                token and is not appended.
            cache: a view of B rows.
            tree_mask: bool [B, n, m], m >= n: which of the row's last m - n slots and of the new
                tokens each token sees; everything before is seen by all. None: causal.
            hidden_layers: layers whose hidden states to return.
            logits_for: which tokens need logits.
            layers: the layers to run (all if None); only their caches grow. Logits are made
                only when the last layer runs.
            hidden_in: [B, n, hidden_size], enters below `layers` instead of the embedding.

        Raises:
            CacheError: when a row's cache is full.
        """


@dataclass(frozen=True)
class DrafterSetup:
    """What a drafter may be built from.

    Args:
        target: the model that it drafts for.
        rows: sequences that run at once.
        capacity: tokens of prompt and output a sequence, drafted ones included.
        options: the speculative options by name.
        load_draft_model: loads the draft model that the options name.
    """

    target: CausalLM
    rows: int
    capacity: int
    options: Mapping[str, Any]
    load_draft_model: Callable[[], CausalLM]


class Drafter(Protocol):
    """Proposes tokens. One file a method; the engine checks what it declares when it is built."""

    name: str
    needs_draft_model: bool
    exactness: Exactness
    drawings: frozenset[Drawing]
    """The ways of drawing that it supports; {TOP} for deterministic drafters."""
    draws_trees: bool
    hidden_layers: tuple[int, ...]
    """Hidden layers of the target that `observe` needs."""
    vocab_size: int | None
    """The vocabulary that it proposes from; None for ids taken from the text itself."""
    rows: int | None
    """Sequences that it can serve at once; None for any number."""

    @classmethod
    def build(cls, setup: DrafterSetup) -> Drafter:
        """Make one for an engine."""

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One draft a sequence, of at most the planned number of tokens along any path."""

    def observe(
        self, sequences: Several[Sequence], verdicts: Several[Verdict], output: ForwardOutput
    ) -> None:
        """See what became of the round; the sequences hold the emitted tokens already."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""


class Verifier(Protocol):
    """A rule that turns a draft and the target's rows into a verdict."""

    name: str
    exactness: Exactness

    def verify(
        self, draft: Draft, target_probs: Tensor, sequence: Sequence, randomness: Randomness
    ) -> Verdict:
        """Verify one draft. Row 0 of `target_probs` [n + 1, V] follows the committed tokens, row
        i + 1 follows node i."""


class Policy(Protocol):
    """Decides from the past alone how far to speculate."""

    name: str

    def plan(self, sequences: Several[Sequence]) -> list[Plan]:
        """One plan a sequence for the coming round."""

    def observe(
        self,
        sequences: Several[Sequence],
        drafts: Several[Draft],
        verdicts: Several[Verdict],
        seconds: float,
    ) -> None:
        """See the round's outcome and the seconds that it took, drafting included."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
