"""The recipe of the zoo: a small target and its draft, trained on the Python standard library.

Run it with ``python -m recipes.zoo --work DIR --publish zoo/src/forerun_zoo``. Every stage
keeps its result in DIR and is skipped when that exists, so a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from forerun.files import atomic_path
from recipes.corpus import (
    encode,
    read_modules,
    save_tokens,
    standard_library,
    train_tokenizer,
)
from recipes.evaluate import evaluate_pair
from recipes.heldout import cut_prompts, save_prompts
from recipes.publish import publish_gguf, publish_licence, publish_model, write_json
from recipes.windows import (
    Phase,
    Windows,
    WindowSettings,
    distillation_loss,
    next_token_loss,
    train_on_windows,
)

logger = logging.getLogger(__name__)

VOCAB_SIZE = 4096
CONTEXT = 2048
NUM_PROMPTS = 200
NUM_EVALUATED = 60


@dataclass(frozen=True)
class Shape:
    """The size of a Qwen3 model of the zoo."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            rope_theta=10000.0,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
            dtype="float32",
            **vars(self),
        )
        model: nn.Module = Qwen3ForCausalLM(config)
        return model


TARGET = Shape(512, 8, 1536, 8, 4, 64)
DRAFT = Shape(128, 3, 384, 4, 2, 32)

# Short windows train fastest; the last stretch teaches the positions of the whole context.
TARGET_SETTINGS = WindowSettings(
    max_tokens=14_000_000,
    max_seconds=6000,
    phases=(Phase(0.86, 256), Phase(1.0, CONTEXT)),
)
DRAFT_SETTINGS = WindowSettings(
    max_tokens=18_000_000,
    max_seconds=4500,
    phases=(Phase(1.0, 512),),
    learning_rate=0.005,
)
DISTILLATION_SETTINGS = WindowSettings(
    max_tokens=3_000_000,
    max_seconds=3000,
    phases=(Phase(0.8, 256), Phase(1.0, CONTEXT)),
    matrix_learning_rate=0.01,
    learning_rate=0.003,
    warmup=0.05,
    seed=1,
)


@dataclass(frozen=True)
class Corpus:
    """The tokenizer and both halves of the text, as token ids."""

    tokenizer: Tokenizer
    train: np.ndarray
    held_out: np.ndarray


def prepare_corpus(work: Path) -> Corpus:
    """Read the standard library, train the tokenizer on the training modules, encode everything."""
    tokenizer_path = work / "tokenizer.json"
    paths = {half: work / f"{half}.npy" for half in ("train", "held_out")}
    if not tokenizer_path.exists() or not all(path.exists() for path in paths.values()):
        modules = read_modules()
        train = [module for module in modules if not module.held_out]
        held_out = [module for module in modules if module.held_out]
        tokenizer = train_tokenizer((module.text for module in train), VOCAB_SIZE)
        save_tokens(paths["train"], encode(tokenizer, train))
        save_tokens(paths["held_out"], encode(tokenizer, held_out))
        with atomic_path(tokenizer_path) as temporary:
            tokenizer.save(str(temporary))
    corpus = Corpus(
        Tokenizer.from_file(str(tokenizer_path)),
        np.load(paths["train"]),
        np.load(paths["held_out"]),
    )
    logger.info("%d tokens to train on, %d held out", len(corpus.train), len(corpus.held_out))
    return corpus


def plain_loss(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return next_token_loss(logits, batch[:, 1:])


def train_target(work: Path, corpus: Corpus, settings: WindowSettings, device: str) -> nn.Module:
    model = TARGET.build().to(device)
    windows = Windows(corpus.train, settings.seed)
    train_on_windows(model, plain_loss, windows, settings, work / "target.pt")
    return model


def train_draft(
    work: Path,
    corpus: Corpus,
    target: nn.Module,
    settings: tuple[WindowSettings, WindowSettings],
    device: str,
) -> nn.Module:
    """Train the draft on the text first, which is cheap, then on the target's own distributions."""
    model = DRAFT.build().to(device)
    first, second = settings
    train_on_windows(model, plain_loss, Windows(corpus.train, first.seed), first, work / "draft.pt")
    target.eval().requires_grad_(False)

    def loss(student: nn.Module, batch: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = target(input_ids=batch[:, :-1], use_cache=False).logits
        logits = student(input_ids=batch[:, :-1], use_cache=False).logits
        return distillation_loss(logits, teacher_logits)

    windows = Windows(corpus.train, second.seed)
    train_on_windows(model, loss, windows, second, work / "distilled.pt")
    return model


def publish(package: Path, work: Path, corpus: Corpus, target: nn.Module, draft: nn.Module) -> None:
    """Write both models, the held-out prompts, their licence and the measured report."""
    checkpoint = work / "checkpoint"
    publish_model(target, corpus.tokenizer, checkpoint, CONTEXT)
    publish_gguf(checkpoint, package / "target.gguf")
    publish_model(draft, corpus.tokenizer, package / "draft", CONTEXT)
    held_out = [module for module in read_modules() if module.held_out]
    prompts = cut_prompts(held_out, NUM_PROMPTS)
    save_prompts(package / "heldout.jsonl", prompts)
    publish_licence(standard_library(), package)
    report = evaluate_pair(
        package / "target.gguf", package / "draft", corpus.held_out, prompts[:NUM_EVALUATED]
    )
    write_json(package / "report.json", report)
    logger.info("%s", report)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.zoo", description=__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="where the stages keep their state"
    )
    parser.add_argument("--publish", type=Path, help="folder of the zoo package to write into")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--target-seconds", type=float, default=TARGET_SETTINGS.max_seconds)
    parser.add_argument("--target-tokens", type=int, default=TARGET_SETTINGS.max_tokens)
    parser.add_argument("--draft-seconds", type=float, default=DRAFT_SETTINGS.max_seconds)
    parser.add_argument(
        "--distillation-seconds", type=float, default=DISTILLATION_SETTINGS.max_seconds
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options = parse_arguments(arguments)
    corpus = prepare_corpus(options.work)
    target_settings = replace(
        TARGET_SETTINGS, max_seconds=options.target_seconds, max_tokens=options.target_tokens
    )
    draft_settings = (
        replace(DRAFT_SETTINGS, max_seconds=options.draft_seconds),
        replace(DISTILLATION_SETTINGS, max_seconds=options.distillation_seconds),
    )
    target = train_target(options.work, corpus, target_settings, options.device)
    draft = train_draft(options.work, corpus, target, draft_settings, options.device)
    if options.publish is not None:
        publish(options.publish, options.work, corpus, target, draft)


if __name__ == "__main__":
    main()
