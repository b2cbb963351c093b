"""Every trap, planted in a good head, is named for the engines that it bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from forerun.errors import UnsupportedModelError
from forerun.export.head import EVERY, VERSIONS, PublishedHead, Severity
from forerun.export.rules import check_head
from tests.helpers import published_heads as published
from tests.helpers.published_heads import (
    AUX,
    DRAFT_VOCAB,
    HIDDEN,
    LAYER_CONFIG,
    TARGET,
    THETA,
    VOCAB,
    eagle3_head,
    head_of,
    wrapped_eagle3_head,
)
from tests.helpers.published_heads import with_tensors as tensors

ERROR, WRONG, NOTE = Severity
V, S, L = VERSIONS
ALL = (EVERY,)
Make = Callable[[], PublishedHead]
Bites = dict[tuple[str, ...], Severity]


def later_layer(head: PublishedHead) -> PublishedHead:
    extra = published.random_tensors(published.layer_shapes(1, HIDDEN))
    return tensors(head, **{name.replace(".", "__"): value for name, value in extra.items()})


def with_biases() -> PublishedHead:
    head = eagle3_head(attention_bias=True)
    sizes = {"q": 24, "k": 12, "v": 12}
    biases = {f"layers__0__self_attn__{k}_proj__bias": torch.ones(n) for k, n in sizes.items()}
    return tensors(head, **biases)


def offsets(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], PublishedHead]:
    return lambda: tensors(eagle3_head(), d2t=change(eagle3_head().tensors["d2t"].clone()))


def twice(d2t: torch.Tensor) -> torch.Tensor:
    d2t[1] = d2t[0] - 1
    return d2t


def beyond(d2t: torch.Tensor) -> torch.Tensor:
    d2t[-1] = VOCAB
    return d2t


def absolute(d2t: torch.Tensor) -> torch.Tensor:
    return d2t + torch.arange(len(d2t))


def layers(**changes: Any) -> dict[str, Any]:
    return {"transformer_layer_config": {**LAYER_CONFIG, **changes}}


FC_NORMS = {f"fc_norm__{index}__weight": torch.ones(HIDDEN) for index in range(3)}
INPUT_NORM = {"input_norm__weight": torch.ones(3 * HIDDEN)}
YARN = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0}
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 2048}

TRAPS: dict[str, tuple[Make, str, Bites]] = {
    "unknown-class": (
        lambda: eagle3_head(architectures=["LlamaForCausalLM"]),
        "architectures",
        {(V, S, L): ERROR},
    ),
    "vllm's-own-class": (
        lambda: eagle3_head(architectures=["Eagle3LlamaForCausalLM"]),
        "architectures",
        {(S,): ERROR},
    ),
    "no-model-type": (lambda: eagle3_head(model_type=...), "model_type", {(V, S): ERROR}),
    "qwen3-layers": (lambda: eagle3_head(model_type="qwen3"), "model_type", {(S, L): ERROR}),
    "norm-before-residual": (
        lambda: eagle3_head(norm_before_residual=True),
        "norm_before_residual",
        {(S,): WRONG},
    ),
    "norm-before-residual-unnamed": (
        lambda: eagle3_head(norm_before_residual=...),
        "norm_before_residual",
        {ALL: NOTE},
    ),
    "wrapped-default-residual": (
        lambda: wrapped_eagle3_head(norm_before_residual=...),
        "norm_before_residual",
        {(L, *ALL): WRONG, (S,): WRONG},
    ),
    "wrapped": (wrapped_eagle3_head, "speculators_format", {(S,): ERROR}),
    "wrapped-without-verifier": (
        lambda: wrapped_eagle3_head(speculators_config={}),
        "speculators_format",
        {(V, S): ERROR},
    ),
    "fc-norm": (lambda: tensors(eagle3_head(fc_norm=True), **FC_NORMS), "fc_norm", {(L,): ERROR}),
    "fc-norm-missing": (
        lambda: eagle3_head(fc_norm=True),
        "missing_tensor",
        {(V, L): ERROR, (S,): WRONG},
    ),
    "norm-output": (lambda: eagle3_head(norm_output=True), "norm_output", {(L,): WRONG}),
    "input-norm-missing": (
        lambda: eagle3_head(norm_before_fc=True),
        "missing_tensor",
        {(V, L): ERROR, (S,): WRONG},
    ),
    "input-norm-unflagged": (
        lambda: tensors(eagle3_head(), **INPUT_NORM),
        "unused_tensor",
        {(V, L): ERROR, (S,): NOTE},
    ),
    "inner-norm-before-fc": (
        lambda: tensors(
            eagle3_head(norm_before_fc=..., eagle_config={"norm_before_fc": True}), **INPUT_NORM
        ),
        "norm_before_fc",
        {(L,): WRONG},
    ),
    "two-layers": (
        lambda: later_layer(eagle3_head(num_hidden_layers=2)),
        "num_layers",
        {(L,): ERROR},
    ),
    "two-layers-norm": (
        lambda: later_layer(eagle3_head(num_hidden_layers=2)),
        "later_norm",
        {(S,): WRONG},
    ),
    "fc-bias": (
        lambda: tensors(eagle3_head(), fc__bias=torch.ones(HIDDEN)),
        "fc_bias",
        {(S,): WRONG},
    ),
    "qkv-bias": (with_biases, "qkv_bias", {(S,): WRONG}),
    "qkv-bias-in-llama.cpp": (with_biases, "bias", {(L,): ERROR}),
    "bias-without-tensors": (lambda: eagle3_head(attention_bias=True), "bias", {(V,): WRONG}),
    "ids-top-level-alone": (
        lambda: eagle3_head(**{AUX: [1, 3, 5]}),
        "layer_ids",
        {(S,): WRONG},
    ),
    "ids-in-eagle-config-alone": (
        lambda: eagle3_head(eagle_config={AUX: [0, 2, 4]}),
        "layer_ids",
        {(V, L): WRONG},
    ),
    "ids-one-further-in-sglang": (
        lambda: eagle3_head(**{AUX: [1, 3, 5]}, eagle_config={AUX: [1, 3, 5]}),
        "layer_ids",
        {(S,): WRONG},
    ),
    "ids-beyond-the-target": (
        lambda: eagle3_head(**{AUX: [1, 3, 8]}),
        "layer_ids",
        {ALL: ERROR, (S,): WRONG},
    ),
    "ids-descend": (
        lambda: eagle3_head(**{AUX: [5, 3, 1]}, eagle_config={AUX: [4, 2, 0]}),
        "layer_ids",
        {ALL: WRONG},
    ),
    "ids-of-other-training": (
        lambda: head_of(
            dict(eagle3_head().config), eagle3_head().tensors, {"hidden_layers": [1, 3, 4]}
        ),
        "layer_ids",
        {(V, S, L): WRONG},
    ),
    "two-features": (
        lambda: tensors(
            eagle3_head(**{AUX: [1, 3]}, eagle_config={AUX: [0, 2]}),
            fc__weight=torch.ones(HIDDEN, 2 * HIDDEN),
        ),
        "layer_ids",
        {(L,): ERROR},
    ),
    "unknown-tensor": (
        lambda: tensors(eagle3_head(), extra__weight=torch.ones(2)),
        "unused_tensor",
        {(V, L): ERROR, (S,): NOTE},
    ),
    "missing-tensor": (
        lambda: tensors(eagle3_head(), norm__weight=None),
        "missing_tensor",
        {(V, L): ERROR, (S,): WRONG},
    ),
    "missing-lm-head": (
        lambda: tensors(eagle3_head(), lm_head__weight=None),
        "lm_head",
        {(V, L): ERROR, (S,): WRONG},
    ),
    "tied": (lambda: eagle3_head(tie_word_embeddings=True), "lm_head", {(S,): WRONG}),
    "no-draft-vocab-size": (
        lambda: eagle3_head(draft_vocab_size=...),
        "draft_vocab_size",
        {(S, L): ERROR},
    ),
    "other-draft-vocab-size": (
        lambda: eagle3_head(draft_vocab_size=DRAFT_VOCAB - 1),
        "shape",
        {ALL: ERROR},
    ),
    "no-d2t": (lambda: tensors(eagle3_head(), d2t=None), "d2t", {(V, S): WRONG, (L,): ERROR}),
    "absolute-d2t": (offsets(absolute), "d2t", {(V, S): WRONG, (L,): ERROR}),
    "d2t-out-of-range": (offsets(beyond), "d2t", {ALL: ERROR}),
    "d2t-twice": (offsets(twice), "d2t", {(V, S): WRONG, (L,): ERROR}),
    "d2t-in-bf16": (offsets(torch.Tensor.bfloat16), "d2t", {ALL: WRONG}),
    "d2t-too-short": (offsets(lambda d2t: d2t[:-1]), "d2t", {ALL: ERROR}),
    "t2d-disagrees": (
        lambda: tensors(eagle3_head(), t2d=~eagle3_head().tensors["t2d"]),
        "t2d",
        {ALL: WRONG},
    ),
    "rope-dialects-disagree": (
        lambda: eagle3_head(rope_theta=10000.0),
        "rope",
        {ALL: WRONG},
    ),
    "scaling-in-one-dialect": (
        lambda: eagle3_head(
            rope_parameters={"rope_type": "default", "rope_theta": THETA}, rope_scaling=YARN
        ),
        "rope",
        {ALL: WRONG},
    ),
    "no-rope": (
        lambda: eagle3_head(rope_parameters=..., rope_theta=..., rope_scaling=...),
        "rope",
        {(V, S, L): WRONG},
    ),
    "window": (lambda: eagle3_head(**SLIDING), "window", {(S, L): WRONG}),
    "wrapped-window": (lambda: wrapped_eagle3_head(**layers(**SLIDING)), "window", {(S, L): WRONG}),
    "gelu": (lambda: eagle3_head(hidden_act="gelu"), "activation", {(V, S): ERROR, (L,): WRONG}),
    "quantized": (
        lambda: tensors(eagle3_head(), norm__weight=torch.ones(HIDDEN, dtype=torch.int8)),
        "dtype",
        {ALL: ERROR},
    ),
    "misshapen": (
        lambda: tensors(eagle3_head(), fc__weight=torch.ones(HIDDEN, HIDDEN)),
        "shape",
        {ALL: ERROR},
    ),
    "no-hidden-size": (lambda: eagle3_head(hidden_size=...), "config", {ALL: ERROR}),
    "size-that-is-text": (lambda: eagle3_head(vocab_size="many"), "config", {ALL: ERROR}),
}


def test_a_portable_head_is_clean() -> None:
    assert check_head(eagle3_head(), TARGET) == []


@pytest.mark.parametrize("name", TRAPS)
def test_a_planted_trap_is_named(name: str) -> None:
    make, trap, bites = TRAPS[name]
    found = {
        (finding.engine, finding.severity)
        for finding in check_head(make(), TARGET)
        if finding.trap == trap
    }
    wanted = {(engine, severity) for engines, severity in bites.items() for engine in engines}
    assert found == wanted


@pytest.mark.parametrize(
    "change", [{"hidden_size": 32}, {"vocab_size": 70}], ids=lambda change: next(iter(change))
)
def test_a_head_for_another_target_is_refused(change: dict[str, int]) -> None:
    found = check_head(eagle3_head(), replace(TARGET, **change))  # type: ignore[arg-type]
    assert (next(iter(change)), ERROR) in {(finding.trap, finding.severity) for finding in found}


def test_only_the_engines_that_are_asked_for_count() -> None:
    head = eagle3_head(norm_before_residual=True)
    assert check_head(head, TARGET, (V, L)) == []
    assert check_head(head, TARGET, (S,))


def test_errors_come_first() -> None:
    found = check_head(tensors(eagle3_head(norm_output=True), d2t=None, t2d=None), TARGET)
    order = [list(Severity).index(finding.severity) for finding in found]
    assert len(set(order)) > 1
    assert order == sorted(order)


def test_every_finding_says_what_to_do() -> None:
    for make, _, _ in TRAPS.values():
        for finding in check_head(make(), TARGET):
            assert finding.problem
            assert finding.remedy
            assert not (finding.problem + finding.remedy).endswith(".")


def test_unknown_heads_are_refused() -> None:
    for name in ("GPT2LMHeadModel", "MedusaModel", "Qwen3DSparkModel"):
        with pytest.raises(UnsupportedModelError, match="it checks EAGLE-3"):
            check_head(head_of({"architectures": [name]}, {}), TARGET)
