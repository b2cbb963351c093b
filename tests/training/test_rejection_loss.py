"""The rejection loss and its gradient against autograd's own, over whole matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forerun.training.losses import CHUNK, _rows, compiled, rejection_loss

ROWS, VOCAB, WIDE = CHUNK + 9, 23, 8


def _case(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    # A tenth of the target's mass lies outside the draft's vocabulary.
    probs = 0.9 * torch.softmax(2 * normal(31, VOCAB), -1)
    index = torch.randint(31, (ROWS,), generator=generator)
    states, matrix = normal(ROWS, WIDE), normal(VOCAB, WIDE)
    return states, matrix, probs, index, torch.rand(ROWS, generator=generator)


def _plain(
    states: Tensor, matrix: Tensor, probs: Tensor, index: Tensor, weights: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    logs, target = torch.log_softmax(states @ matrix.T, -1), probs[index]
    accepted = torch.minimum(target, logs.exp()).sum(-1)
    kl = (target * (target.log() - logs)).sum(-1)
    return (weights * ((1 - share) * (1 - accepted) + share * kl)).sum(), accepted.detach()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_loss_and_gradient_are_those_of_autograd(share: float) -> None:
    states, matrix, probs, index, weights = _case(1)
    trained = (states.requires_grad_(), matrix.requires_grad_())
    loss, accepted = rejection_loss(*trained, probs, index, weights, share)
    (3 * loss).backward()
    ours = [tensor.grad for tensor in trained]
    for tensor in trained:
        tensor.grad = None
    expected, overlap = _plain(*trained, probs, index, weights, share)
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(accepted, overlap)
    for own, tensor in zip(ours, trained, strict=True):
        torch.testing.assert_close(own, tensor.grad, rtol=1e-4, atol=1e-5)


def test_a_frozen_matrix_gets_no_gradient() -> None:
    states, matrix, probs, index, weights = _case(2)
    rejection_loss(states.requires_grad_(), matrix, probs, index, weights, 0.5)[0].backward()
    assert matrix.grad is None
    assert states.grad is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_rows_are_those_of_plain_code() -> None:
    """Where there is a compiler; otherwise the plain code is compared with itself."""
    generator = torch.Generator().manual_seed(3)
    logits, target = (torch.randn(CHUNK, 1024, generator=generator) for _ in range(2))
    inputs = (logits, target.softmax(-1), torch.rand(CHUNK), torch.tensor(0.4))
    for ours, plain in zip(compiled(_rows, 1024)(*inputs), _rows(*inputs), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
