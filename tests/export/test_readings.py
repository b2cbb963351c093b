"""Replays compute what the layouts say, by a second opinion that knows no module; exports draft alike."""

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
from forerun.export.head import VERSIONS, PublishedHead
from forerun.export.readings import reading_of
from forerun.export.replay import ObservedText, draft
from forerun.heads.eagle3 import Eagle3Head
from forerun.heads.files import HeadFiles
from tests.helpers.published_heads import (
    AUX,
    HIDDEN,
    TARGET,
    VOCAB,
    eagle3_head,
    layer_shapes,
    random_tensors,
    with_tensors,
    wrapped_eagle3_head,
)
from tests.helpers.second_opinion import second_opinion

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


HEADS: dict[str, Make] = {
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
    "qkv-bias": lambda: with_tensors(
        eagle3_head(attention_bias=True),
        **{
            f"layers__0__self_attn__{name}_proj__bias": torch.randn(size)
            for name, size in (("q", 24), ("k", 12), ("v", 12))
        },
    ),
    "layers": lambda: with_tensors(
        eagle3_head(num_hidden_layers=2),
        **{
            name.replace(".", "__"): tensor
            for name, tensor in random_tensors(layer_shapes(1, HIDDEN)).items()
        },
    ),
    "sliding": lambda: eagle3_head(layer_types=["sliding_attention"], sliding_window=5),
    "gelu": lambda: eagle3_head(hidden_act="gelu"),
    "absolute-ids": lambda: with_tensors(
        eagle3_head(), d2t=eagle3_head().tensors["d2t"] + torch.arange(40)
    ),
    "no-ids": lambda: with_tensors(eagle3_head(), d2t=None),
    "no-theta": lambda: eagle3_head(rope_parameters=..., rope_theta=...),
    "tied": lambda: eagle3_head(tie_word_embeddings=True),
    "lent-rows": lambda: with_tensors(eagle3_head(), lm_head__weight=None),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_replay_computes_what_the_layout_says(name: str, text: ObservedText) -> None:
    """As it was trained, and with everything that some engine reads otherwise."""
    head = HEADS[name]()
    readings = {reading_of(head, TARGET, engine) for engine in (None, *VERSIONS)}
    for reading in readings:
        ours, theirs = draft(head, TARGET, reading, text), second_opinion(head, reading, text)
        assert torch.equal(ours.follows, theirs.follows)
        assert torch.equal(ours.target_ids, theirs.target_ids)
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-4)


def module_chain(
    files: HeadFiles, model: CausalLM, text: ObservedText, length: int
) -> list[Tensor]:
    """Logits after the first `length` features, and two steps further down the text."""
    head, tokens = Eagle3Head.open(model, files), text.token_ids
    states = text.states(head.hidden_layers)
    cache = head.new_cache(1, 64)
    hidden, fed = head.fuse(states[None, :length])[0], tokens[1 : length + 1]
    rows = []
    for step in range(3):
        read = head.run([0], [hidden], [fed], cache)
        rows.append(head.logits(read)[0, -1])
        hidden, fed = read[0, -1:], [tokens[length + 1 + step]]
    return rows


def test_an_export_drafts_in_forerun_as_the_head_did(
    model: CausalLM, text: ObservedText, tmp_path: Path
) -> None:
    head = eagle3_head(eagle_config={AUX: [1, 2, 6]})
    before = module_chain(written(head, tmp_path / "head"), model, text, 12)
    write_export(export_head(head, TARGET, model), tmp_path / "out", "")
    after = module_chain(HeadFiles.open(tmp_path / "out"), model, text, 12)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
