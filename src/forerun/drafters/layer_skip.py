"""Self-speculation: the target drafts with its first layers, and verifies with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Batch, Draft, Plan, Request
from forerun.drafters.base import OwnLayersDrafter
from forerun.errors import ConfigError
from forerun.options import options

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


@options
class LayerSkipOptions:
    """The layers of the target that draft; by default the first quarter."""

    exit_layer: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="How many of the target's first layers draft; the rest is skipped.",
    )


class LayerSkipDrafter(OwnLayersDrafter):
    """Drafts chains with the target's first layers: an early exit (LayerSkip, arXiv 2404.16710).

    They are run once for every token: their keys and values stay in the target's cache, and
    verification continues from their output (`Draft.hidden`).

    Args:
        target: the model that drafts for itself; its layers must run separately.
        exit_layer: number of layers that draft.

    Raises:
        ConfigError: for an exit that is not inside the target.
        UnsupportedModelError: for a target whose layers cannot run separately.
    """

    name = "layer_skip"
    options = LayerSkipOptions

    def __init__(self, target: CausalLM, exit_layer: int) -> None:
        super().__init__(target)
        if not 1 <= exit_layer < target.num_layers:
            raise ConfigError(
                f"the exit is after layer {exit_layer} and {target.name} has {target.num_layers}; give an "
                "exit_layer below its last layer, or use another method."
            )
        self.shared_layers = exit_layer
        _check_runs_apart(target)

    @classmethod
    def build(cls, setup: DrafterSetup) -> LayerSkipDrafter:
        exit_layer = setup.read(LayerSkipOptions).exit_layer
        return cls(setup.target, exit_layer or max(1, setup.target.num_layers // 4))

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        """Propose one chain per request, with the hidden states of all tokens run.

        The newest committed token is run even if no draft is planned.
        """
        import torch

        from forerun.trees.growth import grow, start

        running = []
        for request, plan in zip(requests, plans, strict=True):
            room = min(plan.num_tokens, self._cache.capacity - len(request))
            running.append(start(request, replace(plan, num_tokens=room)))
        growths = running
        # By row: the shared layers' output for all tokens run.
        states: dict[int, list[Tensor]] = {request.row: [] for request in requests}
        while running:
            hidden = self._run(running)
            for growth, state in zip(running, hidden, strict=True):
                states[growth.request.row].append(state)
            # The last drafted token only runs through the first layers, for verification.
            growing = [index for index, growth in enumerate(running) if growth.frontier]
            if len(growing) < len(running):
                running, hidden = [running[index] for index in growing], hidden[growing]
            if running:
                logits = self.target.lm_head(self.target.final_norm(hidden))
                grow(running, logits[:, 0], randomness)
            running = [g for g in running if len(g.token_ids) == len(states[g.request.row])]
        return [
            replace(growth.finish(), hidden=torch.cat(states[growth.request.row]))
            for growth in growths
        ]

    def _run(self, growths: list[Growth]) -> Tensor:
        """Run the newest token of each chain, or of its text; the exit's states [B, 1, hidden_size]."""
        batch = Batch.after(
            self._cache,
            [growth.request.row for growth in growths],
            [(growth.token_ids or growth.request.token_ids)[-1:] for growth in growths],
            layers=range(self.shared_layers),
            hidden_layers=(self.shared_layers,),
        )
        return self.target.forward(batch, self._cache).hidden[self.shared_layers]


def _check_runs_apart(target: CausalLM) -> None:
    """Run one token through one layer and the output head, to refuse a target that cannot.

    Raises:
        ForerunError: the target's error, saying what it lacks.
    """
    cache = target.new_cache(1, 1)
    batch = Batch.after(cache, [0], [[0]], layers=range(1), hidden_layers=(1,))
    target.lm_head(target.final_norm(target.forward(batch, cache).hidden[1]))
