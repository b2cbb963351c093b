"""The replay measures what a misreading costs, and says so in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from forerun.contracts import CausalLM
from forerun.export.head import LLAMA_CPP, SGLANG, VERSIONS, VLLM, PublishedHead
from forerun.export.readings import reading_of
from forerun.export.replay import ObservedText, Replay, draft, go_on, layers_read, run_readings
from forerun.export.rules import check_head
from tests.helpers.published_heads import (
    AUX,
    HIDDEN,
    TARGET,
    eagle3_head,
    head_of,
    with_tensors,
    wrapped_eagle3_head,
)


def run(head: PublishedHead, text: ObservedText) -> dict[str, Replay]:
    results = run_readings(head, TARGET, text, tuple(VERSIONS), check_head(head, TARGET))
    return {result.engine: result for result in results}


def absolute() -> PublishedHead:
    d2t = eagle3_head().tensors["d2t"]
    return with_tensors(eagle3_head(), d2t=d2t + torch.arange(len(d2t)))


def test_a_portable_head_drafts_everywhere_as_trained(text: ObservedText) -> None:
    for result in run(eagle3_head(), text).values():
        assert result.sound
        assert result.agreement == 1.0
        assert result.hits == result.trained_hits
        assert result.verdict.endswith("and drafts as it was trained")


PLANTED: dict[str, tuple[Callable[[], PublishedHead], str, str]] = {
    "norm-before-residual": (
        lambda: eagle3_head(norm_before_residual=True),
        SGLANG,
        "norm_before_residual=true",
    ),
    "norm-output": (lambda: eagle3_head(norm_output=True), LLAMA_CPP, "norm_output=true"),
    "ids-in-one-dialect": (lambda: eagle3_head(**{AUX: [1, 3, 4]}), SGLANG, "[2, 4, 5]"),
    "ids-one-further": (
        lambda: eagle3_head(**{AUX: [1, 3, 4]}, eagle_config={AUX: [1, 3, 4]}),
        SGLANG,
        "[2, 4, 5]",
    ),
    "d2t-absolute": (absolute, VLLM, "target ids"),
    "d2t-missing": (lambda: with_tensors(eagle3_head(), d2t=None), VLLM, "first ids"),
    "tied": (lambda: eagle3_head(tie_word_embeddings=True), SGLANG, "embedding"),
    "no-theta": (
        lambda: eagle3_head(rope_parameters=..., rope_theta=..., rope_scaling=...),
        VLLM,
        "rope_theta",
    ),
    "fc-bias": (
        lambda: with_tensors(eagle3_head(), fc__bias=torch.full((HIDDEN,), 3.0)),
        SGLANG,
        "fc_bias",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_misreading_is_measured(name: str, text: ObservedText) -> None:
    make, engine, words = PLANTED[name]
    result = run(make(), text)[engine]
    assert result.loads
    assert not result.sound
    assert result.agreement is not None
    assert result.agreement < 0.95
    assert words in result.verdict
    assert "because" in result.verdict


def test_an_engine_that_refuses_a_head_is_not_run(text: ObservedText) -> None:
    results = run(wrapped_eagle3_head(), text)
    assert not results[SGLANG].loads
    assert results[SGLANG].agreement is None
    assert results[SGLANG].verdict.startswith("does not load in SGLang: ")
    assert results[VLLM].sound
    assert results[LLAMA_CPP].sound


def test_a_head_that_borrows_the_targets_rows_drafts_as_one_that_brings_them(
    text: ObservedText,
) -> None:
    """No engine draws drafts of a reduced vocabulary from the target's head: none is sound."""
    whole = eagle3_head()
    rows = text.model.lm_head(torch.eye(HIDDEN)[None])[0].mT[
        whole.tensors["t2d"].nonzero().flatten()
    ]
    borrowing = head_of(
        dict(whole.config), {k: v for k, v in whole.tensors.items() if k != "lm_head.weight"}
    )
    bringing = with_tensors(whole, **{"lm_head.weight": rows})
    drafts = [draft(head, TARGET, reading_of(head, TARGET), text) for head in (borrowing, bringing)]
    assert torch.equal(drafts[0].tokens, drafts[1].tokens)
    torch.testing.assert_close(drafts[0].logits, drafts[1].logits)
    results = run(borrowing, text)
    assert not any(result.sound for result in results.values())
    assert results[SGLANG].loads
    assert "and drafts rubbish, because lm_head.weight is missing" in results[SGLANG].verdict


def test_drafts_are_tokens_of_the_draft_vocabulary(text: ObservedText) -> None:
    head = eagle3_head()
    drafted = draft(head, TARGET, reading_of(head, TARGET), text)
    chosen = head.tensors["t2d"].nonzero().flatten()
    assert torch.equal(drafted.target_ids.sort().values, chosen)
    assert set(drafted.tokens.tolist()) <= set(chosen.tolist())


def test_every_field_of_a_reading_matters_to_some_head(text: ObservedText) -> None:
    """A field that no forward reads would make the replay blind to it."""
    extra = {f"fc_norm__{index}__weight": torch.full((HIDDEN,), 2.0) for index in range(3)}
    biases = {
        f"layers__0__self_attn__{k}_proj__bias": torch.ones(n)
        for k, n in (("q", 24), ("k", 12), ("v", 12))
    }
    head = with_tensors(
        eagle3_head(),
        **extra,
        **biases,
        input_norm__weight=torch.full((3 * HIDDEN,), 0.5),
        fc__bias=torch.ones(HIDDEN),
    )
    trained = reading_of(head, TARGET)
    others: dict[str, Any] = {
        "hidden_layers": (0, 3, 7),
        "draft_ids": "none",
        "lm_head": "target",
        "window": 2,
        "activation": "gelu",
        "theta": 3.0,
    }
    base = draft(head, TARGET, trained, text)
    for field in fields(trained):
        now = getattr(trained, field.name)
        change: dict[str, Any] = {
            field.name: not now if isinstance(now, bool) else others.get(field.name)
        }
        if field.name == "later_norm":
            continue  # Of heads with several layers alone.
        changed = draft(head, TARGET, replace(trained, **change), text)
        alike = base.logits.shape == changed.logits.shape and torch.equal(
            base.logits, changed.logits
        )
        assert not alike or not torch.equal(base.tokens, changed.tokens), field.name


def test_the_layers_of_all_readings_are_asked_for() -> None:
    head = eagle3_head(**{AUX: [1, 3, 5]}, eagle_config={AUX: [1, 3, 5]})
    assert layers_read(head, TARGET, (VLLM, SGLANG)) == {1, 2, 3, 4, 5, 6}


def test_a_text_goes_on_greedily(model: CausalLM, text: ObservedText) -> None:
    tokens = text.token_ids
    assert tokens == go_on(model, tokens[:4], len(tokens))
    assert text.logits.argmax(-1)[3:-1].tolist() == tokens[4:]
