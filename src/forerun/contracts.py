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

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget all slots of `row` from `length` on, in `layers` alone unless None.

        Raises:
            CacheError: for layers, where all have one length.
        """


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
                tokens each token sees; everything before is seen by all. Columns before a row's
                first slot mean nothing. None: causal.
            hidden_layers: layers whose hidden states to return.
            logits_for: which tokens need logits.
            layers: the layers to run (all if None); only their caches grow. Logits are made
                only when the last layer runs.
            hidden_in: [B, n, hidden_size], enters below `layers` instead of the embedding.

        Raises:
            CacheError: when a row's cache is full.
        """

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] that the final norm and the output head make of hidden states [B, n, hidden_size]
        after any layer; after the last one they are those of `forward`.

        Raises:
            ConfigError: where the model has no head that runs alone.
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
        encode: makes token ids of text, without what opens a prompt; None without a tokenizer.
        translation: between the target's vocabulary and the draft model's, where they differ; see
            `forerun.drafters.retokenizer.Translation`.
    """

    target: CausalLM
    rows: int
    capacity: int
    options: Mapping[str, Any]
    load_draft_model: Callable[[], CausalLM]
    encode: Callable[[str], list[int]] | None = None
    translation: Any = None


class Drafter(Protocol):
    """Proposes tokens. One file a method; the engine checks what it declares when it is built."""

    name: str
    needs_draft_model: bool
    exactness: Exactness
    drawings: frozenset[Drawing]
    """The ways of drawing that it supports; {TOP} for deterministic drafters."""
    draws_trees: bool
    """Whether it proposes trees that no plan has asked for."""
    takes_trees: bool
    """Whether it grows the trees that plans ask for."""
    reads_predictions: bool
    """Whether it drafts from the predictions that requests bring; see `forerun.core.Hints`."""
    shared_layers: int
    """How many of the target's first layers it runs itself; see `Draft.hidden`."""
    hidden_layers: tuple[int, ...]
    """Hidden layers of the target that `observe` needs."""
    vocab_size: int | None
    """The vocabulary that it proposes from; None for ids taken from the text itself."""
    rows: int | None
    """Sequences that it can serve at once; None for any number."""
    options: frozenset[str]
    """The speculative options that it reads, of those that not all methods do."""

    @classmethod
    def build(cls, setup: DrafterSetup) -> Drafter:
        """Make one for an engine."""

    def attach(self, cache: Cache) -> None:
        """Get to know the target's cache, into which a drafter that runs layers of the target may
        write beyond the committed tokens. The engine calls it once, when it is built."""

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One draft a sequence, of at most the planned number of tokens along any path."""

    def confidence(self, sequence: Sequence) -> float:
        """The share of its next draft that it expects to be accepted, in [0, 1], judged before
        anything is drawn, by the committed tokens alone."""

    def observe(
        self,
        sequences: Several[Sequence],
        drafts: Several[Draft],
        verdicts: Several[Verdict],
        output: ForwardOutput,
    ) -> None:
        """See what became of a round, drafted or plain; the sequences hold the emitted tokens already.

        Row 0 of `output` belongs to the newest token before the round, row i + 1 to node i. A
        sequence that failed in the round has emitted nothing.
        """

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
