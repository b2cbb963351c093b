"""Numbers of examples of property tests, fewer where the slow tests are left out."""

from __future__ import annotations

from hypothesis import settings


def examples(whole: int) -> settings:
    """Settings of a test that is dearer than most, with `whole` examples when all tests run."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(8, whole * profile.max_examples // 100))
