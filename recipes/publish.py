"""Writing the trained pair as a data package: checkpoints that any engine loads, and a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from forerun.files import atomic_path, write_text
from recipes.corpus import END_OF_TEXT


def publish_model(model: nn.Module, tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Save one model as bfloat16 safetensors in the transformers layout, with its tokenizer.

    Args:
        model: a transformers model with tied embeddings.
        tokenizer: what it was trained with.
        folder: made if missing; files in it are replaced.
        context: the longest text that it was trained for, in tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = model.config
    config.dtype = torch.bfloat16
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tied = {"lm_head.weight"}
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0})
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)
    # Under this name older releases of transformers, and engines built on them, load it too.
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    write_json(path, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})


def publish_licence(standard_library: Path, package: Path) -> None:
    """Put Python's licence beside the prompts that were cut from its library."""
    source = standard_library / "LICENSE.txt"
    if source.exists():
        shutil.copyfile(source, package / "LICENSE.txt")


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
