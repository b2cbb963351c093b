"""Output heads: from a head's hidden states to logits of the tokens that it can draft."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.contracts import CausalLM, Linear, Module, Modules
from forerun.errors import CheckpointError

# Number of columns of the target's output head that are read off at once.
_COLUMNS = 64


def draft_ids(offsets: Tensor, vocab_size: int, name: str) -> Tensor:
    """The target's ids of the tokens that a head can draft, [Vd].

    Args:
        offsets: `d2t` [Vd]; index plus offset is the target's id.
        vocab_size: the target's.
        name: name of the head, for messages.

    Raises:
        CheckpointError: for ids outside the vocabulary, or an id that occurs twice.
    """
    ids = torch.arange(len(offsets)) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{name}: d2t leads to token ids {int(ids.min())} to {int(ids.max())}, outside the target's "
            f"{vocab_size}; it must hold offsets (target id minus draft id), not ids."
        )
    if len(set(ids.tolist())) != len(ids):
        raise CheckpointError(f"{name}: d2t leads to a token id twice; make the head again.")
    return ids


class OutputRows:
    """The output head over the draft's vocabulary: the head's own, or those rows of the target's.

    Args:
        target: lends its output head.
        modules: builder of its parts.
        ids: the target's ids of the rows; None for all.
        own: the head's own rows [Vd, hidden_size], if it has any.
        norm: weights [hidden_size] of the norm before it, if there is one.
        eps: eps of that norm.
    """

    def __init__(
        self,
        target: CausalLM,
        modules: Modules,
        ids: Tensor | None,
        own: Tensor | None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> None:
        self._target, self._ids = target, ids
        weight = own
        if weight is None and ids is not None:
            weight = borrowed_rows(target, ids)
        self.linear: Linear | None = None
        """The single product that the output head consists of; None if the target's own runs."""
        self._norm: Module | None = None
        if weight is not None:
            self.linear = modules.linear(weight, norm=norm, eps=eps)
        elif norm is not None:
            self._norm = modules.norm(norm, eps=eps)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [..., Vd] of hidden states [..., hidden_size], which must be normed if there is no norm."""
        if self.linear is not None:
            return self.linear(hidden)
        if self._norm is not None:
            hidden = self._norm(hidden)
        shape = hidden.shape
        logits = self._target.lm_head(hidden.reshape(1, -1, shape[-1]))
        if self._ids is not None:
            logits = logits[..., self._ids.to(logits.device)]
        return logits.reshape(*shape[:-1], -1)


def borrowed_rows(target: CausalLM, ids: Tensor) -> Tensor | None:
    """Rows [Vd, hidden_size] of the target's output head, read off by running unit vectors through it.

    None if it is more than one product (for example with capped logits or a bias). The cost is one
    pass of the output head over `hidden_size` tokens, on its own backend.
    """
    size, ids = target.hidden_size, ids.to(target.device)
    unit = torch.eye(size, dtype=target.dtype, device=target.device)
    parts = [
        target.lm_head(unit[None, at : at + _COLUMNS])[0][:, ids] for at in range(0, size, _COLUMNS)
    ]
    rows = torch.cat(parts).T.contiguous()
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(1, 1, size, generator=generator).to(target.device, target.dtype)
    given = target.lm_head(probe * 4)[0, 0, ids].float()
    ours = (rows.float() @ probe[0, 0].float()) * 4
    # Quantized activations and bf16 round by about a hundredth; a cap or a bias differs by far more.
    spread = given.std().clamp(min=1e-6)
    return rows if float((given - ours).abs().mean() / spread) < 0.1 else None
