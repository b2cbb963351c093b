"""The five groups of `python -m benchmarks.cpu`: each measures figures and names their goals."""
