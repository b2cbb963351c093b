"""Trained weights and held-out prompts for forerun; data only, found by importlib.resources."""
