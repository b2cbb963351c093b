"""Contracts of drafters, verification rules and policies."""

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
    from forerun.verification.target_rows import TargetRows

T = TypeVar("T")

Rehearse = Callable[[Sequence[int], int | None], list[RoundTimes]]
"""Runs rounds before the first request, one for each draft length, and returns their times.

The drafts come from the drafter or from one of its members. Fewer times are returned if it cannot
go on.
"""
FILLER = -1
"""Used in place of a member: arbitrary tokens are drafted, at no cost."""


@dataclass(frozen=True)
class DrafterSetup:
    """The parts that a drafter can be built from.

    Args:
        target: the model to draft for.
        rows: number of requests that run at once.
        capacity: tokens per request: prompt and output, drafted tokens included.
        options: options of the method and of its members, by name; `read` picks those of a class.
        load_draft_model: loads the draft model that the user named.
        encode: turns text into token ids, without the tokens that open a prompt; None without a
            tokenizer.
        tree_slots: slots per row for the nodes of trees; 0 if only chains are drafted.
        translation: a `drafters.translation.Translation` if the vocabularies differ.
        head: a `heads.files.HeadFiles` if the user named a head.
    """

    target: CausalLM
    rows: int
    capacity: int
    options: Mapping[str, Any]
    load_draft_model: Callable[[], CausalLM]
    encode: Callable[[str], list[int]] | None = None
    tree_slots: int = 0
    translation: Any = None
    head: Any = None

    def read(self, kind: type[T]) -> T:
        """The options of a class that a drafter declares with `forerun.options.options`."""
        return pick(kind, self.options)


class Drafter(Protocol):
    """Proposes tokens. One file per method; the engine checks the declarations once, when it is built."""

    name: str
    needs_draft_model: bool
    head: str | None
    """Kind of trained head that is named in place of a draft model; see `forerun.heads.HEADS`."""
    exactness: Exactness
    drawings: frozenset[Drawing]
    """The ways of drawing that the drafter supports; {GREEDY} for deterministic drafters."""
    draws_trees: bool
    """True if the drafter proposes trees that no plan has asked for."""
    takes_trees: bool
    """True if the drafter grows the trees that plans ask for."""
    reads_predictions: bool
    """True if the drafter reads the predictions that come with requests; see `forerun.core.Hints`."""
    acceptance: tuple[tuple[float, ...], ...] | None
    """Measured acceptance of the child of each rank of a reached node, by depth and rank.

    The shapes of automatic sampled trees follow it. None if it was not measured.
    """
    shared_layers: int
    """Number of the target's first layers that the drafter runs itself; see `Draft.hidden`."""
    hidden_layers: tuple[int, ...]
    """The target's hidden layers that `observe` and `observe_prefill` need."""
    vocab_size: int | None
    """Size of the vocabulary of proposed tokens; None for ids taken from the text itself."""
    rows: int | None
    """Number of requests that the drafter can serve at once; None for any number."""
    members: tuple[Drafter, ...]
    """The drafters that a plan may choose from, by index; empty for a single drafter."""
    looks_up: bool
    """True if tokens are looked up, at hardly any cost, and not computed by a model."""
    origin: str
    """The source of the drafter's weights as the user named it; set by `forerun.load`.

    A policy keeps what it has learned about the drafter under this name.
    """
    options: type[Any]
    """The drafter's own options, a class made by `forerun.options.options`, or `NoOptions`."""

    @classmethod
    def member_methods(cls, options: Any) -> Sequence[str]:
        """The other methods that the drafter uses with these options; their options apply to it too."""

    @classmethod
    def build(cls, setup: DrafterSetup) -> Drafter:
        """Make a drafter for an engine."""

    def attach(self, cache: Cache) -> None:
        """Receive the target's cache; called once, when the engine is built.

        A drafter that runs layers of the target may write into the cache beyond the committed
        tokens. Such a drafter refuses the cache of a second engine with a ConfigError.
        """

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """Propose one draft per request, with at most the planned number of tokens along any path."""

    def pending(self, request: Request) -> int:
        """Approximate number of a request's tokens, such as an unseen prompt, to run before drafting."""

    def cost_share(self, request: Request) -> float | None:
        """Cost of one drafted token, in plain rounds at the request's present length.

        For drafters whose gain depends on the context. None if only measurements can tell.
        """

    def confidence(self, request: Request) -> float:
        """Expected share of the next draft that will be accepted, in [0, 1].

        It is estimated from the committed tokens alone, before anything is drawn.
        """

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        """Learn from a round, drafted or plain; the requests already hold the emitted tokens.

        Row 0 of `output` belongs to the newest token before the round, row i + 1 to node i. A
        request that failed in the round has emitted nothing.
        """

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """Learn from the declared hidden layers of prompt tokens from `start` on.

        `output.hidden` is [1, n, hidden_size]. Tokens that the cache still held from an earlier
        request in the same row are not run again; their states were seen at that time.
        """

    def release(self, request: Request) -> None:
        """Forget a request that has ended; may be called twice.

        The drafter's own cache may keep the request's tokens for later texts in the same row with
        the same prefix.
        """

    def clear_row(self, row: int) -> None:
        """Forget the cached tokens of a row in which no request runs any more.

        Called when the engine keeps none of the row's tokens for later requests.
        """


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
        """Verify the drafts of a round, one per request.

        `rows` turns the target's logits into probabilities on demand; row 0 of a request follows
        its committed tokens, row i + 1 follows node i. An error in the row after the node at which
        a path ends concerns that request alone: `Verdict.up_to` emits the tokens before it.
        """


class Policy(Protocol):
    """Decides from the past alone how far to speculate.

    A subclass only has to define `plan`: by default a policy needs no engine, learns nothing and
    reports nothing.
    """

    name: str

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        """Receive the target and the drafter to plan for; called once, when the engine is built."""
        return

    @abstractmethod
    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """Return one plan per request for the coming round."""

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        """Learn from the round's outcome and its time."""
        return

    def release(self, request: Request) -> None:
        """Forget a request that has ended."""
        return

    def rehearse(self, run: Rehearse) -> None:
        """Warm up or time the drafts to plan for; the engine calls this once, after `attach`."""
        return

    def forget(self) -> None:
        """Start afresh, as on a machine where nothing was learned; measured times of the target stay."""
        return

    def close(self) -> None:
        """Save to disk what was learned, if the policy keeps anything."""
        return

    def report(self) -> dict[str, Any] | None:
        """Results of each choice by name, as `ChoiceResults` counts them, ready for JSON; None if the policy
        decides nothing."""
        return None

    def given_up(self) -> list[str]:
        """One sentence on each drafter that was given up: its results, its cost, how to insist on it."""
        return []
