"""The command line. Its modules load torch only inside the commands that run a model."""

EXAMPLE = 'forerun generate --model smollm2 "Write a Python function that reverses a string."'
"""A command line that works."""
