"""DSpark: a head that drafts a block in one pass, with a bigram correction from token to token.

The block is the newest token and mask tokens. Each of its positions sees the whole block and, as
keys and values, a fusion of the target's hidden states of all tokens before (DFlash, arXiv
2602.06036). The Markov head turns the distribution at position k into a true conditional: it adds a
low-rank term of the token drafted before (DeepSpec). Without a Markov head it is DFlash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.contracts import CausalLM, Linear
from forerun.core import Batch
from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.heads.config import flag, layer_ids, read_layers, refuse_other_forwards, whole
from forerun.heads.files import HeadFiles, refuse_other_target
from forerun.heads.layers import (
    BlockCache,
    OutputRows,
    Shapes,
    ascending,
    embedding,
    layer,
    layer_shapes,
)
from forerun.models.architecture import Architecture
from forerun.models.modules import modules_for

# Keys of variants whose forward differs.
_VARIANTS = ("conv_kernel_size", "selector_rank", "projector_type")


@dataclass(frozen=True)
class DSparkConfig:
    """A published config.json, converted to one set of keys.

    Args:
        layers: architecture of its decoder layers; `vocab_size` is the target's.
        target_layers: the target's hidden layers that are fused, numbered as in
            `ForwardOutput.hidden`.
        block_size: tokens of the block: the newest one and masks.
        mask_token_id: token in the place of the block's unknown tokens.
        markov_rank: rank of the bigram term; 0 for none.
        draft_vocab_size: number of tokens that can be drafted.
        confidence: inputs of the confidence head: `hidden`, `markov` (hidden states and the
            embedding of the token before), or empty for none.
        sample_from_anchor: the newest token's own position predicts the next one; otherwise the
            k-th mask predicts the k-th token.
        causal: positions of the block see only those before them.
    """

    layers: Architecture
    target_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int
    markov_rank: int
    draft_vocab_size: int
    confidence: str = ""
    sample_from_anchor: bool = True
    causal: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str) -> DSparkConfig:
        """Read the config of DeepSpec, z-lab's DFlash, or the speculators library.

        Raises:
            CheckpointError: for values that are missing or impossible.
            UnsupportedModelError: for variants with another forward.
        """
        wrapped = config.get("transformer_layer_config")
        layers = dict(wrapped if isinstance(wrapped, dict) else config)
        layers.setdefault("model_type", "qwen3")
        shape = read_layers(layers, where)
        nested = config.get("dflash_config")
        values = {**(nested if isinstance(nested, dict) else {}), **config}
        dflash = _is_dflash(values)
        _refuse_variants(values, where)
        rank = 0 if dflash else whole(values, "markov_rank", where, 0, 1 << 16)
        confidence = ""
        if flag(values, "enable_confidence_head", where):
            joined = flag(values, "confidence_head_with_markov", where)
            confidence = "markov" if joined and rank else "hidden"
        from_anchor = flag(values, "sample_from_anchor", where, not dflash and wrapped is None)
        # Configs number hidden states, or the layers whose outputs they are.
        key, added = "target_layer_ids", 1
        if values.get(key) is None and values.get("aux_hidden_state_layer_ids") is not None:
            key, added = "aux_hidden_state_layer_ids", 0
        target_layers = layer_ids(values, key, where, added)
        if target_layers is None:
            raise CheckpointError(f"{where}: {key} is None; it must list layers of the target.")
        return cls(
            shape,
            target_layers,
            whole(values, "block_size", where, 1 if from_anchor else 2, 64),
            whole(values, "mask_token_id", where, 0, shape.vocab_size - 1),
            rank,
            whole(values, "draft_vocab_size", where, 1, shape.vocab_size, shape.vocab_size),
            confidence,
            from_anchor,
            flag(values, "causal", where) or flag(values, "causal_head", where),
        )

    @property
    def draft_tokens(self) -> int:
        """Most tokens of a draft: one for each position that predicts."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    def as_stored(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> DSparkConfig:
        """The config completed from the weights: existence and inputs of the confidence head.

        Some configs do not state them.
        """
        weight = tensors.get("confidence_head.proj.weight")
        if weight is None or config.get("enable_confidence_head") is not None:
            return self
        joined = tuple(weight.shape[-1:]) != (self.layers.hidden_size,)
        return replace(self, confidence="markov" if joined and self.markov_rank else "hidden")

    def shapes(self, target_hidden: int) -> Shapes:
        """Shapes of the tensors that a file must have, by published name."""
        layers, hidden = self.layers, self.layers.hidden_size
        shapes: Shapes = {
            "fc.weight": (hidden, len(self.target_layers) * target_hidden),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
        }
        for index in range(layers.num_layers):
            shapes |= layer_shapes(layers, index)
        if self.markov_rank:
            shapes["markov_head.markov_w1.weight"] = (layers.vocab_size, self.markov_rank)
            shapes["markov_head.markov_w2.weight"] = (self.draft_vocab_size, self.markov_rank)
        if self.confidence:
            width = hidden + (self.markov_rank if self.confidence == "markov" else 0)
            shapes["confidence_head.proj.weight"] = (1, width)
            shapes["confidence_head.proj.bias"] = (1,)
        if self.draft_vocab_size < layers.vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional(self) -> Shapes:
        """Shapes of the tensors that a file may have; the target's own replace those that it lacks."""
        hidden, vocab = self.layers.hidden_size, self.layers.vocab_size
        return {
            "lm_head.weight": (self.draft_vocab_size, hidden),
            "embed_tokens.weight": (vocab, hidden),
            "t2d": (vocab,),
        }


class BlockBatch(Batch):
    """Tokens that all see each other, and all tokens that their rows already hold."""

    @cached_property
    def tree_mask(self) -> NDArray[np.bool_]:
        """Mask [B, width, width], all true."""
        return _all_true(len(self), self.width)


@lru_cache(maxsize=8)
def _all_true(rows: int, width: int) -> NDArray[np.bool_]:
    mask = np.ones((rows, width, width), dtype=np.bool_)
    # All batches share the mask.
    mask.setflags(write=False)
    return mask


class DSparkHead:
    """A DSpark head on its target's backend.

    Args:
        target: the target that it was trained for.
        config: config of the head.
        tensors: tensors by published name.
        name: name of the head in messages.
    """

    def __init__(
        self,
        target: CausalLM,
        config: DSparkConfig,
        tensors: Mapping[str, Tensor],
        name: str,
    ) -> None:
        modules = modules_for(target)
        shape, eps = config.layers, config.layers.norm_eps
        self.config, self._target, self.name = config, target, name
        self.hidden_layers = config.target_layers
        ids, tensors = ascending(tensors, shape.vocab_size, name)
        self._fc = modules.linear(tensors["fc.weight"])
        self._hidden_norm = modules.norm(tensors["hidden_norm.weight"], eps=eps)
        self._norm = modules.norm(tensors["norm.weight"], eps=eps)
        self._layers = [layer(modules, shape, tensors, index) for index in range(shape.num_layers)]
        self._output = OutputRows(target, modules, ids, tensors.get("lm_head.weight"))
        self.vocabulary = self._output.vocabulary
        self._before: Tensor | None = None
        self._markov: Linear | None = None
        if config.markov_rank:
            self._before = self._take(tensors["markov_head.markov_w1.weight"])
            self._markov = modules.linear(tensors["markov_head.markov_w2.weight"])
        self._confidence: tuple[Tensor, Tensor] | None = None
        if config.confidence:
            weight, bias = (tensors[f"confidence_head.proj.{part}"] for part in ("weight", "bias"))
            self._confidence = (self._take(weight), self._take(bias))
        self._embed = embedding(target, tensors)
        masks = torch.full((1, config.block_size), config.mask_token_id, device=target.device)
        self._masks = self._embed(masks)

    @classmethod
    def open(cls, target: CausalLM, files: HeadFiles) -> DSparkHead:
        """Read a head for a target.

        Raises:
            CheckpointError: for a broken file.
            IncompatibleDraftError: for the head of another target.
            UnsupportedModelError: for variants with another forward.
        """
        config = DSparkConfig.read(files.config, files.name)
        config = config.as_stored(files.tensors, files.config)
        refuse_other_target(
            files.name,
            target,
            hidden_size=config.layers.hidden_size,
            vocab_size=config.layers.vocab_size,
        )
        if max(config.target_layers) > target.num_layers:
            raise CheckpointError(
                f"{files.name} reads the target's layer {max(config.target_layers) - 1}, and "
                f"{target.name} has {target.num_layers}; give a head that was trained for it."
            )
        tensors = files.pick(config.shapes(target.hidden_size), config.optional())
        return cls(target, config, tensors, files.name)

    def new_cache(self, rows: int, capacity: int) -> BlockCache:
        """An empty cache of keys and values, with additional room for the block."""
        return BlockCache(self._layers, rows, capacity + self.config.block_size)

    def run_context(self, cache: BlockCache, rows: Sequence[int], states: Sequence[Tensor]) -> None:
        """Append the keys and values of tokens that the target has run.

        Args:
            cache: a cache of this head.
            rows: rows of the cache.
            states: the target's hidden states for the tokens of each row, joined, [m, W].
        """
        if len({len(own) for own in states}) > 1:
            for row, own in zip(rows, states, strict=True):
                self.run_context(cache, [row], [own])
            return
        context = self._hidden_norm(self._fc(torch.stack(list(states))))
        batch = Batch.after(cache, rows, [[0] * len(own) for own in states])
        for run, own in zip(self._layers, cache.layers, strict=True):
            run.append(context, batch, own)

    def run_block(self, cache: BlockCache, rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Normed hidden states of the positions that predict, [B, draft_tokens, hidden_size].

        Args:
            cache: a cache of this head; its length is unchanged afterwards.
            rows: rows of the cache.
            tokens: the newest token of each row, which the target has not run.
        """
        count = self.config.block_size
        newest = self._embed(torch.tensor([tokens], device=self._masks.device))[0]
        masks = self._masks[:, 1:].expand(len(rows), -1, -1)
        hidden = torch.cat((newest.unsqueeze(1), masks), dim=1)
        kind = Batch if self.config.causal else BlockBatch
        batch = kind.after(cache, rows, [[0] * count] * len(rows))
        lengths = [cache.length(row) for row in rows]
        try:
            for run, own in zip(self._layers, cache.layers, strict=True):
                hidden = run([hidden], batch, own)
        finally:
            for row, length in zip(rows, lengths, strict=True):
                cache.trim(row, length)
        first = count - self.config.draft_tokens
        return self._norm(hidden[:, first:].contiguous())

    def base_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the draft's vocabulary before the bigram term, [..., Vd]."""
        return self._output(hidden)

    def add_markov(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """Add the bigram term after each token, if there is one, to logits [N, Vd], in place."""
        if self._markov is not None and self._before is not None:
            self._markov.add(self._embedded_before(tokens), logits)

    def _embedded_before(self, tokens: Sequence[int]) -> Tensor:
        assert self._before is not None
        if len(tokens) == 1:
            return self._before[tokens[0]].unsqueeze(0)
        return self._before[list(tokens)]

    def confidence(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor | None:
        """Logit of the probability that the token drafted after each of `tokens` is accepted, [N].

        None without a confidence head.

        Args:
            hidden: hidden states of the positions that predict, [N, hidden_size].
            tokens: the token before each.
        """
        if self._confidence is None:
            return None
        weight, bias = self._confidence
        inputs = hidden
        if self.config.confidence == "markov":
            inputs = torch.cat((hidden, self._embedded_before(tokens)), dim=-1)
        return (inputs @ weight[0]) + bias

    def _take(self, weight: Tensor) -> Tensor:
        return weight.to(self._target.device, self._target.dtype)


def _is_dflash(values: Mapping[str, Any]) -> bool:
    """True if a config is that of DFlash, which has no Markov head."""
    names = values.get("architectures")
    named = isinstance(names, list) and any(str(name).startswith("DFlash") for name in names)
    return named or values.get("speculators_model_type") == "dflash"


def _refuse_variants(values: Mapping[str, Any], where: str) -> None:
    refuse_other_forwards(values, where)
    for key in _VARIANTS:
        if values.get(key) is not None:
            raise UnsupportedModelError(
                f"{where} is a variant with {key}, whose forward differs; DSpark and DFlash are read."
            )
    kind = values.get("markov_head_type", "vanilla")
    if kind != "vanilla":
        raise UnsupportedModelError(
            f"{where} has a Markov head of type {shown(kind)}; the type 'vanilla' is read."
        )
