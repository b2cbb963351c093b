"""The five groups of `python -m forerun.bench.cpu`: each measures and holds itself against goals."""
