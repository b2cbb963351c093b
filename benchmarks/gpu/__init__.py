"""The GPU kit: checks, measures and trains on a machine with an accelerator and without a network.

python -m benchmarks.gpu check | measure | train | pack; docs/gpu.md says how.
"""
