"""Measurements and what they rest on: intervals, files of results, questions."""
