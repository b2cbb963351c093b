"""What a drafter, a rule and a policy must be able to do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from forerun.contracts.models import Cache, CausalLM
from forerun.core import (
    Draft,
    Drawing,
    Exactness,
    ForwardOutput,
    Plan,
    Request,
    RoundTimes,
    Verdict,
)
from forerun.options import pick

if TYPE_CHECKING:
    from forerun.randomness import Randomness
    from forerun.verification.rows import TargetRows

T = TypeVar("T")

Rehearse = Callable[[Sequence[int], int | None], list[RoundTimes]]
"""Runs rounds before the first request, one for each length of a draft, by the drafter or by one of its
members, and returns their times; fewer where it cannot go on."""
FILLER = -1
"""In place of a member: any tokens are drafted, at no cost."""


@dataclass(frozen=True)
class DrafterSetup:
    """What a drafter may be built from.

    Args:
        target: the model that it drafts for.
        rows: requests that run at once.
        capacity: tokens of prompt and output a request, drafted ones included.
        options: those of the method, and of its members, by name; `read` takes them out.
        load_draft_model: loads the draft model that the user named.
        encode: makes token ids of text, without what opens a prompt; None without a tokenizer.
        tokenizer_id: tells the tokenizer from others, by its content; None where that is not known.
        tree_slots: slots a row for the nodes of trees; 0 where only chains are asked for.
        translation: a `drafters.model.retokenizer.Translation`, where the vocabularies differ.
        head: a `heads.files.HeadFiles`, where the user named one.
    """

    target: CausalLM
    rows: int
    capacity: int
    options: Mapping[str, Any]
    load_draft_model: Callable[[], CausalLM]
    encode: Callable[[str], list[int]] | None = None
    tokenizer_id: Callable[[], str | None] = lambda: None
    tree_slots: int = 0
    translation: Any = None
    head: Any = None

    def read(self, kind: type[T]) -> T:
        """The options of a class that a drafter declares by `forerun.options.options`."""
        return pick(kind, self.options)


class Drafter(Protocol):
    """Proposes tokens. One file a method; the engine checks what it declares when it is built."""

    name: str
    needs_draft_model: bool
    head: str | None
    """The kind of trained head that it drafts with, named in place of a draft model; see
    `forerun.heads.HEADS`."""
    optional_head: str | None
    """The same of one that it can do without."""
    exactness: Exactness
    drawings: frozenset[Drawing]
    """The ways of drawing that it supports; {GREEDY} for deterministic drafters."""
    draws_trees: bool
    """Whether it proposes trees that no plan has asked for."""
    takes_trees: bool
    """Whether it grows the trees that plans ask for."""
    reads_predictions: bool
    """Whether it drafts from the predictions that requests bring; see `forerun.core.Hints`."""
    acceptance: tuple[tuple[float, ...], ...] | None
    """How probable it is that the child of each rank of a node that is reached is accepted, by depth and
    rank, where it was measured: the shapes of automatic trees that are drawn follow it."""
    shared_layers: int
    """How many of the target's first layers it runs itself; see `Draft.hidden`."""
    hidden_layers: tuple[int, ...]
    """Hidden layers of the target that `observe` and `observe_prefill` need."""
    vocab_size: int | None
    """The vocabulary that it proposes from; None for ids taken from the text itself."""
    rows: int | None
    """Requests that it can serve at once; None for any number."""
    members: tuple[Drafter, ...]
    """The drafters among which a plan may choose, by their places; empty where it drafts alone."""
    looks_up: bool
    """Whether its tokens are looked up, at hardly any cost, rather than made by a model."""
    origin: str
    """Where its weights are from, as the user named it; set by `forerun.load`. What a policy has learned of
    it is kept by that."""
    options: type[Any]
    """Its own options, a class made by `forerun.options.options`; `NoOptions` if it has none."""

    @classmethod
    def member_methods(cls, options: Any) -> Sequence[str]:
        """The other methods that it drafts with, by its own options; it takes theirs too."""

    @classmethod
    def build(cls, setup: DrafterSetup) -> Drafter:
        """Make one for an engine."""

    def attach(self, cache: Cache) -> None:
        """Receive the target's cache, into which a drafter that runs layers of the target may write
        beyond the committed tokens; such a drafter refuses a second engine's with a ConfigError. The
        engine calls it once, when it is built."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One draft a request, of at most the planned number of tokens along any path."""

    def pending(self, request: Request) -> int:
        """Tokens of a request, about, that it would have to run before it drafts: those of a prompt
        that it has not seen, say."""

    def cost_share(self, request: Request) -> float | None:
        """What a drafted token reads, in plain rounds of the request's present length: for drafters whose
        gain depends on the context. None where only measurements can tell."""

    def confidence(self, request: Request) -> float:
        """The share of its next draft that it expects to be accepted, in [0, 1], estimated from the
        committed tokens alone, before anything is drawn."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Learn from a round, drafted or plain; the requests hold the emitted tokens already.

        Row 0 of `output` belongs to the newest token before the round, row i + 1 to node i. A
        request that failed in the round has emitted nothing.
        """

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """Learn from the hidden layers that it declared, of prompt tokens from `start` on:
        `output.hidden` [1, n, hidden_size]. Tokens that the cache still held from an earlier request
        in the same row are not run again; their states are those that were seen then."""

    def release(self, request: Request) -> None:
        """Forget a request that has ended; it may be called twice. What a cache of the drafter holds
        of its tokens may stay, for later texts in the same row that begin alike."""

    def clear_row(self, row: int) -> None:
        """Forget what caches of the drafter hold in a row, of which no request runs any more: called
        where the engine keeps none of its tokens for later requests."""


class Verifier(Protocol):
    """A rule that turns drafts and the target's rows into verdicts."""

    name: str
    exactness: Exactness

    def verify(
        self,
        drafts: Sequence[Draft],
        rows: TargetRows,
        requests: Sequence[Request],
        randomness: Randomness,
    ) -> list[Verdict]:
        """Verify the drafts of a round, one a request.

        `rows` makes probabilities of the target's logits where they are asked for; row 0 of a request
        follows its committed tokens, row i + 1 follows node i. What goes wrong in the row after a node
        where a path ends is that request's own: `Verdict.up_to` emits what stands before it.
        """


class Policy(Protocol):
    """Decides from the past alone how far to speculate. A subclass is its `plan`: unless it says
    otherwise, it needs to know nothing of an engine, learns nothing and reports nothing."""

    name: str

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        """Receive what it plans for; the engine calls it once, when it is built."""
        return

    @abstractmethod
    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """One plan a request for the coming round."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        """Learn from the round's outcome and the seconds that it took."""
        return

    def release(self, request: Request) -> None:
        """Forget a request that has ended."""
        return

    def rehearse(self, run: Rehearse) -> None:
        """Warm up or time what it plans for; the engine calls it once, after `attach`."""
        return

    def forget(self) -> None:
        """Begin anew, as on a machine where nothing was learned; measured times of the target stay."""
        return

    def close(self) -> None:
        """Keep on disk what was learned, where the policy keeps anything."""
        return

    def report(self) -> dict[str, Any] | None:
        """What it has decided and what came of it, ready for JSON; None where it decides nothing."""
        return None

    def in_words(self) -> str | None:
        """The same as one line."""
        return None

    def given_up(self) -> list[str]:
        """A sentence on each drafter that it gave up: what it was tried on, what it cost, what insists."""
        return []
