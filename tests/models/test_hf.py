"""The adapter refuses by name what cannot be rolled back, before it loads anything."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forerun.core import Tree
from forerun.errors import CacheError, CheckpointError, MemoryLimitError, UnsupportedModelError
from forerun.models import Checkpoint, HFModel, Placement, describe
from forerun.models.config import check_config
from forerun.models.hf import load_adapter, max_context, refuse_unsupported
from tests.helpers.forwards import run
from tests.helpers.tiny_models import VOCAB, close, tiny_config, tiny_model, tokens

REFUSED = {
    "mamba": "is recurrent",
    "rwkv": "is recurrent",
    "jamba": "is recurrent, wholly or in some layers",
    "qwen3_next": "is recurrent, wholly or in some layers",
    "recurrent_gemma": "is recurrent",
    "t5": "is an encoder-decoder",
    "bart": "is an encoder-decoder",
    "vit": "is not a causal language model",
    "mistral3": r"wraps a language model \(mistral\) in a larger one",
    "qwen2_5_vl": "is a model of more than text",
    "bloom": "takes no positions",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_name(kind: str) -> None:
    from transformers import AutoConfig

    with pytest.raises(UnsupportedModelError, match=REFUSED[kind]) as caught:
        refuse_unsupported(AutoConfig.for_model(kind), "some/model")
    assert str(caught.value).startswith(f"some/model ({kind}) ")


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("lfm2", ["conv", "full_attention"]),
        ("llama4_text", ["chunked_attention", "full_attention"]),
    ],
)
def test_odd_layers_are_refused(kind: str, layers: list[str]) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, num_hidden_layers=2, layer_types=layers)
    with pytest.raises(UnsupportedModelError, match="cache cannot be rolled back"):
        refuse_unsupported(config, "some/model")


@pytest.mark.parametrize("kind", ["gpt_neox", "gemma2", "opt", "phi3", "mixtral", "starcoder2"])
def test_not_refused(kind: str) -> None:
    from transformers import AutoConfig

    refuse_unsupported(AutoConfig.for_model(kind), "some/model")


def test_layers_of_several_sizes_are_described() -> None:
    """gemma4's head size is one of each layer; a cache was once asked for one of the whole model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "gemma4_text", hidden_size=24, intermediate_size=40, num_attention_heads=4, vocab_size=VOCAB,
        num_hidden_layers=2, num_key_value_heads=2, head_dim=8, global_head_dim=16, num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"], hidden_size_per_layer_input=0,
    )  # fmt: skip
    check_config(config, "config.json")
    model = HFModel(AutoModelForCausalLM.from_config(config).eval(), "some/model")
    cache = model.new_cache(1, 8)
    run(model, cache, tokens(1, 5))
    assert cache.nbytes == 5 * describe(config).cache_bytes_per_token(torch.float32)


def test_a_config_of_several_models_is_refused() -> None:
    from transformers import AutoConfig

    with pytest.raises(UnsupportedModelError, match=r"config\.json describes several models"):
        check_config(AutoConfig.for_model("musicgen"), "config.json")


class Forgetful(nn.Module):
    """A model that ignores one of the things that it is given."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self.inner: Any = tiny_model("gpt_neox")
        self.ignored = ignored
        self.config, self.device, self.dtype = self.inner.config, self.inner.device, torch.float32

    def forward(self, **inputs: Any) -> Any:
        inputs[self.ignored] = None
        return self.inner(**inputs)


@pytest.mark.parametrize(
    ("ignored", "message"),
    [("past_key_values", "keeps no cache"), ("attention_mask", "does not follow tree attention")],
)
def test_the_probe_notices(ignored: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        HFModel(Forgetful(ignored), "some/model")


SMALL = {"vocab_size": VOCAB, "max_position_embeddings": 64, "pad_token_id": 0}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "openai-gpt": ({"n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 4}, "keeps no cache"),
    "xlm": ({"emb_dim": 24, "n_layers": 2, "n_heads": 4}, "keeps no cache"),
    "xmod": ({"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
             r"fails in transformers .*Input language unknown"),
    # Without `is_decoder` every token sees the later ones.
    "bert": ({"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
             "does not follow tree attention masks"),
}  # fmt: skip


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("kind", UNFIT)
def test_what_fails_the_probe_is_refused_by_name(kind: str, draft: bool, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    values, message = UNFIT[kind]
    config = AutoConfig.for_model(kind, **SMALL | values)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    opened, placement = Checkpoint.open(tmp_path), Placement(device="cpu")
    run_config = opened.run_config(placement)
    if draft:
        run_config = opened.draft_run_config(placement, run_config)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        opened.load(run_config)
    assert str(caught.value).startswith(f"{tmp_path} ({kind}) ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["gemma4_unified_assistant", "blt"])
def test_a_cache_that_transformers_cannot_make_is_refused_by_name(kind: str) -> None:
    from transformers import AutoConfig

    with pytest.raises(UnsupportedModelError, match=rf"\({kind}\) has a cache of its own kind"):
        refuse_unsupported(AutoConfig.for_model(kind), "some/model")


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_a_probe_without_memory_says_so(kind: type[Exception]) -> None:
    reference = tiny_model("gpt_neox")

    def failing(*_: Any, **__: Any) -> Any:
        raise kind("no memory")

    reference.forward = failing
    with pytest.raises(MemoryLimitError, match="not enough memory to run some/model"):
        HFModel(reference, "some/model")


def test_windows_are_those_of_the_code() -> None:
    """Every sliding layer of gemma2 and none of moshi's uses the window of the config."""
    assert HFModel(tiny_model("gemma2"), "gemma2").windows["sliding_attention"] == 3
    assert set(HFModel(tiny_model("moshi"), "moshi").windows.values()) == {None}


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_a_window_that_is_placed_otherwise_is_refused(family: str) -> None:
    """A window that is one token longer than the config's shows in the probe."""
    reference = tiny_model(family)
    inner = reference.forward

    def longer(*args: Any, attention_mask: Any = None, **inputs: Any) -> Any:
        if attention_mask is None:
            reference.config.sliding_window += 1
        try:
            return inner(*args, attention_mask=attention_mask, **inputs)
        finally:
            if attention_mask is None:
                reference.config.sliding_window -= 1

    longer.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    reference.forward = longer
    with pytest.raises(UnsupportedModelError, match="does not follow tree attention masks"):
        HFModel(reference, "some/model")


def test_a_tree_at_the_end_of_the_context(load: Any) -> None:
    """Its nodes lie in more slots than the context has positions."""
    model, reference = load("gpt_neo"), tiny_model("gpt_neo")
    text = tokens(1, 64)
    cache = model.new_cache(1, 80)
    run(model, cache, text[:, :62])
    nodes = torch.cat((text[:, 62:63], tokens(1, 5, seed=1), text[:, 63:]), dim=1)
    logits = run(model, cache, nodes, trees=[Tree((-1, 0, 0, 0, 0, 0, 0))]).logits
    close(logits[0, [0, 6]], reference(text).logits[0, 62:])


def test_context_ends_where_earlier_tokens_would_change() -> None:
    config = tiny_config("gpt_neox")
    config.rope_parameters = {"rope_type": "longrope", "original_max_position_embeddings": 16}
    assert max_context(config, "model") == 16
    with pytest.raises(UnsupportedModelError, match="no max_position_embeddings"):
        max_context(object(), "model")


def test_cache_of_the_adapter(load: Any) -> None:
    model = load("gpt_neox")
    cache = model.new_cache(2, 8)
    assert (cache.capacity, cache.nbytes, cache.length(1)) == (8, 0, 0)
    run(model, cache, tokens(1, 5))
    assert cache.nbytes == 2 * 3 * 5 * 24 * 4
    cache.trim(0, 2)
    assert (cache.nbytes, cache.length(0)) == (2 * 3 * 2 * 24 * 4, 2)
    with pytest.raises(CacheError, match="row 2 is not in this cache; it has rows 0 to 1"):
        run(model, cache, tokens(1, 1), [2])
    with pytest.raises(CacheError, match="at least 1 of each"):
        model.new_cache(0, 8)


def test_a_quantized_checkpoint_that_cannot_be_loaded_is_refused_as_one(tmp_path: Path) -> None:
    """Its files are not to blame."""
    from transformers import AutoConfig

    tiny_model("gpt_neox").save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    arguments = (tmp_path, config, torch.float32, torch.device("cpu"), "some/model")
    with pytest.raises(UnsupportedModelError, match="some/model is quantized in a way"):
        load_adapter(*arguments)
    (tmp_path / "model.safetensors").unlink()
    del config.quantization_config
    with pytest.raises(CheckpointError, match="transformers cannot load"):
        load_adapter(*arguments)
