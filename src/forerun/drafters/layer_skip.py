"""Self-speculation: the target drafts with some of its own layers, and verifies with the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from forerun.contracts import Cache, CausalLM, DrafterSetup
from forerun.core import Batch, Draft, Drawing, Plan, Request, Tree
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError
from forerun.options import Text, options

# What needs torch is imported where it is used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.drafters.exits.exit_adapter import ExitAdapter
    from forerun.randomness import Randomness

# Where the zoo's adapters accept most for what they cost.
ZOO_EXIT = 1


@dataclass(frozen=True)
class Route:
    """The way of a drafted token through the target.

    Args:
        shared: the layers before the first skipped one; verification goes on from their output.
        rest: further layers that draft. They read what skipping left of a hidden state, so
            verification runs them anew.
        num_layers: of the target.
    """

    shared: range
    rest: tuple[range, ...]
    num_layers: int

    @classmethod
    def around(cls, skip_layers: Collection[int], num_layers: int) -> Route:
        """The route that leaves out some layers.

        Raises:
            ConfigError: for layers that the target does not have, all of them, none, or the first.
        """
        skipped = set(skip_layers)
        if not skipped or not skipped < set(range(num_layers)) or 0 in skipped:
            raise ConfigError(
                f"layers {sorted(skipped)} cannot be skipped in a target of {num_layers} layers; "
                f"give one or more from 1 to {num_layers - 1}: layer 0 always drafts."
            )
        ranges: list[range] = []
        for layer in range(num_layers):
            if layer in skipped:
                continue
            if ranges and ranges[-1].stop == layer:
                ranges[-1] = range(ranges[-1].start, layer + 1)
            else:
                ranges.append(range(layer, layer + 1))
        return cls(ranges[0], tuple(ranges[1:]), num_layers)

    @property
    def is_early_exit(self) -> bool:
        return not self.rest


@dataclass
class _Chain:
    """A draft in the making: the next token to run is the newest one."""

    request: Request
    plan: Plan
    room: int
    token_ids: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    ended: bool = False

    @property
    def grows(self) -> bool:
        return not self.ended and len(self.token_ids) < self.room

    @property
    def newest(self) -> int:
        return self.token_ids[-1] if self.token_ids else self.request.token_ids[-1]

    def finish(self) -> Draft:
        import torch

        drawn = self.plan.drawing is Drawing.SAMPLED and self.rows
        parents = tuple(range(-1, len(self.token_ids) - 1))
        probs = torch.stack(self.rows) if drawn else None
        return Draft(Tree(parents), tuple(self.token_ids), probs, torch.stack(self.states))


@options
class LayerSkipOptions:
    """Which layers of the target draft; by default the first quarter."""

    exit_layer: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="How many of the target's first layers draft; the rest is skipped.",
    )
    skip_layers: tuple[Annotated[int, Field(ge=0, le=2**31)], ...] | None = Field(
        default=None, description="Or the layers that drafting leaves out, e.g. 3,4,6."
    )
    exit_adapter: Text | None = Field(
        default=None, description="A file that helps the target's head to read an early exit."
    )

    def __post_init__(self) -> None:
        if self.exit_layer is not None and self.skip_layers is not None:
            raise ConfigError(
                "exit_layer and skip_layers both say which layers draft; give one of them."
            )


class LayerSkipDrafter(BaseDrafter):
    """Drafts chains with the target's own layers, less some that are skipped.

    The layers before the first skipped one are run once for every token: their keys and values stay in
    the target's cache and verification goes on from their output (`Draft.hidden`). Skipping all layers
    from one on is an early exit (LayerSkip, arXiv 2404.16710); skipping some in the middle is Draft &
    Verify (arXiv 2309.08168), whose later layers write keys of their own while drafting, which are
    forgotten before verification.

    Args:
        target: the model that drafts for itself; its layers must run apart.
        skip_layers: the layers that drafting leaves out, never the first.
        adapter: what stands between the exit and the target's head; None for the plain head.

    Raises:
        ConfigError: for layers that cannot be skipped, or an adapter of another exit.
        IncompatibleDraftError: for an adapter that does not fit the target.
        UnsupportedModelError: for a target whose layers cannot run apart.
    """

    name = "layer_skip"
    drawings = frozenset(Drawing)
    options = LayerSkipOptions

    def __init__(
        self,
        target: CausalLM,
        skip_layers: Collection[int],
        adapter: ExitAdapter | None = None,
    ) -> None:
        self.target = target
        self.route = Route.around(skip_layers, target.num_layers)
        self.shared_layers = self.route.shared.stop
        self.vocab_size: int | None = target.vocab_size
        self.adapter = None if adapter is None else adapter.module(target)
        if adapter is not None and not self._exits_at(adapter.exit_layer):
            raise ConfigError(
                f"the exit adapter belongs after layer {adapter.exit_layer} and cannot be used "
                f"when layers {sorted(skip_layers)} are skipped; give that exit_layer, or no adapter."
            )
        self._cache: Cache | None = None
        _probe(target)

    @classmethod
    def build(cls, setup: DrafterSetup) -> LayerSkipDrafter:
        target = setup.target
        skip_layers, adapter = _chosen(setup.read(LayerSkipOptions), target)
        return cls(target, skip_layers, adapter)

    def attach(self, cache: Cache) -> None:
        self._cache = cache

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One chain a request, with the hidden states of all that was run, also where none is planned.

        However it ends, the layers after the shared ones hold no more than what is committed.
        """
        assert self._cache is not None, "attach comes first"
        chains = [
            _Chain(request, plan, min(plan.num_tokens, self._cache.capacity - len(request)))
            for request, plan in zip(requests, plans, strict=True)
        ]
        try:
            # Its last token is run through the shared layers too, for the verification.
            running = chains
            while running:
                hidden = self._run_shared(running)
                places = [place for place, chain in enumerate(running) if chain.grows]
                if len(places) < len(running):
                    running, hidden = [running[place] for place in places], hidden[places]
                if running:
                    running = _draw(running, self._finish(running, hidden), randomness)
        finally:
            self._forget(requests)
        return [chain.finish() for chain in chains]

    def _exits_at(self, layer: int) -> bool:
        return self.route.is_early_exit and self.shared_layers == layer

    def _run_shared(self, chains: list[_Chain]) -> Tensor:
        """Run the newest tokens through the shared layers; their output [B, 1, hidden_size]."""
        hidden, _ = self._run(chains, self.route.shared, None)
        for place, chain in enumerate(chains):
            chain.states.append(hidden[place, 0])
        return hidden

    def _finish(self, chains: list[_Chain], hidden: Tensor) -> Tensor:
        """Go on from the shared layers' output [B, 1, hidden_size]; logits [B, V]."""
        logits: Tensor | None = None
        for layers in self.route.rest:
            hidden, logits = self._run(chains, layers, hidden)
        if logits is None:
            states = hidden if self.adapter is None else self.adapter(hidden)
            logits = self.target.lm_head(self.target.final_norm(states))
        return logits[:, 0]

    def _run(
        self, chains: list[_Chain], layers: range, hidden_in: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Append the newest tokens to some layers: their output, and logits after the last layer."""
        assert self._cache is not None
        batch = Batch.after(
            self._cache,
            [chain.request.row for chain in chains],
            [[chain.newest] for chain in chains],
            layers=layers,
            hidden_in=hidden_in,
            hidden_layers=(layers.stop,),
        )
        output = self.target.forward(batch, self._cache)
        return output.hidden[layers.stop], output.logits

    def _forget(self, requests: Sequence[Request]) -> None:
        """Give up what the layers after the shared ones have written."""
        if self._cache is None or not self.route.rest:
            return
        later = range(self.shared_layers, self.target.num_layers)
        for request in requests:
            self._cache.trim(request.row, len(request) - 1, later)


def _draw(chains: list[_Chain], logits: Tensor, randomness: Randomness) -> list[_Chain]:
    """Draw the next token of each chain; returns the chains that have got one."""
    from forerun.sampling import Prefix, draw_draft

    tokens, probs = draw_draft(
        logits,
        [Prefix(chain.request, tuple(chain.token_ids)) for chain in chains],
        [chain.plan.drawing for chain in chains],
        [len(chain.token_ids) for chain in chains],
        randomness,
    )
    longer = []
    for chain, token, row in zip(chains, tokens, probs, strict=True):
        # Nothing comes after a stop token, nor where a mask lets nothing follow.
        chain.ended = token is None or token in chain.request.stop_token_ids
        if token is None:
            continue
        chain.token_ids.append(token)
        longer.append(chain)
        if chain.plan.drawing is Drawing.SAMPLED:
            chain.rows.append(row)
    return longer


def exit_at(layer: int, num_layers: int) -> range:
    """The layers that an exit after `layer` layers skips.

    Raises:
        ConfigError: for an exit that is not inside the target.
    """
    if num_layers < 2:
        raise ConfigError(
            "the target has a single layer, which cannot be left out; use another method."
        )
    if not 1 <= layer < num_layers:
        raise ConfigError(
            f"exit_layer is {layer} and the target has {num_layers} layers; "
            f"give 1 to {num_layers - 1}."
        )
    return range(layer, num_layers)


def zoo_adapter(exit_layer: int) -> Path:
    """Where the zoo's adapter of an exit lies, if it has one."""
    from forerun.models.zoo import zoo_path

    return zoo_path().parent / "exit_adapter" / f"exit-{exit_layer}.safetensors"


def _chosen(own: LayerSkipOptions, target: CausalLM) -> tuple[Collection[int], ExitAdapter | None]:
    """The layers to skip and the adapter that the options name.

    Raises:
        CheckpointError: for an adapter that cannot be read.
    """
    from forerun.drafters.exits.exit_adapter import ExitAdapter

    adapter = None if own.exit_adapter is None else ExitAdapter.load(own.exit_adapter)
    if own.skip_layers is not None:
        return own.skip_layers, adapter
    exit_layer = own.exit_layer
    if exit_layer is None:
        # A quarter of the layers, unless an adapter was trained for another exit.
        early = ZOO_EXIT if target.name == "zoo" else max(1, target.num_layers // 4)
        if adapter is not None:
            adapter.check(target)
        exit_layer = early if adapter is None else adapter.exit_layer
    skipped = exit_at(exit_layer, target.num_layers)
    if adapter is None and target.name == "zoo" and zoo_adapter(exit_layer).is_file():
        adapter = ExitAdapter.load(zoo_adapter(exit_layer))
    return skipped, adapter


def _probe(target: CausalLM) -> None:
    """Run one token through one layer and the head, so that a target that cannot is refused now.

    Raises:
        ForerunError: the target's own, saying what it lacks.
    """
    cache = target.new_cache(1, 1)
    batch = Batch.after(cache, [0], [[0]], layers=range(1), hidden_layers=(1,))
    hidden = target.forward(batch, cache).hidden[1]
    target.lm_head(target.final_norm(hidden))
