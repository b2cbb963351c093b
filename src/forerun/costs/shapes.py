"""Dimensions of decoder-only transformers, and the weights and work per token that follow from them.

Dimensions are those of the published `config.json` files, under the same names. Tests compare the
parameter counts that follow from them with the published ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.errors import CheckpointError, ConfigError, UnknownNameError
from forerun.options import check

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from forerun.theory.inputs import Floats

_COUNT = re.compile(r"(\d+(?:\.\d*)?)\s*([kmbt]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
# Assumptions of `of_size`: heads of 128 values, at most eight heads of keys, and one layer for each 128
# values of width. Llama 2 and 3, Qwen3 and Mistral all lie within a third of this.
_HEAD_DIM = _WIDTH_PER_LAYER = 128
_KV_HEADS = 8
_SMALLEST, _LARGEST = 10**6, 10**14


_MOST = 10**9
# Sizes that must be above zero; the other numbers may be zero.
_POSITIVE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
)
_COUNTS = ("vocab_size", "num_experts", "experts_per_token")


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder with grouped-query attention.

    Args:
        num_layers: decoder layers.
        hidden_size: width of a hidden state.
        num_heads: attention heads, a multiple of `num_kv_heads`.
        num_kv_heads: heads of keys and values.
        head_dim: width of a head.
        intermediate_size: width of a feed-forward layer, or of one expert.
        vocab_size: rows of the embedding; 0 leaves embedding and output layer out.
        tied: the output layer is the embedding.
        num_experts: experts of every feed-forward layer; 0 for a dense model.
        experts_per_token: experts that a token is routed to.
        gated: a feed-forward layer has three matrices, not two.
        name: name of the model.

    Raises:
        ConfigError: for sizes that are out of range or contradict each other.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    gated: bool = True
    name: str = "a decoder"

    def __post_init__(self) -> None:
        for name in (*_POSITIVE, *_COUNTS):
            least = 1 if name in _POSITIVE else 0
            size = check(name, getattr(self, name), int, ge=least, le=_MOST)
            object.__setattr__(self, name, size)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads is {self.num_heads} and num_kv_heads {self.num_kv_heads}; "
                "the first must be a multiple of the second."
            )
        if not min(self.num_experts, 1) <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts_per_token is {self.experts_per_token}; with {self.num_experts} experts "
                f"it must lie in [{min(self.num_experts, 1)}, {self.num_experts}]."
            )

    @property
    def expert_parameters(self) -> int:
        """Number of parameters of one expert in one layer; 0 for a dense model."""
        return self._feed_forward if self.num_experts else 0

    def experts_read(self, tokens: ArrayLike) -> Floats:
        """Number of experts of a layer that a forward of `tokens` reads; 0 for a dense model.

        With tokens routed independently and evenly, none reaches an expert with probability (1 - k/E)^n.
        Neighbours in a text agree more, so the number is an upper bound.
        """
        import numpy as np

        missed = (1.0 - self.experts_per_token / max(self.num_experts, 1)) ** np.asarray(tokens)
        return np.asarray(self.num_experts * (1.0 - missed))

    @property
    def shared_parameters(self) -> int:
        """Number of parameters that every forward reads and multiplies with.

        These are all but the experts and an untied embedding, of which a forward reads only the rows of
        its tokens.
        """
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        router = self.hidden_size * self.num_experts
        layer = attention + router + (0 if self.num_experts else self._feed_forward)
        return self.num_layers * layer + self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """Number of all parameters, without the few of the norms."""
        embedding = 0 if self.tied else self.vocab_size * self.hidden_size
        experts = self.num_layers * self.num_experts * self.expert_parameters
        return self.shared_parameters + experts + embedding

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token is multiplied with."""
        experts = self.num_layers * self.experts_per_token * self.expert_parameters
        return self.shared_parameters + experts

    @property
    def cache_values_per_token(self) -> int:
        """Number of cached values per token of a request: keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """FLOP of attention from one token to one token of its context: products with key and value."""
        return 4 * self.num_layers * self.num_heads * self.head_dim

    @property
    def _feed_forward(self) -> int:
        return (3 if self.gated else 2) * self.hidden_size * self.intermediate_size


def of_size(parameters: float, name: str | None = None) -> ModelShape:
    """A typical dense model with a number of parameters, all of which every forward reads.

    Raises:
        ConfigError: for a count outside [1e6, 1e14].
    """
    if not _SMALLEST <= parameters <= _LARGEST:
        raise ConfigError(
            f"{parameters:g} parameters are not those of a language model; "
            f"give a count in [{_SMALLEST:g}, {_LARGEST:g}], such as 70B."
        )
    # A layer has about 12 * hidden_size^2 parameters, the form of arXiv 2001.08361, table 1.
    heads = max(1, round((parameters * _WIDTH_PER_LAYER / 12) ** (1 / 3) / _HEAD_DIM))
    if heads > _KV_HEADS:
        heads = _KV_HEADS * round(heads / _KV_HEADS)
    hidden, kv_heads = heads * _HEAD_DIM, min(heads, _KV_HEADS)
    layers = max(1, round(parameters / (12 * hidden**2)))
    attention = 2 * hidden * _HEAD_DIM * (heads + kv_heads)
    # The feed-forward layers get the parameters that attention leaves.
    width = max(1, round((parameters / layers - attention) / (3 * hidden)))
    sizes = (layers, hidden, heads, kv_heads, _HEAD_DIM, width)
    return ModelShape(*sizes, vocab_size=0, name=name or f"{parameters:g}")


def find_shape(name: str) -> ModelShape:
    """A known model by its name or hub id, or a typical model by a count such as `70B`.

    Raises:
        UnknownNameError: for an unknown name; lists the known models.
        ConfigError: for a count outside [1e6, 1e14].
    """
    counted = _COUNT.fullmatch(name.strip())
    if counted is not None:
        return of_size(float(counted[1]) * _UNITS[counted[2].lower()], name.strip())
    plain = name.strip().lower().rpartition("/")[2]
    if plain not in SHAPES:
        raise UnknownNameError("model", plain or name, SHAPES)
    return SHAPES[plain]


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# Families whose feed-forward layers have two matrices; in all others a third one gates.
_PLAIN = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt",
          "opt", "persimmon", "phi", "starcoder2")  # fmt: skip


def read_shape(config: Any, name: str) -> ModelShape:
    """The dimensions in a config of transformers.

    Args:
        config: the config.
        name: name of the model.

    Raises:
        CheckpointError: for a config that lacks a dimension, or has one for each layer.
    """
    text = config.get_text_config()

    def number(*names: str, default: int | None = None) -> int:
        found = [getattr(text, key, None) for key in names]
        value = next((entry for entry in found if entry is not None), default)
        if type(value) is not int:
            raise CheckpointError(
                f"the config of {name} has no single {names[0]} (it is {value!r}); "
                "give a known model or a count such as 70B instead."
            )
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    experts = number(*_EXPERTS, default=0)
    wide = number("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    return ModelShape(
        num_layers=number("num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=hidden // heads),
        intermediate_size=number("moe_intermediate_size", default=wide) if experts else wide,
        vocab_size=number("vocab_size"),
        tied=bool(text.tie_word_embeddings),
        num_experts=experts,
        experts_per_token=number("num_experts_per_tok", default=0) if experts else 0,
        gated=text.model_type not in _PLAIN,
        name=name,
    )


_LLAMA_2, _LLAMA_3, _QWEN = 32000, 128256, 151936
_MIXTRAL = {"num_experts": 8, "experts_per_token": 2}
_QWEN_EXPERTS = {"num_experts": 128, "experts_per_token": 8}


def _published(name: str, *sizes: int, **more: Any) -> ModelShape:
    names = "num_layers hidden_size num_heads num_kv_heads head_dim intermediate_size vocab_size"
    columns: dict[str, Any] = dict(zip(names.split(), sizes, strict=True))
    return ModelShape(**columns, **more, name=name)


SHAPES = {
    shape.name: shape
    for shape in (
        # Columns: layers, hidden size, heads, key-value heads, head dimension, intermediate size, vocabulary.
        # meta-llama/Llama-2-*-hf, config.json; arXiv 2307.09288.
        _published("llama-2-7b", 32, 4096, 32, 32, 128, 11008, _LLAMA_2),
        _published("llama-2-13b", 40, 5120, 40, 40, 128, 13824, _LLAMA_2),
        _published("llama-2-70b", 80, 8192, 64, 8, 128, 28672, _LLAMA_2),
        # meta-llama/Llama-3.1-* and Llama-3.2-*, config.json; arXiv 2407.21783, table 3.
        _published("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, _LLAMA_3, tied=True),
        _published("llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, _LLAMA_3, tied=True),
        _published("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, _LLAMA_3),
        _published("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, _LLAMA_3),
        _published("llama-3.1-405b", 126, 16384, 128, 8, 128, 53248, _LLAMA_3),
        # mistralai/Mistral-7B-v0.1, Mixtral-8x7B-v0.1 and 8x22B-v0.1, config.json; arXiv 2401.04088.
        _published("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000),
        _published("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, **_MIXTRAL),
        _published("mixtral-8x22b", 56, 6144, 48, 8, 128, 16384, 32000, **_MIXTRAL),
        # Qwen/Qwen3-*, config.json; arXiv 2505.09388, tables 1 and 2.
        _published("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, _QWEN, tied=True),
        _published("qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, _QWEN, tied=True),
        _published("qwen3-4b", 36, 2560, 32, 8, 128, 9728, _QWEN, tied=True),
        _published("qwen3-8b", 36, 4096, 32, 8, 128, 12288, _QWEN),
        _published("qwen3-14b", 40, 5120, 40, 8, 128, 17408, _QWEN),
        _published("qwen3-32b", 64, 5120, 64, 8, 128, 25600, _QWEN),
        _published("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, _QWEN, **_QWEN_EXPERTS),
        _published("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, _QWEN, **_QWEN_EXPERTS),
    )
}
