"""Self-speculation: the target drafts with some of its own layers, and verifies with the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Draft, Plan, Request
from forerun.drafters.own_layers import (
    OwnLayersDrafter,
    check_runs_apart,
    drafting_layers,
    no_such_layers,
)
from forerun.errors import ConfigError
from forerun.options import Text, options

# What needs torch is imported where it is used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.drafters.exits.exit_adapter import ExitAdapter
    from forerun.drafters.exits.exit_layer import ExitLayer
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth

# Where the zoo's adapters accept most for what they cost.
ZOO_EXIT = 1


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


class LayerSkipDrafter(OwnLayersDrafter):
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
        layer: or a trained decoder layer that reads the exit's states of the whole text.

    Raises:
        ConfigError: for layers that cannot be skipped, what was trained for another exit, or two of it.
        IncompatibleDraftError: for an adapter that does not fit the target.
        UnsupportedModelError: for a target whose layers cannot run apart.
    """

    name = "layer_skip"
    optional_head: str | None = "layer_skip"
    options = LayerSkipOptions

    def __init__(
        self,
        target: CausalLM,
        skip_layers: Collection[int],
        adapter: ExitAdapter | None = None,
        layer: ExitLayer | None = None,
    ) -> None:
        super().__init__(target)
        if not skip_layers:
            raise no_such_layers(skip_layers, target.num_layers)
        shared, *self._rest = drafting_layers(skip_layers, target.num_layers)
        self.shared_layers = shared.stop
        trained = [part.exit_layer for part in (adapter, layer) if part is not None]
        if len(trained) > 1:
            raise ConfigError(
                "an exit_adapter and a head would both read the exit; give one of them."
            )
        if trained and (self._rest or [shared.stop] != trained):
            raise ConfigError(
                f"the exit adapter belongs after layer {trained[0]} and cannot be used "
                f"when layers {sorted(skip_layers)} are skipped; give that exit_layer, or no adapter."
            )
        self.adapter = None if adapter is None else adapter.module(target)
        self.layer = layer
        if layer is not None:
            self.hidden_layers, self.rows = (self.shared_layers,), layer.rows
            self.features = layer.features
        check_runs_apart(target)

    @classmethod
    def build(cls, setup: DrafterSetup) -> LayerSkipDrafter:
        layer = _trained_layer(setup)
        trained_for = None if layer is None else layer.exit_layer
        skip_layers, adapter = _chosen(setup.read(LayerSkipOptions), setup.target, trained_for)
        return cls(setup.target, skip_layers, adapter, layer)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """One chain a request, with the hidden states of all tokens run; the newest committed token is
        run even where no draft is planned.

        However it ends, the layers after the shared ones hold no more than what is committed.
        """
        import torch

        from forerun.trees.growth import grow, start

        running = []
        for request, plan in zip(requests, plans, strict=True):
            room = min(plan.num_tokens, self._cache.capacity - len(request))
            if room > 0 and self.layer is not None:
                room = min(room, self.layer.longest(request))
            running.append(start(request, replace(plan, num_tokens=room)))
        growths = running
        vocabulary = None if self.layer is None else self.layer.vocabulary
        # By row, the shared layers' output for all tokens run.
        states: dict[int, list[Tensor]] = {request.row: [] for request in requests}
        try:
            while running:
                hidden, _ = self._run(running, _newest(running), range(self.shared_layers), None)
                for growth, state in zip(running, hidden, strict=True):
                    states[growth.request.row].append(state)
                # The last drafted token goes through the shared layers alone, for the verification.
                growing = [index for index, growth in enumerate(running) if growth.frontier]
                if len(growing) < len(running):
                    running, hidden = [running[index] for index in growing], hidden[growing]
                if running:
                    grow(running, self._finish(running, hidden), randomness, vocabulary)
                running = [g for g in running if len(g.token_ids) == len(states[g.request.row])]
        finally:
            # What the later layers have written while drafting.
            if self._rest:
                later = range(self.shared_layers, self.target.num_layers)
                for request in requests:
                    self._cache.trim(request.row, len(request) - 1, later)
        return [
            replace(growth.finish(), hidden=torch.cat(states[growth.request.row]))
            for growth in growths
        ]

    def _finish(self, growths: list[Growth], hidden: Tensor) -> Tensor:
        """Go on from the shared layers' output [B, 1, hidden_size]; logits [B, V], or of the tokens that a
        trained layer drafts from."""
        if self.layer is not None:
            return self.layer.logits(growths, hidden)
        logits: Tensor | None = None
        for layers in self._rest:
            hidden, logits = self._run(growths, _newest(growths), layers, hidden)
        if logits is None:
            states = hidden if self.adapter is None else self.adapter(hidden)
            logits = self.target.lm_head(self.target.final_norm(states))
        return logits[:, 0]


def _newest(growths: list[Growth]) -> list[list[int]]:
    """The newest token of each chain, or of its text."""
    return [(growth.token_ids or growth.request.token_ids)[-1:] for growth in growths]


def zoo_adapter(exit_layer: int) -> Path:
    """Where the zoo's adapter of an exit lies, if it has one."""
    from forerun.models.zoo import zoo_path

    return zoo_path().parent / "exit_adapter" / f"exit-{exit_layer}.safetensors"


def _trained_layer(setup: DrafterSetup) -> ExitLayer | None:
    """The trained layer that the user named; a head of another kind belongs to another drafter."""
    if setup.head is None or setup.head.kind not in (None, LayerSkipDrafter.optional_head):
        return None
    from forerun.drafters.exits.exit_layer import ExitLayer
    from forerun.heads.layer_skip import LayerSkipHead

    return ExitLayer(LayerSkipHead.open(setup.target, setup.head), setup.rows, setup.capacity)


def _chosen(
    own: LayerSkipOptions, target: CausalLM, trained_for: int | None
) -> tuple[Collection[int], ExitAdapter | None]:
    """The layers to skip and the adapter that the options name; by default a quarter of the layers
    draft, unless something was trained for another exit.

    Args:
        trained_for: the exit of a trained layer, which takes the adapter's place.

    Raises:
        CheckpointError: for an adapter that cannot be read.
        ConfigError: for an exit that is not inside the target.
    """
    from forerun.drafters.exits.exit_adapter import ExitAdapter

    adapter = None if own.exit_adapter is None else ExitAdapter.load(own.exit_adapter)
    if own.skip_layers is not None:
        return own.skip_layers, adapter
    exit_layer = own.exit_layer or trained_for
    if exit_layer is None and adapter is not None:
        exit_layer = adapter.exit_layer
    elif exit_layer is None:
        exit_layer = ZOO_EXIT if target.name == "zoo" else max(1, target.num_layers // 4)
    if exit_layer >= target.num_layers:
        raise ConfigError(
            f"the exit is after layer {exit_layer} and {target.name} has {target.num_layers}; give an "
            "exit_layer, or an adapter of an exit, below its last layer, or use another method."
        )
    bare = adapter is None and trained_for is None
    if bare and target.name == "zoo" and zoo_adapter(exit_layer).is_file():
        adapter = ExitAdapter.load(zoo_adapter(exit_layer))
    return range(exit_layer, target.num_layers), adapter
