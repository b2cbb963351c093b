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
from forerun.errors import ConfigError, UnknownNameError, UnsupportedModelError
from forerun.export.check import check_head
from forerun.export.export import (
    LAYOUTS,
    describe,
    export_head,
    write_export,
)
from forerun.export.findings import LLAMA_CPP, SGLANG, VLLM
from forerun.export.head import PublishedHead
from forerun.export.layouts import VerifierModel
from forerun.export.readings import reading_of
from forerun.export.replay import ObservedText, draft
from tests.helpers import published_heads as published
from tests.helpers.published_heads import (
    AUX,
    HIDDEN,
    RANK,
    TARGET,
    VOCAB,
    dspark_head,
    eagle3_head,
    medusa_heads,
    reduced_dspark_head,
    with_tensors,
    wrapped_dspark_head,
    wrapped_eagle3_head,
)

Make = Callable[[], PublishedHead]


@pytest.fixture
def verifier(model: CausalLM) -> VerifierModel:
    return VerifierModel("owner/tiny", ("LlamaForCausalLM",), model)


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


FAITHFUL: dict[str, tuple[Make, str]] = {
    "eagle3": (eagle3_head, "eagle3"),
    "eagle3-from-speculators": (wrapped_eagle3_head, "eagle3"),
    "eagle3-other-layers": (other_layers, "eagle3"),
    "eagle3-absolute-ids": (absolute, "eagle3"),
    "eagle3-all-tokens": (without_mapping, "eagle3"),
    "eagle3-in-few-bits": (lambda: replace(eagle3_head(), in_few_bits=True), "eagle3"),
    "eagle3-scaled-rope": (two_dialects_of_rope, "eagle3"),
    "dspark": (dspark_head, "dspark"),
    "dspark-from-speculators": (lambda: wrapped_dspark_head(sample_from_anchor=True), "dspark"),
    "speculators-eagle3": (eagle3_head, "speculators"),
    "speculators-dspark": (dspark_head, "speculators"),
    "speculators-reduced-dspark": (reduced_dspark_head, "speculators"),
}


@pytest.mark.parametrize("name", FAITHFUL)
def test_an_exported_head_drafts_as_before(
    name: str, verifier: VerifierModel, text: ObservedText, tmp_path: Path
) -> None:
    make, layout = FAITHFUL[name]
    head = make()
    write_export(export_head(head, TARGET, layout, verifier), tmp_path / "out", layout, "# Card")
    loaded = PublishedHead.open(tmp_path / "out")
    before, after = drafts(head, text), drafts(loaded, text)
    assert torch.equal(before.tokens, after.tokens)
    assert torch.allclose(before.logits, after.logits, atol=1e-4)
    assert not [f for f in check_head(loaded, TARGET, LAYOUTS[layout]) if f.severity != "note"]
    assert (tmp_path / "out" / "README.md").read_text("utf-8").startswith("# Card\n\n## Exported")


def test_the_portable_eagle3_profile(verifier: VerifierModel) -> None:
    result = export_head(eagle3_head(), TARGET, "eagle3", verifier)
    config = {
        key: value for key, value in result.config.items() if key not in ("torch_dtype", "mlp_bias")
    }
    assert config == published.EAGLE3_CONFIG
    names = {name.replace("layers.0.", "midlayer.") for name in published.EAGLE3_SHAPES}
    assert result.tensors.keys() == names | {"d2t", "t2d"}
    assert (result.tensors["d2t"].dtype, result.tensors["t2d"].dtype) == (torch.int64, torch.bool)


def test_the_portable_dspark_profile(verifier: VerifierModel) -> None:
    result = export_head(dspark_head(), TARGET, "dspark", verifier)
    dropped = ("torch_dtype", "mlp_bias", "num_anchors")
    config = {key: value for key, value in result.config.items() if key not in dropped}
    assert config == published.DSPARK_CONFIG
    assert result.tensors.keys() == published.DSPARK_SHAPES.keys()


def test_layer_ids_stand_where_each_engine_reads_them(verifier: VerifierModel) -> None:
    config = export_head(other_layers(), TARGET, "eagle3", verifier).config
    assert config[AUX] == [1, 4, 6]
    assert config["eagle_config"][AUX] == [0, 3, 5]


def test_a_reduced_dspark_head_covers_the_whole_vocabulary(
    verifier: VerifierModel, text: ObservedText
) -> None:
    head = reduced_dspark_head()
    result = export_head(head, TARGET, "dspark", verifier)
    rows, chosen = result.tensors["markov_head.markov_w2.weight"], head.tensors["t2d"]
    assert rows.shape == (VOCAB, RANK)
    assert not rows[~chosen].any()
    assert "draft_vocab_size" not in result.config
    before, after = drafts(head, text), drafts(result, text)
    assert torch.allclose(after.logits[:, chosen], before.logits, atol=1e-4)


def test_speculators_need_a_name_for_the_target(model: CausalLM) -> None:
    with pytest.raises(ConfigError, match="--verifier"):
        export_head(eagle3_head(), TARGET, "speculators", VerifierModel(None, (), model))


def test_the_format_of_speculators_holds_the_embedding(
    verifier: VerifierModel, text: ObservedText
) -> None:
    result = export_head(eagle3_head(), TARGET, "speculators", verifier)
    embedding = result.tensors["embed_tokens.weight"]
    assert torch.equal(embedding, text.model.embed(torch.arange(VOCAB)[None])[0])
    assert result.config["speculators_config"]["verifier"]["name_or_path"] == "owner/tiny"


UNFAITHFUL: dict[str, tuple[Make, str, str]] = {
    "norm-output": (lambda: eagle3_head(norm_output=True), "eagle3", "llama.cpp"),
    "norm-before-residual": (lambda: eagle3_head(norm_before_residual=True), "eagle3", "SGLang"),
    "window": (
        lambda: eagle3_head(layer_types=["sliding_attention"], sliding_window=8),
        "eagle3",
        "window",
    ),
    "gated-markov": (lambda: dspark_head(markov_head_type="gated"), "dspark", "gated"),
    "own-rows": (
        lambda: with_tensors(reduced_dspark_head(), lm_head__weight=torch.ones(40, HIDDEN)),
        "dspark",
        "output head of its own",
    ),
    "own-embedding": (
        lambda: with_tensors(dspark_head(), embed_tokens__weight=torch.ones(VOCAB, HIDDEN)),
        "dspark",
        "embedding",
    ),
    "another-target": (lambda: eagle3_head(vocab_size=VOCAB), "eagle3", "vocab_size"),
    "eagle3-as-dspark": (eagle3_head, "dspark", "cannot become dspark"),
    "dspark-as-eagle3": (dspark_head, "eagle3", "cannot become eagle3"),
    "medusa": (medusa_heads, "eagle3", "their own"),
}


@pytest.mark.parametrize("name", UNFAITHFUL)
def test_what_cannot_be_exported_faithfully_is_refused(name: str, verifier: VerifierModel) -> None:
    make, layout, words = UNFAITHFUL[name]
    target = replace(TARGET, vocab_size=VOCAB + 1) if name == "another-target" else TARGET
    with pytest.raises(UnsupportedModelError, match=words):
        export_head(make(), target, layout, verifier)


def test_the_engines_that_need_not_load_it_do_not_count(verifier: VerifierModel) -> None:
    head = eagle3_head(norm_output=True)
    result = export_head(head, TARGET, "eagle3", verifier, (VLLM, SGLANG))
    assert result.config["norm_output"] is True
    with pytest.raises(UnsupportedModelError, match="SGLang"):
        export_head(eagle3_head(), TARGET, "speculators", verifier, (SGLANG,))
    with pytest.raises(UnknownNameError, match="eagle3"):
        export_head(head, TARGET, "eagle", verifier)


def test_copies_of_the_targets_matrices_are_left_out(
    model: CausalLM, verifier: VerifierModel
) -> None:
    ids = torch.arange(VOCAB)
    copies = {
        "embed_tokens__weight": model.embed(ids[None])[0],
        "lm_head__weight": verifier.lm_head(ids),
    }
    head, names = with_tensors(dspark_head(), **copies).without_copies(model)
    assert names == ["embed_tokens.weight", "lm_head.weight"]
    assert head.tensors.keys() == dspark_head().tensors.keys()
    other = with_tensors(dspark_head(), lm_head__weight=copies["lm_head__weight"] * 1.1)
    assert other.without_copies(model) == (other, [])


def test_nothing_is_written_over(verifier: VerifierModel, tmp_path: Path) -> None:
    result = export_head(eagle3_head(), TARGET, "eagle3", verifier)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists already"):
        write_export(result, tmp_path, "eagle3", "")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_bytes_beside_what_each_engine_reads(verifier: VerifierModel) -> None:
    result = export_head(eagle3_head(), TARGET, "eagle3", verifier)
    described = describe(result, "eagle3")
    total = described["weight_bytes"]
    assert total == sum(tensor.nbytes for tensor in result.tensors.values())
    read = dict.fromkeys((VLLM, SGLANG, LLAMA_CPP), total - VOCAB)
    assert described["bytes_read"] == read
    full = with_tensors(dspark_head(), lm_head__weight=torch.ones(VOCAB, HIDDEN))
    read = describe(full, "dspark")["bytes_read"]
    assert read[VLLM] - read[SGLANG] == 4 * VOCAB * HIDDEN


def test_a_head_is_read_from_its_files(tmp_path: Path) -> None:
    head = eagle3_head()
    (tmp_path / "config.json").write_text(json.dumps(head.config), encoding="utf-8")
    (tmp_path / "forerun.json").write_text('{"target": {"name": "tiny"}}', encoding="utf-8")
    save_file(dict(head.tensors), tmp_path / "model.safetensors")
    read = PublishedHead.open(tmp_path)
    assert (read.config, read.record) == (head.config, {"target": {"name": "tiny"}})
    assert read.weight_files == ("model.safetensors",)
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in head.tensors.items())
