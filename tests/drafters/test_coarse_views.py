"""A target that drafts from the upper nibbles of its int8 cache says what it says by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

import forerun
from forerun.core import Request, View
from forerun.drafters.self_sparse import SelfSparseDrafter
from forerun.errors import CacheError
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.placement import Placement
from tests.helpers.against_plain import accepted
from tests.helpers.backends import BACKENDS
from tests.helpers.covering import covering
from tests.helpers.tiny_models import VOCAB, random_model, tokens

WHOLE = View(0, 2**31, coarse=True)
TEXTS = [tokens(1, length, seed=length)[0].tolist() for length in (90, 1, 7)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 3, "intermediate_size": 40, "head_dim": 32}
    sizes |= {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 256, "eos_token_id": 3, "bos_token_id": 2}
    path = tmp_path_factory.mktemp("coarse")
    random_model(AutoConfig.for_model("llama", **sizes)).save_pretrained(path)
    return path


def load(
    folder: Path,
    backend: str,
    view: View = WHOLE,
    *,
    kv_dtype: str = "int8",
    **options: Any,
) -> forerun.Engine:
    checkpoint = Checkpoint.open(str(folder))
    placement = Placement("fp32", "cpu", backend, kv_dtype)
    target = checkpoint.load(checkpoint.run_config(placement))
    config = forerun.SpeculativeConfig(policy="fixed", **{"num_speculative_tokens": 3} | options)
    drafter = SelfSparseDrafter(target, view)
    return forerun.Engine(target, drafter, config, max_batch_size=len(TEXTS), max_context=200)


@pytest.mark.parametrize(
    ("backend", "options"),
    covering(
        BACKENDS,
        [
            {},
            {"view": View(2, 6, coarse=True)},
            {"tree": "auto", "num_tree_nodes": 7},
        ],
    ),
    ids=str,
)
def test_output_is_plain_decodings(folder: Path, backend: str, options: dict[str, Any]) -> None:
    engine = load(folder, backend, **options)
    for params in (
        SamplingParams(temperature=0, max_tokens=20),
        SamplingParams(temperature=0.7, seed=3, max_tokens=20),
    ):
        accepted(engine, TEXTS, params)


@pytest.mark.parametrize("backend", BACKENDS)
def test_upper_nibbles_agree_more_often_than_not(folder: Path, backend: str) -> None:
    """A random model has no margins; a trained one agrees nearly always."""
    engine = load(folder, backend)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    stats = forerun.Stats.total(one.stats for one in engine.generate(TEXTS, params))
    assert stats.num_accepted_tokens_per_pos[0] > 0.5 * stats.num_drafts


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_of_another_precision_is_refused(folder: Path, backend: str) -> None:
    with pytest.raises(CacheError, match="load the model with kv_dtype 'int8'"):
        load(folder, backend, kv_dtype="bf16")


def test_what_it_reads_by_context(folder: Path) -> None:
    engine = load(folder, "torch")
    drafter = engine.drafter
    assert isinstance(drafter, SelfSparseDrafter)
    greedy = SamplingParams(temperature=0)
    shares = [
        drafter.cost_share(Request(0, [1] * length, length, greedy, seed=0, row=0)) or 0.0
        for length in (1, 50, 200)
    ]
    assert 1 > shares[0] > shares[1] > shares[2] > 0.5


def test_options_by_name() -> None:
    options = {"sparse_coarse": True, "sparse_window": 100, "sparse_sinks": 3, "sparse_blocks": 0}
    engine = forerun.load("zoo", {"method": "self_sparse", **options}, kv_dtype="int8")
    assert isinstance(engine.drafter, SelfSparseDrafter)
    assert engine.drafter.view == View(3, 100, coarse=True)
    params = SamplingParams(temperature=0, max_tokens=12)
    plain = [event.token_id for event in engine.stream_plain("class A:", params)]
    assert list(engine.generate("class A:", params).token_ids) == plain
