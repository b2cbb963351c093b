"""Every family of our own decoders writes the text that transformers writes, with and without drafts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forerun
from forerun import Engine, SamplingParams, SpeculativeConfig
from forerun.drafters.ngram import NgramDrafter
from forerun.errors import CheckpointError
from forerun.models import Checkpoint, Placement, load_model
from forerun.models.architecture import native
from forerun.models.families import FAMILIES as KNOWN
from forerun.models.in_memory import LoadedModel
from tests.helpers.backends import on_both
from tests.helpers.forwards import most_likely, run
from tests.helpers.tiny_models import FAMILIES, NATIVE, VOCAB, random_model, tiny_config

# Of several lengths, more than there are rows; the last begins as the first does.
PROMPTS = [[5, 7, 5, 7, 5], [11], [9, 2, 30, 9, 2, 30, 9, 2, 30, 8], [5, 7, 5, 7, 5, 6, 7]]
_HALF = {"rope_type": "default", "rope_theta": 1e4}
NEW = [name for name in NATIVE if FAMILIES[name][0] not in ("llama", "mistral", "qwen2", "gpt2")]


def roomy(name: str) -> Any:
    """A random model whose context holds the prompts and what follows."""
    config = tiny_config(name)
    config.max_position_embeddings = 128
    if "original_max_position_embeddings" in (config.rope_parameters or {}):
        config.rope_parameters["original_max_position_embeddings"] = 100
    config.eos_token_id = None
    return random_model(config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A family's model of transformers, and its checkpoint."""
    made: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in made:
            model, place = roomy(name), tmp_path_factory.mktemp(name)
            model.save_pretrained(place)
            made[name] = (model, place)
        return made[name]

    return get


def test_the_table_has_every_family() -> None:
    assert {FAMILIES[name][0] for name in NATIVE} == KNOWN.keys()


@on_both(NEW)
def test_greedy_text_through_windows_trees_and_ragged_batches(
    name: str, backend: str, saved: Any
) -> None:
    reference, place = saved(name)
    model = load_model(place, dtype="fp32", device="cpu", backend=backend)
    trees = SpeculativeConfig(tree="auto", num_tree_nodes=6, policy="fixed")
    # Several times the windows, and with drafts several times their length.
    for drafter, config, length in ((None, None, 8), (NgramDrafter(1, 3), trees, 14)):
        params = SamplingParams(temperature=0, max_tokens=length)
        engine = Engine(model, drafter, config, max_batch_size=2)
        texts = [list(done.token_ids) for done in engine.generate(PROMPTS, params)]
        for prompt, text in zip(PROMPTS, texts, strict=True):
            assert (text, len(text)) == (most_likely(reference, prompt, text), length)
        again = engine.generate([[*PROMPTS[0], *texts[0][: length // 2]]], params)[0]
        assert list(again.token_ids[: length // 2]) == texts[0][length // 2 :], (
            "a row's prefix is used again"
        )


def long_config() -> Any:
    """A config with other frequencies for texts of more than 8 tokens."""
    config = tiny_config("phi3-long")
    config.original_max_position_embeddings = 8
    config.rope_parameters["original_max_position_embeddings"] = 8
    return config


@on_both(["phi3-long"])
def test_a_long_context_takes_the_frequencies_of_long_texts(
    name: str, backend: str, tmp_path: Path
) -> None:
    reference = random_model(long_config())
    reference.save_pretrained(tmp_path)
    text = torch.randint(0, VOCAB, (1, 40), generator=torch.Generator().manual_seed(1))
    for context, read in ((8, 8), (64, 40)):
        model = forerun.load(
            tmp_path, False, dtype="fp32", device="cpu", backend=backend, max_context=context
        ).target
        assert model.max_context == context
        logits = run(model, model.new_cache(1, read), text[:, :read]).logits
        with torch.no_grad():
            expected = reference(text[:, :read]).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.std().item())


def test_contexts_of_one_kind_share_a_model() -> None:
    config = long_config()
    for name, limits in (("phi3-long", (8, 64)), ("llama", (64, 64))):
        loaded = LoadedModel.of(random_model(config if name == "phi3-long" else tiny_config(name)))
        run = loaded.run_config(Placement(dtype="fp32", device="cpu"))
        short, longer, longest = (loaded.load(replace(run, context=n)) for n in (8, 16, 64))
        assert (short.max_context, longest.max_context) == limits
        assert longer is longest
        assert (short is longest) == (name == "llama")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("gemma3", "hidden_activation", "tanh"),
        ("stablelm", "qk_layernorm", True),
        ("qwen3_moe", "mlp_only_layers", [1]),
        ("qwen3_moe", "decoder_sparse_step", 2),
        ("llama", "rope_parameters", {**_HALF, "partial_rotary_factor": 0.5}),
        ("phi3", "rope_parameters", {**_HALF, "rope_type": "dynamic"}),
    ],
)
def test_a_forward_that_the_decoder_lacks_is_left_to_the_adapter(
    name: str, key: str, value: Any
) -> None:
    config = tiny_config(name)
    assert native(config)
    setattr(config, key, value)
    assert not native(config)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma3", "query_pre_attn_scalar", 0),
        ("gemma2", "final_logit_softcapping", -1.0),
        ("granite", "logits_scaling", 0),
        ("granite", "residual_multiplier", float("nan")),
        ("cohere2", "logit_scale", float("inf")),
        ("smollm3", "no_rope_layers", [1]),
        ("starcoder2", "norm_epsilon", -1.0),
        ("mixtral", "num_local_experts", 0),
        ("mixtral", "num_local_experts", 30000),
        ("mixtral", "num_experts_per_tok", 6),
        ("qwen3_moe", "num_experts", None),
        ("qwen3_moe", "num_experts_per_tok", 0),
        ("qwen3_moe", "moe_intermediate_size", 0),
        ("qwen3_moe", "norm_topk_prob", "yes"),
    ],
)
def test_wrong_numbers_are_refused(name: str, key: str, value: Any, tmp_path: Path) -> None:
    random_model(tiny_config(name)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    values[key] = value
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError) as refusal:
        _ = Checkpoint.open(tmp_path).architecture
    assert "config.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)
