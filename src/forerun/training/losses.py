"""What training minimizes, in nats a token."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of `targets` [B, n] under `logits` [B, n, V]."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def distillation_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean KL(teacher || student) over all positions; both [B, n, V].

    Acceptance is 1 - total variation (Leviathan et al., arXiv 2211.17192, corollary 3.6), which
    this bounds from below through Pinsker's inequality, and this is smooth.
    """
    teacher = functional.log_softmax(teacher_logits.float(), dim=-1)
    student = functional.log_softmax(logits.float(), dim=-1)
    return functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1).mean()
