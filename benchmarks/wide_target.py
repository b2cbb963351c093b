"""A target too wide for the cache: the zoo's with wider layers, briefly trained.

python -m benchmarks.wide_target DIRECTORY --steps 60

New units of the gated layers start with random inputs and zero outputs, so that growth alone changes no
logit; training on the zoo's text then gives them something to do. The result is for benchmarks of
engines on weights that do not fit into the cache, and part of no package.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from benchmarks.checkpoints import zoo_target
from forerun.training.windows import Phase, Windows, WindowSettings, window_trainer
from recipes.corpus import encode, read_modules
from recipes.publish import publish_model
from recipes.zoo import CONTEXT, plain_loss

DIRECTORY = "zoo-wide"
INTERMEDIATE = 5632
STEPS = 60
BATCH_TOKENS = 2048
_UNBOUNDED = 1e9


def grow(model: nn.Module, config: Any, intermediate: int) -> nn.Module:
    """The same function with wider gated layers.

    Args:
        model: of transformers, Llama-like.
        config: its config; it is changed.
        intermediate: the new width, at least the old one.
    """
    from transformers import AutoModelForCausalLM

    old = model.state_dict()
    config.intermediate_size = intermediate
    torch.manual_seed(0)
    grown: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    new = grown.state_dict()
    for name, weight in new.items():
        new[name] = _widened(name, old[name].float(), weight)
    grown.load_state_dict(new)
    return grown


def _widened(name: str, old: Tensor, new: Tensor) -> Tensor:
    wide = new.clone()
    if name.endswith("down_proj.weight"):
        wide[:, old.shape[1] :] = 0.0
        wide[:, : old.shape[1]] = old
    else:
        wide[: old.shape[0]] = old
    return wide


def make_wide_target(directory: Path, steps: int = STEPS, device: str = "cpu") -> Path:
    """The checkpoint, created unless it exists; `steps` of 2,048 tokens train it."""
    from transformers import AutoModelForCausalLM

    if (directory / "model.safetensors").exists():
        return directory
    source = zoo_target(directory.with_name("zoo-target"))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    grown = grow(model, model.config, INTERMEDIATE).to(device)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    if steps:
        _train(grown, tokenizer, steps, directory.with_suffix(".pt"))
    publish_model(grown, tokenizer, directory, CONTEXT)
    shutil.copyfile(source / "generation_config.json", directory / "generation_config.json")
    return directory


def _train(model: nn.Module, tokenizer: Tokenizer, steps: int, state: Path) -> None:
    settings = WindowSettings(
        max_tokens=steps * BATCH_TOKENS,
        max_seconds=_UNBOUNDED,
        batch_tokens=BATCH_TOKENS,
        phases=(Phase(1.0, 256),),
        # A tenth of the zoo's own rates, so that what was learned stays.
        matrix_learning_rate=0.002,
        learning_rate=0.0003,
        warmup=0.1,
    )
    modules = [module for module in read_modules() if not module.held_out]
    state.parent.mkdir(parents=True, exist_ok=True)
    window_trainer(model, plain_loss, Windows(encode(tokenizer, modules), 7), settings, state).run()
    state.unlink()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_target")
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="of training; 0 only widens the layers"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    make_wide_target(options.directory, options.steps, options.device)


if __name__ == "__main__":
    main()
