"""The rate of a large matrix product in PyTorch, by precision."""

from __future__ import annotations

from time import perf_counter

import torch

SIZE = 2048


class Matrices:
    """Square matrix products, in a process of their own, without idle threads of other libraries.

    Args:
        threads: of torch.
    """

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    @torch.inference_mode()
    def matrix_product(self, precision: str) -> float | None:
        """Multiply-adds per second of one product; None where torch has no product of the precision."""
        if precision in ("fp32", "bf16"):
            dtype = torch.float32 if precision == "fp32" else torch.bfloat16
            left, right = (torch.ones(SIZE, SIZE, dtype=dtype) for _ in range(2))
            started = perf_counter()
            torch.mm(left, right)
        elif precision == "int8":
            left, right = (torch.ones(SIZE, SIZE, dtype=torch.int8) for _ in range(2))
            started = perf_counter()
            torch._int_mm(left, right)
        else:
            return None
        return SIZE**3 / (perf_counter() - started)
