"""Drawing of tokens from probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun._native import rows as native
from forerun.adjustments import Prefix
from forerun.randomness import Purpose, Randomness


def draw(probs: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Draw one token from each row of `probs` [N, V], by inversion of its cumulative distribution."""
    if native.takes(probs):
        return native.draw(probs, uniforms)
    return draw_tensor(probs, uniforms).tolist()


def draw_tensor(probs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Draw as `draw` does, in torch; int64 [N], left on the device of `probs`."""
    # MPS has no float64; everywhere else the sum of a long float32 row would round visibly.
    wide = probs if probs.device.type == "mps" else probs.double()
    cumulative = wide.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    points = torch.tensor(uniforms, dtype=wide.dtype, device=wide.device)[:, None] * total
    chosen = torch.searchsorted(cumulative, points, right=True)
    # If rounding carries a point up to the total, the last token with probability is taken.
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(chosen, last).flatten()


def couple(probs: Tensor, noise: Tensor) -> list[int]:
    """Draw argmax(log prob + Gumbel noise) from each row, both [N, V]; distributed as `probs`."""
    return native.couple(probs, noise) if native.takes(probs) else _coupled(probs, noise).tolist()


def _coupled(probs: Tensor, noise: Tensor) -> Tensor:
    return (probs.to(noise.dtype).log() + noise.to(probs.device)).argmax(-1)


def draw_plain(probs: Tensor, prefix: Prefix, randomness: Randomness) -> int:
    """Draw a token from one row [1, V] as plain decoding does, coupled if the request has a seed."""
    if prefix.params.seed is not None or prefix.params.greedy:
        return draw_coupled(probs, [prefix], randomness)[0]
    uniform = randomness.uniform(prefix.request.seed, prefix.position, Purpose.EMIT)
    return draw(probs, [uniform])[0]


def draw_coupled(probs: Tensor, prefixes: Sequence[Prefix], randomness: Randomness) -> list[int]:
    """Draw one token from each row, with the noise that every other draw for the same position uses."""
    if not native.takes(probs):
        return coupled_tensor(probs, prefixes, randomness).tolist()
    if all(prefix.params.greedy for prefix in prefixes):
        return native.top(probs)
    if randomness.by_key_alone:
        return native.couple_keys(probs, [_key(prefix) for prefix in prefixes])
    return native.couple(probs, _noise(probs, prefixes, randomness))


def coupled_tensor(probs: Tensor, prefixes: Sequence[Prefix], randomness: Randomness) -> Tensor:
    """Draw as `draw_coupled` does, in torch; int64 [N], left on the device of `probs`."""
    if all(prefix.params.greedy for prefix in prefixes):
        return probs.argmax(-1)
    return _coupled(probs, _noise(probs, prefixes, randomness))


def _key(prefix: Prefix) -> tuple[int, int]:
    return prefix.request.seed, prefix.position


def _noise(probs: Tensor, prefixes: Sequence[Prefix], randomness: Randomness) -> Tensor:
    """The noise of each row's position, [N, V]."""
    keys = [_key(prefix) for prefix in prefixes]
    noise = {key: randomness.gumbel(*key, probs.shape[-1], probs.device) for key in set(keys)}
    return torch.stack([noise[key] for key in keys])
