"""The settings that follow from what is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kv.request import FULL, KvRequest, settings_of
from forerun.compression import METHODS, NO_COMPRESSION, Compression, KeptTokens
from forerun.errors import ConfigError, UnknownNameError


def labels(**options: Any) -> list[str]:
    return [setting.label for setting in settings_of(KvRequest(**options))]


def test_every_method_is_crossed_with_every_size() -> None:
    found = labels(ratios=(0.5,), budgets=(256,), kv_dtypes=())
    assert found[0] == FULL
    wanted = {f"{name} {size}" for name in METHODS.names() for size in ("ratio 0.5", "budget 256")}
    assert set(found[1:]) == wanted
    assert len(found) == 1 + len(wanted)


def test_a_precision_is_a_model_of_its_own() -> None:
    request = KvRequest(kv_dtypes=("int8",), methods=("h2o",), ratios=(0.5,))
    full, coded, evicting = settings_of(request)
    assert (coded.kv_dtype, coded.compression) == ("int8", NO_COMPRESSION)
    assert full.kv_dtype == evicting.kv_dtype == "auto"


def test_combined_is_every_method_in_every_precision_too() -> None:
    options: dict[str, Any] = {
        "kv_dtypes": ("int8", "int4"),
        "methods": ("h2o",),
        "ratios": (0.5, 0.75),
    }
    found = labels(**options, combined=True)
    apart = labels(**options)
    assert found[: len(apart)] == apart
    assert set(found[len(apart) :]) == {
        f"h2o ratio {ratio}, {dtype}" for ratio in (0.5, 0.75) for dtype in ("int8", "int4")
    }
    assert len(found) == len(apart) + 4
    both = settings_of(KvRequest(**options, combined=True))[-1]
    assert both.kv_dtype == "int4"
    assert both.compression == Compression(kv_method="h2o", kv_compression_ratio=0.75)


def test_a_setting_evicts_as_is_asked_for() -> None:
    full, setting = settings_of(
        KvRequest(
            kv_dtypes=(),
            methods=("h2o",),
            ratios=(),
            budgets=(64,),
            kept=KeptTokens(kv_recent=8),
        )
    )
    assert not full.compression.is_on
    assert setting.compression == Compression(kv_method="h2o", kv_recent=8, kv_budget=64)
    assert setting.kv_dtype == "auto"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ("h3o",)}, "h3o.*Did you mean 'h2o'"),
        ({"ratios": (1.0,)}, "ratios"),
        ({"contexts": (8,)}, "contexts"),
        ({"depths": (1.5,)}, "depths"),
        ({"timed_tokens": 9, "scored_tokens": 8}, "timed_tokens is 9 of 8 scored_tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        KvRequest(**options)


def test_a_budget_below_what_always_stays_names_the_numbers() -> None:
    request = KvRequest(methods=("h2o",), ratios=(), budgets=(64,))
    with pytest.raises(ConfigError, match="kv_budget is 64 and 4 sinks with 128 recent"):
        settings_of(request)
