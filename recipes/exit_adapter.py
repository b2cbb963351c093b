"""The recipe of the zoo's exit adapters: small MLPs that let the target's own head read the hidden
states after its first layers, distilled from what the target says after all of them.

Run it with ``python -m recipes.exit_adapter --work DIR --publish
zoo/src/forerun_zoo/exit_adapter``. All adapters are trained at once, from one forward pass of the
frozen target; a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from forerun.drafters.exits.exit_adapter import ExitAdapter, adapt
from forerun.errors import TrainingError
from forerun.models.modules import TorchModules
from forerun.models.zoo import zoo_path
from forerun.training.losses import distillation_loss
from forerun.training.windows import Phase, Windows, WindowSettings, window_trainer
from recipes.publish import write_json
from recipes.zoo import prepare_corpus

logger = logging.getLogger(__name__)

EXIT_LAYERS = (1, 2, 3)
WINDOW = 512
SETTINGS = WindowSettings(
    max_tokens=6_000_000,
    max_seconds=3000,
    phases=(Phase(1.0, WINDOW),),
    matrix_learning_rate=0.01,
    learning_rate=0.003,
    warmup=0.05,
    seed=2,
)


class TrainableAdapter(nn.Module):
    """An adapter as it is trained; it starts as the identity, so as the target's plain head."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        shape = (hidden_size, hidden_size)
        self.norm = nn.Parameter(torch.ones(hidden_size))
        self.gate = nn.Parameter(torch.randn(shape) * hidden_size**-0.5)
        self.up = nn.Parameter(torch.randn(shape) * hidden_size**-0.5)
        self.down = nn.Parameter(torch.zeros(shape))

    def forward(self, hidden: Tensor) -> Tensor:
        modules = TorchModules(hidden.device, hidden.dtype)
        return adapt(modules, self.norm, self.gate, self.up, self.down)(hidden)


@dataclass(frozen=True)
class Exits:
    """What one forward of the target shows: its logits [B, n, V], and the hidden states
    [B, n, hidden_size] after the first `layer` layers, by layer."""

    logits: Tensor
    hidden: dict[int, Tensor]


class FrozenTarget:
    """The published target, whose weights no gradient reaches.

    Raises:
        TrainingError: for an exit that is not below its last layer.
    """

    def __init__(self, path: Path, exit_layers: Sequence[int], device: str) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.model = model.to(device).eval().requires_grad_(False)
        self.name = "zoo" if path == zoo_path() else path.name
        self.exit_layers = tuple(exit_layers)
        self.hidden_size = int(model.config.hidden_size)
        layers = int(model.config.num_hidden_layers)
        if not exit_layers or not all(0 < layer < layers for layer in exit_layers):
            raise TrainingError(
                f"exits {list(exit_layers)} are not within the {layers} layers of the target; "
                f"give some from 1 to {layers - 1}."
            )

    @torch.no_grad()
    def run(self, token_ids: Tensor) -> Exits:
        out = self.model(input_ids=token_ids, use_cache=False, output_hidden_states=True)
        # hidden_states[i] is the output of the first i layers, before the final norm for all but the last.
        return Exits(out.logits, {layer: out.hidden_states[layer] for layer in self.exit_layers})

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return logits


def new_adapters(target: FrozenTarget) -> nn.ModuleDict:
    """Untrained adapters by exit layer."""
    torch.manual_seed(SETTINGS.seed)
    adapters = {str(layer): TrainableAdapter(target.hidden_size) for layer in target.exit_layers}
    return nn.ModuleDict(adapters).to(target.model.device)


def train(
    work: Path, tokens: np.ndarray, target: FrozenTarget, settings: WindowSettings
) -> nn.ModuleDict:
    """Train the adapters on `tokens` until the budget is spent; the state lies in `work`."""
    adapters = new_adapters(target)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        assert isinstance(model, nn.ModuleDict)
        exits = target.run(batch[:, :-1])
        losses = [
            distillation_loss(target.head(model[str(layer)](hidden)), exits.logits)
            for layer, hidden in exits.hidden.items()
        ]
        return torch.stack(losses).sum()

    windows = Windows(tokens, settings.seed)
    window_trainer(adapters, loss, windows, settings, work / "exit_adapters.pt").run()
    return adapters


@torch.no_grad()
def evaluate(target: FrozenTarget, adapters: nn.ModuleDict, tokens: np.ndarray) -> dict[str, Any]:
    """How far each exit agrees with the target on held-out text, with its adapter and without.

    Measured in float32 over independent windows: the share of places where both have the same most
    likely token (`top_1`), the mean overlap of their distributions, which is the rate at which a
    drawn token is accepted (`overlap`, Leviathan et al., arXiv 2211.17192), and the mean divergence
    from the target in nats (`nats`).
    """
    sums: dict[str, Tensor] = {}
    count = 0
    for start in range(0, len(tokens) - WINDOW + 1, WINDOW):
        window = torch.from_numpy(tokens[start : start + WINDOW].astype(np.int64))[None]
        exits = target.run(window.to(target.model.device))
        count += WINDOW
        for layer, hidden in exits.hidden.items():
            inputs = {"plain": hidden, "adapter": adapters[str(layer)](hidden)}
            for kind, states in inputs.items():
                key = f"{layer} {kind}"
                figures = _agreement(target.head(states), exits.logits)
                sums[key] = sums.get(key, torch.zeros(3)) + figures
    names = ("top_1", "overlap", "nats")
    report: dict[str, Any] = {"held_out_tokens": count}
    for key, figures in sums.items():
        exit_layer, kind = key.split()
        means = (figures / count).tolist()
        entry = {name: round(mean, 4) for name, mean in zip(names, means, strict=True)}
        report.setdefault(f"exit-{exit_layer}", {})[kind] = entry
    return report


def _agreement(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Sums over all places of [same most likely token, overlap, divergence]."""
    probs, target_probs = functional.softmax(logits, -1), functional.softmax(target_logits, -1)
    same = (logits.argmax(-1) == target_logits.argmax(-1)).sum()
    overlap = torch.minimum(probs, target_probs).sum()
    nats = distillation_loss(logits, target_logits) * logits[..., 0].numel()
    return torch.stack([same.float(), overlap, nats]).cpu()


def publish(
    folder: Path, target: FrozenTarget, adapters: nn.ModuleDict, report: dict[str, Any]
) -> None:
    """Write one file an exit, and the report beside them."""
    for layer in target.exit_layers:
        trained: Any = adapters[str(layer)]
        tensors = (trained.norm, trained.gate, trained.up, trained.down)
        ExitAdapter(layer, target.name, *tensors).save(folder / f"exit-{layer}.safetensors")
    write_json(folder / "report.json", report)
    logger.info("%s", report)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.exit_adapter", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the state is kept")
    parser.add_argument("--publish", type=Path, help="folder to write the adapters into")
    parser.add_argument("--target", type=Path, help="checkpoint directory (the zoo's target)")
    parser.add_argument("--exit-layer", type=int, nargs="+", default=list(EXIT_LAYERS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=SETTINGS.max_seconds)
    parser.add_argument("--tokens", type=int, default=SETTINGS.max_tokens)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options = parse_arguments(arguments)
    corpus = prepare_corpus(options.work)
    target = FrozenTarget(options.target or zoo_path(), options.exit_layer, options.device)
    settings = replace(SETTINGS, max_seconds=options.seconds, max_tokens=options.tokens)
    adapters = train(options.work, corpus.train, target, settings)
    if options.publish is not None:
        publish(options.publish, target, adapters, evaluate(target, adapters, corpus.held_out))


if __name__ == "__main__":
    main()
