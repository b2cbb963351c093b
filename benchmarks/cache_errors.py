"""How far keys and values in codes are from what they were, by the dimensions that share a scale.

python -m benchmarks.cache_errors

A model reads a text on torch in fp32; its keys and values are then stored and read again. An error is the
root mean square of the differences over that of the numbers; keys are turned before they are stored, values
are tried as they are and turned.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.long_context import DOCUMENT
from forerun.costs.precision import CODED, GROUPS, bytes_per_value
from forerun.engine.load import load
from forerun.kv_cache import StaticCache
from forerun.kv_cache.codes import Codes
from forerun.models.running import prefill


def error(numbers: Tensor, kv_dtype: str, group: int, turned: bool) -> float:
    """Of numbers [n, head_dim] in groups of so many, relative."""
    parts = numbers.reshape(1, 1, -1, group)
    store = Codes((1, 1, parts.shape[2], group), kv_dtype, torch.float32, parts.device, turned)
    whole = (slice(None), slice(None), slice(None))
    store[whole] = parts
    return float((store[whole] - parts).norm() / parts.norm())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache_errors")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--document", nargs="+", default=list(DOCUMENT), help="UTF-8 files")
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args(arguments)
    engine = load(options.model, False, backend="torch", dtype="fp32", max_context=options.tokens)
    assert engine.tokenizer is not None, "loaded by name"
    text = "\n\n".join(Path(name).read_text(encoding="utf-8") for name in options.document)
    ids = list(engine.tokenizer.encode(text))[: options.tokens]
    cache = engine.target.new_cache(1, len(ids))
    assert isinstance(cache, StaticCache)
    prefill(engine.target, cache, 0, ids)
    keys, values = (
        torch.cat([layer[0].flatten(0, 1) for layer in stored if isinstance(layer, Tensor)])
        for stored in (cache.keys, cache.values)
    )
    print(f"{len(keys)} keys and as many values of {keys.shape[1]} numbers")
    for kv_dtype in CODED:
        for group in (group for group in GROUPS if keys.shape[1] % group == 0):
            memory = 2 / bytes_per_value(kv_dtype, group, 2)
            turned = error(values, kv_dtype, group, turned=True)
            print(
                f"{kv_dtype} in groups of {group}: 1/{memory:.2f} of bf16's memory; keys "
                f"{error(keys, kv_dtype, group, turned=True):.2%}, values "
                f"{error(values, kv_dtype, group, turned=False):.2%}, turned {turned:.2%}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
