"""The adapter refuses by name what cannot be rolled back, before it loads anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from forerun.errors import CacheError, UnsupportedModelError
from forerun.models import HFModel, refuse_unsupported
from forerun.models.hf import max_context
from tests.helpers.forwards import run
from tests.helpers.tiny_models import tiny_config, tiny_model, tokens

REFUSED = {
    "mamba": "is recurrent",
    "rwkv": "is recurrent",
    "jamba": "is recurrent, wholly or in some layers",
    "qwen3_next": "is recurrent, wholly or in some layers",
    "recurrent_gemma": "is recurrent",
    "t5": "is an encoder-decoder",
    "bart": "is an encoder-decoder",
    "vit": "is no causal language model",
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
