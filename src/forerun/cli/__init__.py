"""The command line. Its modules load torch only inside the commands that run a model."""

EXAMPLE = 'forerun generate --model smollm2 "Why is the sky blue?"'
"""A command line that works."""
