"""Measuring: paired runs in one process, ratios rather than single times."""
