"""Medusa: several heads on the target's last hidden state, each for a token further ahead.

A head is a few residual blocks x + silu(linear(x)) and an output matrix (Cai et al., arXiv
2401.10774). It reads the input of the target's own output head: the state, after the final norm, of
the newest token that the target has run. The target's output head predicts the token after that
one; head i, counted from 0, predicts the token at distance i + 2. No head sees the tokens that the
others draft.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.errors import CheckpointError
from forerun.heads.config import refuse_other_forwards, whole
from forerun.heads.files import HeadFiles, refuse_other_target
from forerun.heads.layers import OutputRows, Shapes, draft_ids, vocabulary_of
from forerun.models.modules import modules_for

MOST_HEADS = 32
_MOST = 2**31
# Names in Medusa's own code: head, layer, part; the output matrix follows the last layer.
_NUMBERED = re.compile(r"(\d+)\.(\d+)(\.linear)?\.(weight|bias)")
_IDS = ("token_map", "d2t", "t2d")
_PREFIX = re.compile(r"medusa_heads?\.")
# Keys of equal meaning in the configs of Medusa, TensorRT-LLM, and vLLM or the speculators library.
_HEADS = ("medusa_num_heads", "num_medusa_heads", "num_heads")
_LAYERS = ("medusa_num_layers", "num_medusa_layers", "num_hidden_layers")
_HIDDEN = ("hidden_size", "medusa_hidden_size")
_VOCAB = ("vocab_size", "medusa_vocab_size")


@dataclass(frozen=True)
class MedusaConfig:
    """Architecture of a file's heads.

    Args:
        hidden_size, vocab_size: the target's.
        num_heads: number of heads, the most tokens of a draft.
        num_layers: residual blocks of each head.
        draft_vocab_size: number of tokens that can be drafted.
        bias: the linear parts of the blocks have a bias.
        own_outputs: each head has an output matrix of its own; otherwise all share one, the file's
            or the target's.
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int
    draft_vocab_size: int
    bias: bool = True
    own_outputs: bool = False

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        vocab_size: int,
        where: str,
    ) -> MedusaConfig:
        """Read the config of Medusa's own code, TensorRT-LLM, vLLM or the speculators library.

        Medusa's own config says little; the rest is inferred from the tensors.

        Args:
            config: the config.
            shapes: shapes of the tensors, by the names of `tensor_name`.
            vocab_size: the target's, for a file that does not state it.
            where: source of the config, for messages.

        Raises:
            CheckpointError: for values that are missing or impossible.
            UnsupportedModelError: for a variant with another forward.
        """
        refuse_other_forwards(config, where)
        first = [*shapes.get("blocks.0.layers.0.weight", ()), None][0]
        output = [
            *shapes.get("lm_heads.0.weight", shapes.get("lm_head.weight", ())),
            vocab_size,
        ][0]

        def read(keys: Sequence[str], most: int, default: int | None) -> int:
            """The value of the first of some keys that the config has."""
            there = [key for key in keys if config.get(key) is not None]
            return whole(config, [*there, keys[0]][0], where, 1, most, default)

        vocab = read(_VOCAB, _MOST, output)
        return cls(
            read(_HIDDEN, _MOST, first),
            vocab,
            read(_HEADS, MOST_HEADS, None),
            read(_LAYERS, MOST_HEADS, 1),
            # The speculators library writes 0 for the target's whole vocabulary.
            whole(config, "truncated_vocab_size", where, 0, vocab, 0) or vocab,
            bool(config.get("medusa_fc_bias")) or "blocks.0.layers.0.bias" in shapes,
            not config.get("original_lm_head", "lm_heads.0.weight" not in shapes),
        )

    def published(self) -> dict[str, Any]:
        """The config.json in the form that vLLM reads."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "truncated_vocab_size": self.draft_vocab_size,
            "medusa_fc_bias": self.bias,
            "original_lm_head": not self.own_outputs,
        }

    def block_names(self, part: str = "weight") -> list[list[str]]:
        """Names of the linear parts, head by head."""
        layers = range(self.num_layers)
        return [
            [f"blocks.{head}.layers.{i}.{part}" for i in layers] for head in range(self.num_heads)
        ]

    def output_names(self) -> list[str]:
        """Names of the heads' own output matrices."""
        return [
            f"lm_heads.{head}.weight" for head in range(self.num_heads if self.own_outputs else 0)
        ]

    def shapes(self, rows: int | None = None) -> Shapes:
        """Shapes of the tensors that a file must have, by name.

        Args:
            rows: rows of output matrices, if not `draft_vocab_size`.
        """
        hidden, rows = self.hidden_size, rows or self.draft_vocab_size
        shapes: Shapes = {}
        for weights, biases in zip(self.block_names(), self.block_names("bias"), strict=True):
            shapes |= dict.fromkeys(weights, (hidden, hidden))
            shapes |= dict.fromkeys(biases if self.bias else (), (hidden,))
        return shapes | dict.fromkeys(self.output_names(), (rows, hidden))

    def optional(self, rows: int | None = None) -> Shapes:
        """Shapes of the tensors that a file may have."""
        output = (rows or self.draft_vocab_size, self.hidden_size)
        # vLLM also takes the first head's output matrix as the one for all.
        shared = {} if self.own_outputs else {"lm_head.weight": output, "lm_heads.0.weight": output}
        ids = (self.draft_vocab_size,)
        return {**shared, "token_map": ids, "d2t": ids, "t2d": (self.vocab_size,)}


class MedusaHead:
    """The heads of a file on their target's backend.

    Args:
        target: the target that they were trained for.
        config: config of the heads.
        tensors: tensors by the names of vLLM's layout, with `d2t` for a reduced vocabulary.
        name: name of the heads in messages.

    Raises:
        ForerunError: the target's error, if its final norm and output head do not run alone.
    """

    def __init__(
        self, target: CausalLM, config: MedusaConfig, tensors: Mapping[str, Tensor], name: str
    ) -> None:
        self.config, self._target = config, target
        self.hidden_layers = (target.num_layers,)
        offsets = tensors.get("d2t")
        ids = None if offsets is None else draft_ids(offsets, config.vocab_size, name)
        self.vocabulary = vocabulary_of(target, ids)
        modules = modules_for(target)
        # All heads have the same input in their first layer, so that it is one product.
        weights = [
            _of_layer(tensors, config, layer, "weight") for layer in range(config.num_layers)
        ]
        biases = [_of_layer(tensors, config, layer, "bias") for layer in range(config.num_layers)]
        bias = torch.cat(biases[0]) if config.bias else None
        self._first = modules.linear(torch.cat(weights[0]), bias)
        self._later = [
            [modules.linear(*parts) for parts in zip_longest(*layer)]
            for layer in zip(weights[1:], biases[1:], strict=True)
        ]
        self._activate = modules.activation("silu")
        self._own = [modules.linear(tensors[output]) for output in config.output_names()]
        self._shared: OutputRows | None = None
        if not self._own:
            output = tensors.get("lm_head.weight", tensors.get("lm_heads.0.weight"))
            self._shared = OutputRows(target, modules, ids, output)
        # A first run, so that a target that lacks a part is refused now.
        self.run(torch.zeros(1, config.hidden_size, dtype=target.dtype, device=target.device), 1)

    @classmethod
    def open(cls, target: CausalLM, files: HeadFiles) -> MedusaHead:
        """Read a file's heads for a target.

        Raises:
            CheckpointError: for a broken file.
            IncompatibleDraftError: for the heads of another target.
            UnsupportedModelError: for a variant with another forward.
        """
        config, tensors = read_tensors(files, target.vocab_size)
        refuse_other_target(
            files.name, target, hidden_size=config.hidden_size, vocab_size=config.vocab_size
        )
        return cls(target, config, tensors, files.name)

    def new_cache(self, rows: int, capacity: int) -> None:
        """None: the heads read one state and keep nothing."""

    def run(self, hidden: Tensor, count: int) -> Tensor:
        """Logits [N, count, Vd] of the first heads.

        Args:
            hidden: output of the target's last layer, before its final norm, [N, hidden_size].
            count: number of heads.
        """
        normed = self._target.final_norm(hidden[None])[0]
        shape = (len(hidden), self.config.num_heads, self.config.hidden_size)
        states = normed[:, None] + self._activate(self._first(normed)).reshape(shape)
        states = states[:, :count].contiguous()
        for layer in self._later:
            inputs = states.unbind(1)
            # The activation runs on all heads as one tensor.
            products = [linear(own) for linear, own in zip(layer, inputs, strict=False)]
            states = states + self._activate(torch.stack(products, 1))
        if self._shared is not None:
            return self._shared(states)
        pairs = zip(self._own, states.unbind(1), strict=False)
        return torch.stack([output(own) for output, own in pairs], 1)


def read_tensors(files: HeadFiles, vocab_size: int) -> tuple[MedusaConfig, dict[str, Tensor]]:
    """A file's config, and its tensors by the names of vLLM's layout, with `d2t` for a reduced vocabulary.

    Output matrices are cut to the rows that can be drafted. In files of Medusa's own code all
    layers of a head are equal: it repeats one block.

    Args:
        files: the file.
        vocab_size: the target's, for a file that does not state it.

    Raises:
        CheckpointError: for a broken file.
        UnsupportedModelError: for a variant with another forward.
    """
    names = {name: tensor_name(name) for name in files.tensors}
    shapes = {names[name]: tuple(tensor.shape) for name, tensor in files.tensors.items()}
    config = MedusaConfig.read(files.config, shapes, vocab_size, files.name)
    outputs = [shape for name, shape in shapes.items() if name.startswith("lm_head")]
    # Files for vLLM may have rows for the whole vocabulary, which it cuts itself.
    rows = config.vocab_size if (config.vocab_size, config.hidden_size) in outputs else None
    tensors = files.pick(config.shapes(rows), config.optional(rows), renamed=names)
    if config.draft_vocab_size == config.vocab_size:
        return config, {name: tensor for name, tensor in tensors.items() if name not in _IDS}
    if "token_map" in tensors:
        token_map = tensors.pop("token_map").long()
        tensors["d2t"] = token_map - torch.arange(len(token_map))
    if "d2t" not in tensors:
        raise CheckpointError(
            f"{files.name} drafts {config.draft_vocab_size} of {config.vocab_size} tokens and holds neither "
            "token_map nor d2t, which say which; make it again with one of them."
        )
    ids = draft_ids(tensors["d2t"], config.vocab_size, files.name)
    # In the target's order uniform numbers pick the same tokens as over its whole vocabulary.
    ids, order = ids.sort()
    chosen = order if rows is None else ids
    tensors |= {key: own[chosen] for key, own in tensors.items() if key.startswith("lm_head")}
    return config, tensors | {"d2t": ids - torch.arange(len(ids))}


def tensor_name(name: str) -> str:
    """The name in vLLM's layout of a tensor that is stored under another, such as `0.1.linear.weight`."""
    name = _PREFIX.sub("", name, count=1)
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return name
    head, layer, linear, part = match.groups()
    if linear:
        return f"blocks.{head}.layers.{layer}.{part}"
    return f"lm_heads.{head}.{part}"


def _of_layer(
    tensors: Mapping[str, Tensor], config: MedusaConfig, layer: int, part: str
) -> list[Tensor]:
    """The weights of a layer, head by head; no biases if the heads have none."""
    if part == "bias" and not config.bias:
        return []
    return [tensors[names[layer]] for names in config.block_names(part)]
