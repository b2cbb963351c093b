"""A head's layers are read from its config: values that no model has are refused, naming the file."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.heads.config import read_layers
from forerun.heads.layers import borrowed_rows
from forerun.models.config import as_transformers

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 99,
    "max_position_embeddings": 77,
}


def test_what_a_config_leaves_out_is_as_in_transformers() -> None:
    shape = read_layers(LLAMA, "config.json")
    theirs = as_transformers(shape.config)
    assert (shape.num_kv_heads, shape.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (shape.norm_eps, shape.activation) == (theirs.rms_norm_eps, theirs.hidden_act)
    assert shape.config.rope_parameters == theirs.rope_parameters
    assert (shape.attention_bias, shape.mlp_bias) == (theirs.attention_bias, theirs.mlp_bias)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_windows_are_those_that_the_config_names(kind: str) -> None:
    """Of families, too, in which transformers knows none."""
    both = {
        "model_type": kind,
        "num_hidden_layers": 2,
        "sliding_window": 7,
        "num_key_value_heads": 2,
    }
    named = {**LLAMA, **both, "layer_types": ["sliding_attention", "full_attention"]}
    assert read_layers(named, "config.json").windows == (7, None)
    off = {"use_sliding_window": False}
    assert read_layers({**named, **off}, "config.json").windows == (None, None)
    with pytest.raises(CheckpointError, match="sliding_window is 0"):
        read_layers({**named, "sliding_window": 0}, "config.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", "1"),
        ("num_hidden_layers", 1.5),
        ("num_hidden_layers", 10**19),
        ("hidden_act", ["silu"]),
        ("attention_bias", "false"),
        ("mlp_bias", {}),
        ("hidden_size", 65),
    ],
)
def test_values_that_no_model_has(key: str, value: object) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=r"config\.json"):
        read_layers({**LLAMA, key: value}, "config.json")


class Head:
    """A target that consists of an embedding and an output head."""

    hidden_size, device, dtype = 24, torch.device("cpu"), torch.float32

    def __init__(self, tied: bool, cap: float | None = None) -> None:
        torch.manual_seed(0)
        self._table, self._rows, self._cap = torch.randn(50, 24), torch.randn(50, 24), cap
        self._rows = self._table if tied else self._rows
        self.widths: list[int] = []

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._table[token_ids]

    def lm_head(self, hidden: Tensor) -> Tensor:
        self.widths.append(hidden.shape[1])
        logits = hidden @ self._rows.T
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_an_output_head_are_those_that_it_multiplies_with(tied: bool) -> None:
    target, ids = Head(tied), torch.tensor([3, 49, 0])
    rows = borrowed_rows(target, ids)  # type: ignore[arg-type]
    assert rows is not None
    assert torch.allclose(rows, target._rows[ids])
    assert (target.widths == [2]) is tied, "a tied head runs the probes alone"
    for cap in (1.0, 100.0):
        assert borrowed_rows(Head(tied, cap), ids) is None  # type: ignore[arg-type]
