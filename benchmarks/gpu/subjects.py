"""The models that are measured: SmolLM2 from its file, and random Llamas that are built on the device."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.output import Output
from benchmarks.gpu.parts import join_parts
from benchmarks.shapes import config_of
from forerun.contracts import CausalLM
from forerun.costs.shapes import SHAPES as PUBLISHED
from forerun.costs.shapes import ModelShape
from forerun.errors import ConfigError
from forerun.models import Checkpoint, Placement, Transformer
from forerun.models.architecture import read_architecture
from forerun.models.config import as_transformers
from forerun.models.layouts import layout_of

SHAPES = {"llama-1b": PUBLISHED["llama-3.2-1b"], "llama-8b": PUBLISHED["llama-3.1-8b"]}
TINY_SHAPES = {
    "llama-1b": ModelShape(1, 32, 4, 2, 8, 64, 96, tied=True),
    "llama-8b": ModelShape(2, 64, 4, 2, 16, 96, 96),
}
SMOLLM2 = "smollm2"
# Texts that a drafter without a model finds something in, as a user's often are.
PROMPTS = (
    "Repeat this list in the opposite order, one item a line: apples, pears, plums, cherries, grapes, "
    "lemons, oranges, bananas.",
    "Rewrite this function with type hints and a docstring:\n\ndef mean(values):\n    total = 0\n"
    "    for value in values:\n        total += value\n    return total / len(values)\n",
    "Explain in a few sentences why the sky is blue.",
)


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Args:
        name: of it in the rows.
        build: makes the target.
        theirs: makes the same model of transformers, or another with random weights of its shape.
        prompts: token ids.
    """

    name: str
    build: Callable[[], CausalLM]
    theirs: Callable[[], Any]
    prompts: tuple[tuple[int, ...], ...]


def subjects(options: argparse.Namespace, device: torch.device, output: Output) -> list[Subject]:
    """The models, the smallest first; without a file of SmolLM2 a row says so."""
    made = []
    path = model_path(options)
    if path is None:
        output.row("missing", model=SMOLLM2, why="no --model or --model-parts")
    else:
        made.append(_stored(SMOLLM2, path, device))
    shapes = TINY_SHAPES if options.tiny else SHAPES
    return made + [_random(name, shape, device) for name, shape in shapes.items()]


def model_path(options: argparse.Namespace) -> str | None:
    """The checkpoint that was named, joined of its parts, or a tiny one for a tiny run."""
    work = work_folder(options)
    if options.model is not None:
        return str(options.model)
    if options.model_parts:
        return str(join_parts(options.model_parts, work / "model.gguf", options.sha256))
    return str(tiny_checkpoint(work / "tiny")) if options.tiny else None


def work_folder(options: argparse.Namespace) -> Path:
    """Folder of what need not come back: beside the results unless named."""
    out = Path(options.out)
    return Path(options.work) if options.work else out.with_name(f"{out.name}-work")


@contextmanager
def freeing(device: torch.device) -> Iterator[None]:
    """Give the memory of what the block has dropped back to the device."""
    try:
        yield
    finally:
        import gc

        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def random_target(name: str, shape: ModelShape, device: torch.device) -> Transformer:
    """A decoder with random weights in bfloat16, which never exist anywhere but on the device."""
    architecture = read_architecture(config_of(shape))
    generator = torch.Generator(device).manual_seed(0)
    weights: dict[str, Tensor] = {}
    for tensor in layout_of(architecture).tensors:
        weight = torch.ones(tensor.shape, dtype=torch.bfloat16, device=device)
        if len(tensor.shape) > 1:
            weight.normal_(0.0, 0.02, generator=generator)
        weights[tensor.name] = weight
    return Transformer(architecture, weights, name)


def _random(name: str, shape: ModelShape, device: torch.device) -> Subject:
    def theirs() -> Any:
        from transformers import AutoModelForCausalLM

        with torch.device(device):
            return AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.bfloat16)

    generator = torch.Generator().manual_seed(1)
    block = torch.randint(shape.vocab_size, (32,), generator=generator).tolist()
    return Subject(name, lambda: random_target(name, shape, device), theirs, ((*block, *block),))


def _stored(name: str, path: str, device: torch.device) -> Subject:
    checkpoint = Checkpoint.open(path)
    tokenizer = checkpoint.tokenizer
    run = checkpoint.run_config(Placement("bf16", str(device), "torch"))

    def theirs() -> Any:
        from transformers import AutoModelForCausalLM

        source = checkpoint.source()
        config = as_transformers(checkpoint.config)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        weights = {key: source.read(key).bfloat16() for key in source.shapes}
        missing, unexpected = model.load_state_dict(weights, strict=False)
        # A tied head is the embedding.
        if set(missing) - {"lm_head.weight"} or unexpected:
            raise ConfigError(f"transformers' {name} does not take the tensors of {path}.")
        model.tie_weights()
        return model.to(device)

    prompts = []
    for text in PROMPTS:
        if getattr(tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        prompts.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
    return Subject(name, lambda: checkpoint.load(run), theirs, tuple(prompts))


def tiny_checkpoint(folder: Path) -> Path:
    """A tiny random chat model with its tokenizer, for runs that only show that the kit works."""
    if (folder / "tokenizer_config.json").exists():
        return folder
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["<end>", *map(chr, range(33, 127))])}
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder
