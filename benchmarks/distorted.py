"""Draft models of graded quality: the zoo's draft, its logits mixed with those of a random head.

python -m benchmarks.distorted --shares 0 0.5 0.9

Prints the acceptance of a draft's first token after code, drafting one token a round. A worse draft takes
exactly as long as a better one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.files import atomic_path, write_text
from forerun.models.zoo import packaged_path
from forerun.report.markdown import heading, line

HEAD, EMBEDDING, WEIGHTS = "lm_head.weight", "model.embed_tokens.weight", "model.safetensors"
DRAFTS = {"good": 0.0, "middling": 0.5, "useless": 0.9}
"""Share of noise by name. On CODE, 128 tokens each, the target in bf16, greedily and at temperature 1, so
many of the first drafted tokens were accepted: good 94 and 62 %, middling 47 and 21 %, useless 0 and 2 %."""
CODE = (
    "def merge_sort(items):\n",
    "import os\nimport sys\n\ndef walk(",
    "for i in range(10):\n    print(",
    "class Stack:\n    def __init__(self):\n",
    "def read_config(path):\n    with open(path) as file:\n",
    "import unittest\n\nclass TestQueue(unittest.TestCase):\n    def test_",
)
"""Beginnings of code to go on from."""


def distorted(share: float, directory: Path, source: Path | None = None) -> Path:
    """A draft model whose logits are (1 - share) of its own and `share` of noise.

    Args:
        share: of the noise, in [0, 1].
        directory: where it is written.
        source: the checkpoint's directory, with one file of weights; None is the zoo's draft.
    """
    source = packaged_path("zoo-draft") if source is None else source
    shutil.copytree(source, directory, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    # The embedding stays as it is, and with it what the layers compute.
    write_text(directory / "config.json", json.dumps(config | {"tie_word_embeddings": False}))
    tensors = load_file(source / WEIGHTS)
    tensors[HEAD] = _mixed(tensors.get(HEAD, tensors[EMBEDDING]), share)
    with atomic_path(directory / WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    return directory


def _mixed(head: Tensor, share: float) -> Tensor:
    """A head mixed with random weights of the same spread."""
    own = head.float()
    noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(0)) * own.std()
    return ((1.0 - share) * own + share * noise).to(head.dtype)


def acceptance(engine: Engine, temperature: float, max_tokens: int = 128) -> float:
    """Share of first drafted tokens that were accepted, over the code prompts."""
    for prompt in CODE:
        engine.generate(
            prompt, temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=7
        )
    stats = engine.stats
    return stats.num_accepted_tokens / stats.num_draft_tokens


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distorted", description=__doc__)
    parser.add_argument("--shares", nargs="+", type=float, default=list(DRAFTS.values()))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args(arguments)
    print(heading(["share of noise", "temperature", "accepted first tokens"], ""))
    for share in options.shares:
        with TemporaryDirectory() as folder:
            draft = str(distorted(share, Path(folder)))
            config = {"model": draft, "policy": "fixed", "num_speculative_tokens": 1}
            for temperature in options.temperatures:
                accepted = acceptance(load("zoo", config), temperature, options.max_tokens)
                print(line([f"{share:g}", f"{temperature:g}", f"{accepted:.3f}"]), flush=True)


if __name__ == "__main__":
    main()
