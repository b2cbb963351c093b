"""Every test has an empty home, and skips that are not listed fail where `--strict-skips` is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.files import cache_folder
from tests.helpers.skips import ALLOWED

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("turn", [0, 1])
def test_home_and_cache_are_empty(turn: int, empty_home: Path) -> None:
    assert Path.home() == empty_home == Path(os.environ["HOME"])
    folder = cache_folder("costs")
    assert folder.is_relative_to(empty_home)
    assert not empty_home.exists()
    folder.mkdir(parents=True)


def test_skips_that_are_not_listed_fail(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.helpers.skips import *")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skipif(True, reason="no accelerator")
        def test_on_a_gpu(): ...

        @pytest.mark.skipif(True, reason="no compiled kernels")
        def test_on_the_kernels(): ...

        def test_inside():
            pytest.skip("the wheel is not installed")

        @pytest.mark.xfail
        def test_expected():
            assert False
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(skipped=3, xfailed=1)
    strict = pytester.runpytest_inprocess("--strict-skips")
    strict.assert_outcomes(skipped=1, xfailed=1, failed=1, errors=1)
    strict.stdout.fnmatch_lines(
        ["*the wheel is not installed: tests/helpers/skips.py does not list*"]
    )


def test_no_kernels_is_no_allowed_reason() -> None:
    assert not ALLOWED.search("built without kernels")
