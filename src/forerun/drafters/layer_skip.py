"""Self-speculation: the target drafts with its first layers, and verifies with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Batch, Draft, Plan, Request
from forerun.drafters.own_layers import OwnLayersDrafter, check_runs_apart
from forerun.errors import ConfigError
from forerun.options import options

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.features import Missing
    from forerun.heads.layer_skip import LayerSkipHead
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


class ExitLayer:
    """Reads the exit's states with a trained layer, whose cache holds the whole text.

    Tokens that the target has run are read with the states that prompts and rounds bring, the
    newest token and drafted ones with those of the drafter's own runs. The latter are removed after
    a round: accepted tokens are read again, with the states of the round.

    Args:
        head: the layer, on its target's backend.
        rows: number of requests at once.
        capacity: prompt and output tokens per request, drafted ones included.
    """

    def __init__(self, head: LayerSkipHead, rows: int, capacity: int) -> None:
        from forerun.heads.features import Features

        self.head, self.rows, self.capacity = head, rows, capacity
        self.cache = head.new_cache(rows, capacity)
        self.exit_layer, self.vocabulary = head.config.exit_layer, head.vocabulary
        self.features = Features((self.exit_layer,), rows, self.cache)
        self._missing: dict[int, Missing | None] = {}

    def longest(self, request: Request) -> int:
        """Most tokens of a request's next draft; none before the states of its text are known.

        The cache is cut to the text.
        """
        missing = self._missing[request.row] = self.features.missing(request)
        return 0 if missing is None else self.capacity - len(request)

    def logits(self, growths: Sequence[Growth], hidden: Tensor) -> Tensor:
        """Logits [B, Vd] after the newest tokens of chains, from the exit's states [B, 1, hidden_size]."""
        import torch

        rows, states = [], list(hidden)
        behind: dict[int, Tensor] = {}
        for index, growth in enumerate(growths):
            rows.append(growth.request.row)
            if not growth.token_ids:
                behind[index] = self._run_most(growth.request)
                states[index] = torch.cat((behind[index], states[index]))
        logits = self.head.run(rows, states, self.cache)
        for index, own in behind.items():
            self.features.ran(growths[index].request, len(own))
        return logits

    def _run_most(self, request: Request) -> Tensor:
        """Run most of the states that a text's row lacks if there are many; return those that are left."""
        missing = self._missing[request.row]
        assert missing is not None, "nothing is drafted without states"
        return self.features.run_most(
            request, missing, lambda some, _: self.head.run([request.row], [some], self.cache)
        )


class LayerSkipDrafter(OwnLayersDrafter):
    """Drafts chains with the target's first layers: an early exit (LayerSkip, arXiv 2404.16710).

    They are run once for every token: their keys and values stay in the target's cache, and
    verification continues from their output (`Draft.hidden`).

    Args:
        target: the model that drafts for itself; its layers must run separately.
        exit_layer: number of layers that draft.
        layer: a trained decoder layer that reads the exit's states of the whole text, in place of
            the target's own output head.

    Raises:
        ConfigError: for an exit that is not inside the target, or not the one that the layer was
            trained for.
        UnsupportedModelError: for a target whose layers cannot run separately.
    """

    name = "layer_skip"
    optional_head: str | None = "layer_skip"
    options = LayerSkipOptions

    def __init__(
        self,
        target: CausalLM,
        exit_layer: int,
        layer: ExitLayer | None = None,
    ) -> None:
        super().__init__(target)
        if not 1 <= exit_layer < target.num_layers:
            raise ConfigError(
                f"the exit is after layer {exit_layer} and {target.name} has {target.num_layers}; give an "
                "exit_layer below its last layer, or use another method."
            )
        if layer is not None and exit_layer != layer.exit_layer:
            raise ConfigError(
                f"the trained layer belongs after layer {layer.exit_layer} and cannot be used after layer "
                f"{exit_layer}; give that exit_layer, or no trained layer."
            )
        self.shared_layers, self.layer = exit_layer, layer
        if layer is not None:
            self.hidden_layers, self.rows = (self.shared_layers,), layer.rows
            self.features = layer.features
        check_runs_apart(target)

    @classmethod
    def build(cls, setup: DrafterSetup) -> LayerSkipDrafter:
        layer, head = None, setup.head
        if head is not None and head.kind in (None, cls.optional_head):
            from forerun.heads.layer_skip import LayerSkipHead

            own_head = LayerSkipHead.open(setup.target, head)
            layer = ExitLayer(own_head, setup.rows, setup.capacity)
        exit_layer = setup.read(LayerSkipOptions).exit_layer or (layer and layer.exit_layer)
        return cls(setup.target, exit_layer or max(1, setup.target.num_layers // 4), layer)

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
            if room > 0 and self.layer is not None:
                room = min(room, self.layer.longest(request))
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
            if running and self.layer is not None:
                grow(running, self.layer.logits(running, hidden), randomness, self.layer.vocabulary)
            elif running:
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
