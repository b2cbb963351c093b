"""Self-speculation: the target drafts with some of its own layers, and verifies with the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import Cache, CausalLM, DrafterSetup
from forerun.core import Draft, Drawing, Plan, Sequence
from forerun.drafters.base import BaseDrafter
from forerun.drafters.exit_adapter import ExitAdapter
from forerun.errors import ConfigError
from forerun.models.running import run_rows
from forerun.models.zoo import zoo_path
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_draft

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

    sequence: Sequence
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
        return self.token_ids[-1] if self.token_ids else self.sequence.token_ids[-1]

    @property
    def position(self) -> int:
        return len(self.sequence) - 1 + len(self.token_ids)

    def finish(self) -> Draft:
        drawn = self.plan.drawing is Drawing.DRAW and self.rows
        parents = tuple(range(-1, len(self.token_ids) - 1))
        probs = torch.stack(self.rows) if drawn else None
        return Draft(tuple(self.token_ids), parents, probs, torch.stack(self.states))


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
    options = frozenset({"exit_layer", "skip_layers", "exit_adapter", "draft_sample_method"})

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
        self.adapter = None if adapter is None else adapter.reader(target)
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
        skip_layers, adapter = _chosen(setup.options, target)
        return cls(target, skip_layers, adapter)

    def attach(self, cache: Cache) -> None:
        self._cache = cache

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One chain a sequence, with the hidden states of all that was run, also where none is planned.

        However it ends, the layers after the shared ones hold no more than what is committed.
        """
        assert self._cache is not None, "attach comes first"
        chains = [
            _Chain(sequence, plan, min(plan.num_tokens, self._cache.capacity - len(sequence)))
            for sequence, plan in zip(sequences, plans, strict=True)
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
            self._forget(sequences)
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
            logits = self.target.head(hidden if self.adapter is None else self.adapter(hidden))
        return logits[:, 0]

    def _run(
        self, chains: list[_Chain], layers: range, hidden_in: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Append the newest tokens to some layers: their output, and logits after the last layer."""
        assert self._cache is not None
        output = run_rows(
            self.target,
            self._cache,
            [chain.sequence.row for chain in chains],
            [[chain.newest] for chain in chains],
            positions=[[chain.position] for chain in chains],
            hidden_layers=(layers.stop,),
            layers=layers,
            hidden_in=hidden_in,
        )
        return output.hidden[layers.stop], output.logits

    def _forget(self, sequences: Several[Sequence]) -> None:
        """Give up what the layers after the shared ones have written."""
        if self._cache is None or not self.route.rest:
            return
        later = range(self.shared_layers, self.target.num_layers)
        for sequence in sequences:
            self._cache.trim(sequence.row, len(sequence) - 1, later)


def _draw(chains: list[_Chain], logits: Tensor, randomness: Randomness) -> list[_Chain]:
    """Draw the next token of each chain; those that have got one."""
    tokens, probs = draw_draft(
        logits,
        [Prefix(chain.sequence, tuple(chain.token_ids)) for chain in chains],
        [chain.plan.drawing for chain in chains],
        [len(chain.token_ids) for chain in chains],
        randomness,
    )
    longer = []
    for chain, token, row in zip(chains, tokens, probs, strict=True):
        # Nothing comes after a stop token, nor where a mask lets nothing follow.
        chain.ended = token is None or token in chain.sequence.stop_token_ids
        if token is None:
            continue
        chain.token_ids.append(token)
        longer.append(chain)
        if chain.plan.drawing is Drawing.DRAW:
            chain.rows.append(row)
    return longer


def exit_at(layer: int, num_layers: int) -> range:
    """The layers that an exit after `layer` layers skips.

    Raises:
        ConfigError: for an exit that is not inside the target.
    """
    if num_layers < 2:
        raise ConfigError("the target has one layer, of which none can be left out.")
    if not 1 <= layer < num_layers:
        raise ConfigError(
            f"exit_layer is {layer} and the target has {num_layers} layers; "
            f"give 1 to {num_layers - 1}."
        )
    return range(layer, num_layers)


def zoo_adapter(exit_layer: int) -> Path:
    """Where the zoo's adapter of an exit lies, if it has one."""
    return zoo_path().parent / "exit_adapter" / f"exit-{exit_layer}.safetensors"


def _chosen(
    options: Mapping[str, Any], target: CausalLM
) -> tuple[Collection[int], ExitAdapter | None]:
    """The layers to skip and the adapter that the options name.

    Raises:
        ConfigError: for options that exclude each other.
        CheckpointError: for an adapter that cannot be read.
    """
    exit_layer, skip_layers = options.get("exit_layer"), options.get("skip_layers")
    path = options.get("exit_adapter")
    if skip_layers is not None:
        if exit_layer is not None:
            raise ConfigError(
                "exit_layer and skip_layers both say which layers draft; give one of them."
            )
        return tuple(skip_layers), None if path is None else ExitAdapter.load(path)
    adapter = None if path is None else ExitAdapter.load(path)
    if exit_layer is None:
        # A quarter of the layers, unless an adapter was trained for another exit.
        early = ZOO_EXIT if target.name == "zoo" else max(1, target.num_layers // 4)
        exit_layer = early if adapter is None else adapter.fit(target).exit_layer
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
    first = range(1)
    output = run_rows(target, cache, [0], [[0]], positions=[[0]], hidden_layers=(1,), layers=first)
    target.head(output.hidden[1])
