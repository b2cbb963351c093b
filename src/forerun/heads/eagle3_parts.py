"""An EAGLE head on its target's backend: the published weights as modules of torch or of the CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from forerun.contracts import CausalLM, ChainRequest, HeadParts, Module, Modules
from forerun.core import Batch, Draft, Tree
from forerun.heads.blocks import BlockCache, layer
from forerun.heads.eagle3 import Eagle3Weights
from forerun.heads.output import OutputRows
from forerun.models.modules import modules_for
from forerun.sampling import DraftVocabulary


class Eagle3Head:
    """An EAGLE head on its target's backend.

    A slot of its cache belongs to a token of the text. The head reads that token's state together
    with the token after it, and its output predicts the one after that.

    Args:
        weights: the stored head.
        target: the target that it drafts for; it lends the parts that the head lacks.

    Raises:
        IncompatibleDraftError: for another target than that of its training.
        CheckpointError: for weights that cannot run.
    """

    def __init__(self, weights: Eagle3Weights, target: CausalLM) -> None:
        weights.refuse_other(target)
        self.config, self._target = weights.config, target
        tensors, shape, modules = weights.tensors, weights.config.layers, modules_for(target)
        self.hidden_layers = self.config.layers_of(target)

        def norm(name: str) -> Module | None:
            weight = tensors.get(f"{name}.weight")
            return None if weight is None else modules.norm(weight, eps=shape.norm_eps)

        first = (
            ("input_layernorm",) if self.config.regression else ("input_layernorm", "hidden_norm")
        )
        own = self.config.norm_before_residual
        self._layers = [layer(modules, shape, tensors, 0, first, normed_residual=own)]
        self._layers += [layer(modules, shape, tensors, i) for i in range(1, shape.num_layers)]
        self._fc = modules.linear(tensors["fc.weight"], tensors.get("fc.bias"))
        self._joined_norm = norm("input_norm")
        # Either the state for the next step is normed, or the output head norms it.
        self._norm = norm("norm") if self.config.norm_output else None
        fused = range(self.config.num_fused if self.config.fc_norm else 0)
        self._each_norm = [norm(f"fc_norm.{i}") for i in fused]
        self._embed = _embedding(weights, target)
        self._head, self.vocabulary = _output_head(weights, target, modules)
        parts = self._parts(weights)
        self._chains = None if parts is None else modules.head_chains(parts)

    def _parts(self, weights: Eagle3Weights) -> HeadParts | None:
        """The parts for drafting chains in one call; None for a head of another composition."""
        if self.config.regression or self._head.linear is None:
            return None
        norms = self._each_norm if self._joined_norm is None else [self._joined_norm]
        return HeadParts(
            [norm for norm in norms if norm is not None],
            self._fc,
            self._layers,
            self._norm,
            self._head.linear,
            () if self.vocabulary is None else self.vocabulary.token_ids,
            weights.tensors.get("embed_tokens.weight"),
            self._target.vocab_size,
        )

    @property
    def drafts_chains(self) -> bool:
        """True if `draft_chains` is available."""
        return self._chains is not None

    def draft_chains(
        self, requests: Sequence[ChainRequest], states: Sequence[Tensor], cache: BlockCache
    ) -> list[Draft]:
        """Draft chains side by side in one call, see `forerun.contracts.HeadChains`.

        The result equals that of `fuse`, `run` and `logits` step by step, bit for bit.
        """
        assert self._chains is not None
        return self._chains.draft(cache.layers, requests, states)

    def new_cache(self, rows: int, capacity: int) -> BlockCache:
        """An empty cache of `rows` rows of `capacity` tokens each."""
        return BlockCache.of(self._layers, rows, capacity)

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states [B, n, W] into the head's input [B, n, hidden_size]."""
        if self.config.regression:
            return self._target.final_norm(states)
        if self._joined_norm is not None:
            states = self._joined_norm(states)
        if self._each_norm:
            parts = torch.split(states, self.config.target_hidden_size, dim=-1)
            normed = zip(self._each_norm, parts, strict=True)
            states = torch.cat([norm(part) for norm, part in normed if norm is not None], dim=-1)
        return self._fc(states)

    def run(
        self,
        rows: Sequence[int],
        hidden: Sequence[Tensor],
        token_ids: Sequence[Sequence[int]],
        cache: BlockCache,
        trees: Sequence[Tree | None] | None = None,
    ) -> Tensor:
        """Run tokens after those that rows of the cache hold; the output is [B, n, hidden_size].

        The next step reads this output in place of a state of the target; the output head reads it
        too.

        Args:
            rows: rows of the cache.
            hidden: for each row the states beside its tokens, [n, hidden_size]: fused ones, or the
                output of the step before.
            token_ids: for each row the token after each of those.
            cache: a cache of this head.
            trees: trees of the rows' newest nodes, see `Batch.trees`.
        """
        batch = Batch.after(cache, rows, token_ids, trees=trees)
        if len(rows) == 1:
            states, ids = hidden[0].unsqueeze(0), torch.tensor(token_ids, device=hidden[0].device)
        else:
            states = pad_sequence(list(hidden), batch_first=True)
            ids = torch.from_numpy(batch.padded(token_ids, 0)).to(states.device)
        inputs = [self._embed(ids), states]
        if self.config.regression:
            inputs = [self._fc(torch.cat(inputs, dim=-1))]
        for run, own in zip(self._layers, cache.layers, strict=True):
            inputs = [run(inputs, batch, own)]
        return inputs[0] if self._norm is None else self._norm(inputs[0])

    def logits(self, normed: Tensor) -> Tensor:
        """Logits [..., draft_vocab_size] of the output of `run`."""
        return self._head(normed)


def _embedding(weights: Eagle3Weights, target: CausalLM) -> Callable[[Tensor], Tensor]:
    """The head's own embedding of token ids [B, n], or the target's."""
    table = weights.tensors.get("embed_tokens.weight")
    if table is None:
        return target.embed
    own = table.to(target.device)
    return lambda ids: functional.embedding(ids, own).to(target.dtype)


def _output_head(
    weights: Eagle3Weights, target: CausalLM, modules: Modules
) -> tuple[OutputRows, DraftVocabulary | None]:
    """The output head for the output of `run`, and the tokens that its logits stand for.

    None instead of the tokens if they are all of the target's.
    """
    matrix, ids = weights.tensors.get("lm_head.weight"), weights.token_ids
    norm = None if weights.config.norm_output else weights.tensors.get("norm.weight")
    eps = weights.config.layers.norm_eps
    if ids is None:
        return OutputRows(target, modules, None, matrix, norm, eps), None
    # In the target's order uniform numbers pick the same tokens as over its whole vocabulary.
    ids, order = ids.sort()
    rows = None if matrix is None else matrix[order]
    vocabulary = DraftVocabulary(ids.to(target.device), target.vocab_size)
    return OutputRows(target, modules, ids, rows, norm, eps), vocabulary
