"""Counter-based random numbers: every number is a pure function of its key; there is no state.

A key is (seed, position, purpose, node). Draft draws and acceptance uniforms use the committed
length as their position; it grows every round, so no key comes up twice and no uniform that a
rejected branch has seen is ever used again. The noise of coupled drawing is keyed by (seed,
position of the token) alone, so that target and draft share it.

The generator is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), started at a hash of the key.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from forerun import _native
from forerun._native import rows as native

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Purpose(enum.IntEnum):
    """Purpose of a random number; numbers of different purposes are independent."""

    DRAFT = 1
    ACCEPT = 2
    EMIT = 3
    NOISE = 4


class Key(NamedTuple):
    """The arguments that determine a random number."""

    seed: int
    position: int
    purpose: Purpose
    node: int = 0


def fresh_seed() -> int:
    """A seed for a request that named none, from the operating system."""
    return secrets.randbits(63)


class Randomness:
    """The source of all random numbers of an engine.

    Args:
        record: called with the key of every number drawn; for tests and audits.
    """

    def __init__(self, record: Callable[[Key], None] | None = None) -> None:
        self._record = record

    @property
    def by_key_alone(self) -> bool:
        """True if numbers depend on keys alone and are not recorded, so that the kernels may draw them."""
        return type(self) is Randomness and self._record is None

    def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
        """A number in [0, 1) with 53 random bits."""
        if self._record is not None:
            self._record(Key(seed, position, purpose, node))
        if _native.AVAILABLE:
            return native.uniform(seed, position, purpose, node)
        state = _state(Key(seed, position, purpose, node))
        return (_mix((state + _GOLDEN) & _MASK) >> 11) * 2.0**-53

    def gumbel(
        self, seed: int, position: int, size: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Standard Gumbel noise for the token at `position`, float64 [size] (float32 on MPS).

        The kernels and every device compute their own logarithm, so noise from different places
        differs in its last bits. Within one place all draws for a position share the same noise.
        """
        key = Key(seed, position, Purpose.NOISE)
        if self._record is not None:
            self._record(key)
        where = torch.device(device)
        if _native.AVAILABLE and where.type == "cpu":
            return native.noise(seed, position, size)
        made_on = torch.device("cpu") if where.type == "mps" else where
        counters = torch.arange(1, size + 1, dtype=torch.int64, device=made_on)
        bits = _mix_tensor(counters * _signed(_GOLDEN) + _signed(_state(key)))
        # 52 bits and a half: never 0 nor 1, where the noise would be infinite.
        uniform = (_shift_right(bits, 12).double() + 0.5) * 2.0**-52
        noise = -torch.log(-torch.log(uniform))
        return noise if where.type != "mps" else noise.float().to(where)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _state(key: Key) -> int:
    state = 0
    for part in key:
        state = _mix(((state + _GOLDEN) & _MASK) ^ (part & _MASK))
    return state


def _signed(value: int) -> int:
    """An unsigned 64-bit number as the signed number with the same bits.

    torch multiplies int64 modulo 2^64.
    """
    return value - 2**64 if value >= 2**63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own shift of int64 copies the sign."""
    return torch.bitwise_and(value >> bits, 2 ** (64 - bits) - 1)


def _mix_tensor(value: Tensor) -> Tensor:
    value = (value ^ _shift_right(value, 30)) * _signed(_FIRST)
    value = (value ^ _shift_right(value, 27)) * _signed(_SECOND)
    return value ^ _shift_right(value, 31)
