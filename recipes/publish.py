"""Writing what was trained into the data package: models that any engine loads, heads, and a report.

python -m recipes.publish HEAD DIRECTORY

writes a head that `forerun train` has made with its layers in 4 bits, its other matrices in 8, and without
the output rows, which the target has.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from forerun.files import atomic_path, write_text
from forerun.heads.files import CARD, OWN, SCALES, ZERO, HeadFiles, write_head
from forerun_peers.gguf_export import write_gguf
from recipes.corpus import END_OF_TEXT

COLUMNS = 32
"""Of a row of a head's matrix that share a scale."""
CERTIFICATE = "certificate.md"
"""Where `forerun prove --certificate` of a head is looked for."""
SMALLEST = 1e-7
"""Of the scales, so that none is 0 in fp16."""


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


def publish_gguf(checkpoint: Path, path: Path) -> None:
    """Write what `publish_model` has saved as a GGUF file: four bits a weight, eight in the embedding, which
    is the output head too."""
    with atomic_path(path) as temporary:
        write_gguf(checkpoint, temporary, _kind, with_tokenizer=True)


def _kind(key: str, tensor: Tensor) -> str:
    if tensor.dim() == 1:
        return "F32"
    return "Q8_0" if key.endswith("embed_tokens.weight") else "Q4_0"


def publish_head(trained: Path, directory: Path) -> None:
    """Write a trained head in few bits, and what lies beside its weights."""
    files = HeadFiles.open(trained)
    beside = {
        name: (trained / name).read_bytes()
        for name in (OWN, CARD, CERTIFICATE)
        if (trained / name).exists()
    }
    # Training leaves the output rows as they are in the target, which lends them.
    own = {name: tensor for name, tensor in files.tensors.items() if name != "lm_head.weight"}
    write_head(directory, files.config, quantized(own), beside)


def quantized(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with the matrices of layers in 4 bits and others in 8, as `HeadFiles.tensors` reads them again.

    Args:
        tensors: by published name; a matrix that groups of columns do not divide stays as it is.
    """
    stored: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() == 2 and tensor.shape[1] % COLUMNS == 0:
            groups = tensor.float().reshape(len(tensor), -1, COLUMNS)
            in_bits = in_4_bits if key.startswith("layers.") else in_8_bits
            stored[key], stored[key + SCALES] = in_bits(groups)
        else:
            stored[key] = tensor
    return stored


def in_8_bits(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of a matrix [rows, groups, columns]."""
    scales = (groups.abs().amax(2) / 127).clamp(min=SMALLEST).half()
    codes = (groups / scales.float()[..., None]).round().clamp(-127, 127)
    return codes.flatten(1).to(torch.int8), scales


def in_4_bits(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, two a byte, and scales of a matrix [rows, groups, columns].

    The value of the largest magnitude becomes -8, by the sign of the scale, so that the kernels find the same
    codes again; of a few scales the one of the least squared error is taken.
    """
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))[..., 0]
    best, least = torch.empty_like(extreme), torch.full_like(extreme, torch.inf)
    for steps in (-8.0, -8.5, -9.0):
        scales = extreme / steps
        scales = torch.where(scales.abs() < SMALLEST, SMALLEST, scales).half().float()
        error = (groups - _rounded(groups, scales) * scales[..., None]).square().sum(2)
        best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
    # Two codes a byte, the first in the lower half.
    codes = (_rounded(groups, best).flatten(1) + ZERO).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, best.half()


def _rounded(groups: Tensor, scales: Tensor) -> Tensor:
    return (groups / scales[..., None]).round().clamp(-8, 7)


def publish_licence(standard_library: Path, package: Path) -> None:
    """Put Python's licence beside the prompts that were cut from its library."""
    source = standard_library / "LICENSE.txt"
    if source.exists():
        shutil.copyfile(source, package / "LICENSE.txt")


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.publish", description=__doc__)
    parser.add_argument("head", type=Path, help="directory of a trained head")
    parser.add_argument("directory", type=Path, help="to write, such as heads/smollm2-eagle3")
    options = parser.parse_args()
    publish_head(options.head, options.directory)


if __name__ == "__main__":
    main()
