"""Exported heads: written in the layouts of the tables, checked, and drafting as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forerun.contracts import CausalLM
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.export.export import export_head, write_export
from forerun.export.head import LLAMA_CPP, SGLANG, VLLM, PublishedHead
from forerun.export.readings import reading_of
from forerun.export.replay import ObservedText, draft
from forerun.export.rules import check_head
from tests.helpers import published_heads as published
from tests.helpers.published_heads import (
    AUX,
    HIDDEN,
    TARGET,
    VOCAB,
    eagle3_head,
    with_tensors,
    wrapped_eagle3_head,
)

Make = Callable[[], PublishedHead]


def drafts(head: PublishedHead, text: ObservedText) -> Any:
    return draft(head, TARGET, reading_of(head, TARGET), text)


def other_layers() -> PublishedHead:
    return eagle3_head(**{AUX: [1, 4, 6]}, eagle_config={AUX: [0, 3, 5]})


def absolute() -> PublishedHead:
    d2t = eagle3_head().tensors["d2t"]
    return with_tensors(eagle3_head(), d2t=d2t + torch.arange(len(d2t)))


def without_mapping() -> PublishedHead:
    head = with_tensors(eagle3_head(draft_vocab_size=VOCAB), d2t=None, t2d=None)
    rows = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))
    return with_tensors(head, lm_head__weight=rows)


def two_dialects_of_rope() -> PublishedHead:
    rope = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
    return eagle3_head(rope_parameters=rope, rope_theta=..., rope_scaling=...)


FAITHFUL: dict[str, Make] = {
    "eagle3": eagle3_head,
    "eagle3-from-speculators": wrapped_eagle3_head,
    "eagle3-other-layers": other_layers,
    "eagle3-absolute-ids": absolute,
    "eagle3-all-tokens": without_mapping,
    "eagle3-in-few-bits": lambda: replace(eagle3_head(), in_few_bits=True),
    "eagle3-scaled-rope": two_dialects_of_rope,
}


@pytest.mark.parametrize("name", FAITHFUL)
def test_an_exported_head_drafts_as_before(
    name: str, model: CausalLM, text: ObservedText, tmp_path: Path
) -> None:
    head = FAITHFUL[name]()
    write_export(export_head(head, TARGET, model), tmp_path / "out", "# Card")
    loaded = PublishedHead.open(tmp_path / "out")
    before, after = drafts(head, text), drafts(loaded, text)
    assert torch.equal(before.tokens, after.tokens)
    assert torch.allclose(before.logits, after.logits, atol=1e-4)
    assert not [f for f in check_head(loaded, TARGET) if f.severity != "note"]
    assert (tmp_path / "out" / "README.md").read_text("utf-8") == "# Card"


def test_the_portable_eagle3_profile(model: CausalLM) -> None:
    result = export_head(eagle3_head(), TARGET, model)
    config = {
        key: value for key, value in result.config.items() if key not in ("torch_dtype", "mlp_bias")
    }
    assert config == published.EAGLE3_CONFIG
    names = {name.replace("layers.0.", "midlayer.") for name in published.EAGLE3_SHAPES}
    assert result.tensors.keys() == names | {"d2t", "t2d"}
    assert (result.tensors["d2t"].dtype, result.tensors["t2d"].dtype) == (torch.int64, torch.bool)


def test_layer_ids_stand_where_each_engine_reads_them(model: CausalLM) -> None:
    config = export_head(other_layers(), TARGET, model).config
    assert config[AUX] == [1, 4, 6]
    assert config["eagle_config"][AUX] == [0, 3, 5]


UNFAITHFUL: dict[str, tuple[Make, str]] = {
    "norm-output": (lambda: eagle3_head(norm_output=True), "llama.cpp"),
    "norm-before-residual": (lambda: eagle3_head(norm_before_residual=True), "SGLang"),
    "window": (
        lambda: eagle3_head(layer_types=["sliding_attention"], sliding_window=8),
        "window",
    ),
    "another-target": (lambda: eagle3_head(vocab_size=VOCAB), "vocab_size"),
}


@pytest.mark.parametrize("name", UNFAITHFUL)
def test_what_cannot_be_exported_faithfully_is_refused(name: str, model: CausalLM) -> None:
    make, words = UNFAITHFUL[name]
    target = replace(TARGET, vocab_size=VOCAB + 1) if name == "another-target" else TARGET
    with pytest.raises(UnsupportedModelError, match=words):
        export_head(make(), target, model)


def test_the_engines_that_need_not_load_it_do_not_count(model: CausalLM) -> None:
    head = eagle3_head(norm_output=True)
    result = export_head(head, TARGET, model, (VLLM, SGLANG))
    assert result.config["norm_output"] is True
    with pytest.raises(UnsupportedModelError, match=r"llama\.cpp"):
        export_head(head, TARGET, model, (LLAMA_CPP,))


def test_a_copy_of_the_targets_embedding_is_left_out(model: CausalLM) -> None:
    table = model.embed(torch.arange(VOCAB)[None])[0]
    copied = with_tensors(eagle3_head(), embed_tokens__weight=table)
    assert copied.without_copy(model).tensors.keys() == eagle3_head().weights.keys()
    other = with_tensors(eagle3_head(), embed_tokens__weight=table * 1.1)
    assert other.without_copy(model) is other


def test_nothing_is_written_over(model: CausalLM, tmp_path: Path) -> None:
    result = export_head(eagle3_head(), TARGET, model)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists already"):
        write_export(result, tmp_path, "")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_head_is_read_from_its_files(tmp_path: Path) -> None:
    head = eagle3_head()
    (tmp_path / "config.json").write_text(json.dumps(head.config), encoding="utf-8")
    (tmp_path / "forerun.json").write_text('{"target": {"name": "tiny"}}', encoding="utf-8")
    save_file(dict(head.tensors), tmp_path / "model.safetensors")
    read = PublishedHead.open(tmp_path)
    assert (read.config, read.record) == (head.config, {"target": {"name": "tiny"}})
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in head.tensors.items())
