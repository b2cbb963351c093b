"""The replay of the trained reading is what forerun's own modules compute; so is that of an export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.export.export import export_head, write_export
from forerun.export.forwards import Text
from forerun.export.head import PublishedHead, read_head
from forerun.export.profiles import Verifier
from forerun.export.readings import reading_of
from forerun.export.replay import draft
from forerun.heads.dspark import DSparkHead
from forerun.heads.eagle3 import Eagle3Head
from forerun.heads.files import HeadFiles
from tests.helpers.published_heads import (
    AUX,
    HIDDEN,
    TARGET,
    VOCAB,
    dspark_head,
    eagle3_head,
    reduced_dspark_head,
    with_tensors,
    wrapped_dspark_head,
    wrapped_eagle3_head,
)

Make = Callable[[], PublishedHead]


def written(head: PublishedHead, directory: Path) -> HeadFiles:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(head.config), encoding="utf-8")
    save_file(dict(head.tensors), directory / "model.safetensors")
    return HeadFiles.open(directory)


def normed() -> PublishedHead:
    weights = {f"fc_norm__{index}__weight": torch.rand(HIDDEN) + 0.5 for index in range(3)}
    return with_tensors(eagle3_head(fc_norm=True, norm_output=True), **weights)


def joined() -> PublishedHead:
    head = eagle3_head(norm_before_fc=True, norm_before_residual=True)
    return with_tensors(head, input_norm__weight=torch.rand(3 * HIDDEN) + 0.5)


EAGLE3: dict[str, Make] = {
    "portable": eagle3_head,
    "eagle-3.1": normed,
    "norms": joined,
    "wrapped": wrapped_eagle3_head,
    "wrapped-default": lambda: wrapped_eagle3_head(norm_before_residual=...),
    "other-layers": lambda: eagle3_head(**{AUX: [1, 2, 7]}),
    "outputs": lambda: eagle3_head(eagle_config={AUX: [1, 2, 6]}),
    "linear-rope": lambda: eagle3_head(
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
        rope_theta=...,
    ),
    "own-embedding": lambda: with_tensors(
        eagle3_head(), embed_tokens__weight=torch.randn(VOCAB, HIDDEN)
    ),
    "fc-bias": lambda: with_tensors(eagle3_head(), fc__bias=torch.randn(HIDDEN)),
}


def module_chain(files: HeadFiles, model: CausalLM, text: Text, length: int) -> list[Tensor]:
    """Logits after the first `length` features, and two steps further down the text."""
    head, tokens = Eagle3Head.open(model, files), text.token_ids.tolist()
    states = torch.cat([text.hidden[layer] for layer in head.hidden_layers], -1)
    cache = head.new_cache(1, 64)
    hidden, fed = head.fuse(states[None, :length])[0], tokens[1 : length + 1]
    rows = []
    for step in range(3):
        read = head.run([0], [hidden], [fed], cache)
        rows.append(head.logits(read)[0, -1])
        hidden, fed = read[0, -1:], [tokens[length + 1 + step]]
    return rows


@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_as_trained(name: str, model: CausalLM, text: Text, tmp_path: Path) -> None:
    head = EAGLE3[name]()
    drafted = draft(head, TARGET, reading_of(head, TARGET), text)
    length, count = 12, len(text)
    starts = [0, count - 1, 2 * count - 3]
    theirs = module_chain(written(head, tmp_path), model, text, length)
    for start, row in zip(starts, theirs, strict=True):
        assert torch.allclose(drafted.logits[start + length - 1], row, atol=1e-4)


def module_block(head: DSparkHead, text: Text, anchor: int) -> Tensor:
    """Logits of the block after a token of the text, with the text's own tokens before each."""
    states = torch.cat([text.hidden[layer] for layer in head.config.target_layers], -1)
    cache, tokens = head.new_cache(1, 64), text.token_ids.tolist()
    head.run_context(cache, [0], [states[:anchor]])
    hidden = head.run_block(cache, [0], [tokens[anchor]])[0]
    logits = head.base_logits(hidden)
    head.add_markov(logits, tokens[anchor : anchor + len(hidden)])
    return logits


DSPARK: dict[str, Make] = {
    "portable": dspark_head,
    "reduced": reduced_dspark_head,
    "wrapped": lambda: wrapped_dspark_head(sample_from_anchor=True),
}


@pytest.mark.parametrize("name", DSPARK)
def test_dspark_as_trained(name: str, model: CausalLM, text: Text, tmp_path: Path) -> None:
    head = DSPARK[name]()
    drafted = draft(head, TARGET, reading_of(head, TARGET), text)
    module = DSparkHead.open(model, written(head, tmp_path))
    block = head.config["block_size"]
    for number, anchor in enumerate((8, 12, 16)):
        theirs = module_block(module, text, anchor)
        ours = drafted.logits[number * block : (number + 1) * block]
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_an_export_drafts_in_forerun_as_the_head_did(
    model: CausalLM, text: Text, tmp_path: Path
) -> None:
    head = eagle3_head(eagle_config={AUX: [1, 2, 6]})
    verifier = Verifier("owner/tiny", (), model)
    before = module_chain(written(head, tmp_path / "head"), model, text, 12)
    for layout in ("eagle3", "speculators"):
        write_export(export_head(head, TARGET, layout, verifier), tmp_path / layout, layout, "")
        after = module_chain(HeadFiles.open(tmp_path / layout), model, text, 12)
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert read_head(tmp_path / layout).record == {"layout": layout}
