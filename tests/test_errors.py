"""Every error can be told apart, said in one line and handed from process to process."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import forerun
from forerun.errors import ForerunError, UnknownNameError
from forerun.options import from_mapping
from forerun.params import SamplingParams

ARGUMENTS: dict[type, tuple[Any, ...]] = {UnknownNameError: ("method", "ngrm", ["suffix", "ngram"])}


def all_errors() -> list[type[ForerunError]]:
    """Those of the whole package, wherever they are defined."""
    for module in pkgutil.walk_packages(forerun.__path__, "forerun."):
        if module.name.startswith(("forerun.testing", "forerun.errors")):
            importlib.import_module(module.name)
    found: list[type[ForerunError]] = [ForerunError]
    for kind in found:
        found.extend(sub for sub in kind.__subclasses__() if sub not in found)
    return found


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_errors_survive_pickling(protocol: int) -> None:
    for kind in all_errors():
        error = kind(*ARGUMENTS.get(kind, ("a message",)))
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_process_pool_hands_errors_on() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(UnknownNameError, match="Did you mean 'seed'"),
    ):
        pool.submit(from_mapping, SamplingParams, {"sead": 1}).result()
