"""An adapter after an early exit of a target: a decoder layer that reads the exit's hidden states.

Kangaroo (arXiv 2404.18911) has an attention and a norm between the exit and the target's output
head. Here it is a whole decoder layer, as in other heads, and the output head has only the rows of
the draft's vocabulary. Nothing else of the target is copied or run again: its first layers draft,
and their keys and values stay in its cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.errors import CheckpointError
from forerun.heads import CONFIG
from forerun.heads.config import read_layers, whole
from forerun.heads.files import HeadFiles, refuse_other_target
from forerun.heads.layers import BlockCache, OutputRows, Shapes, ascending, layer, layer_shapes
from forerun.models.architecture import Architecture
from forerun.models.modules import modules_for

ARCHITECTURE = "ExitAdapterModel"
"""Architecture named in an adapter's config.json; the layout is forerun's own."""


@dataclass(frozen=True)
class LayerSkipConfig:
    """Architecture of an adapter.

    Args:
        layers: architecture of its decoder layers; its `hidden_size` and `vocab_size` are the
            target's.
        exit_layer: number of the target's layers below the exit.
        num_target_layers: number of all of the target's layers.
        draft_vocab_size: number of tokens that it drafts from.
    """

    layers: Architecture
    exit_layer: int
    num_target_layers: int
    draft_vocab_size: int

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str) -> LayerSkipConfig:
        """Read the content of a config.json.

        Args:
            config: the content.
            where: its source, for messages.

        Raises:
            CheckpointError: for values that no adapter has.
            UnsupportedModelError: for layers of another type than Llama's.
        """
        if "exit_layer" not in config:
            raise CheckpointError(
                f"{where} has no exit_layer: it is not that of an adapter behind an exit; give the directory "
                "of one, as 'forerun train layer_skip' writes it."
            )
        layers = read_layers(config, where)
        total = whole(config, "num_target_layers", where, 2)
        below = whole(config, "exit_layer", where, 1, total - 1)
        return cls(
            layers, below, total, whole(config, "draft_vocab_size", where, 1, layers.vocab_size)
        )

    def shapes(self) -> Shapes:
        """Shapes of the adapter's tensors, by name."""
        shapes: Shapes = {"norm.weight": (self.layers.hidden_size,)}
        for index in range(self.layers.num_layers):
            shapes |= layer_shapes(self.layers, index)
        if self.draft_vocab_size != self.layers.vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes


class LayerSkipHead:
    """An adapter on its target's backend.

    Args:
        target: the target that it was trained for; it lends rows of its output head.
        config: config of the adapter.
        tensors: tensors by name, see `LayerSkipConfig.shapes`.
        name: name of the adapter in messages.

    Raises:
        CheckpointError: for weights that cannot run.
    """

    def __init__(
        self, target: CausalLM, config: LayerSkipConfig, tensors: Mapping[str, Tensor], name: str
    ) -> None:
        self.config = config
        shape, modules = config.layers, modules_for(target)
        self._layers = [layer(modules, shape, tensors, i) for i in range(shape.num_layers)]
        ids, tensors = ascending(tensors, target.vocab_size, name)
        norm = tensors["norm.weight"]
        self._output = OutputRows(target, modules, ids, None, norm, shape.norm_eps)
        self.vocabulary = self._output.vocabulary

    @classmethod
    def open(cls, target: CausalLM, files: HeadFiles) -> LayerSkipHead:
        """Read an adapter for a target.

        Raises:
            CheckpointError: for a broken file.
            IncompatibleDraftError: for the adapter of another target.
        """
        config = LayerSkipConfig.read(files.config, str(files.directory / CONFIG))
        refuse_other_target(
            files.name,
            target,
            hidden_size=config.layers.hidden_size,
            vocab_size=config.layers.vocab_size,
            num_layers=config.num_target_layers,
        )
        return cls(target, config, files.pick(config.shapes()), files.name)

    def new_cache(self, rows: int, capacity: int) -> BlockCache:
        """An empty cache of `rows` rows of `capacity` tokens each."""
        return BlockCache(self._layers, rows, capacity)

    def run(self, rows: Sequence[int], states: Sequence[Tensor], cache: BlockCache) -> Tensor:
        """Run tokens after those of the cache's rows; logits [B, draft_vocab_size] after each last one.

        Args:
            rows: rows of the cache.
            states: for each row the exit's hidden states of its tokens, [n, hidden_size].
            cache: a cache of this adapter.
        """
        batch = Batch.after(cache, rows, [[0] * len(own) for own in states])
        hidden = pad_sequence(list(states), batch_first=True)
        for run, own in zip(self._layers, cache.layers, strict=True):
            hidden = run([hidden], batch, own)
        last = [row[count - 1] for row, count in zip(hidden, batch.counts, strict=True)]
        return self._output(torch.stack(last))
