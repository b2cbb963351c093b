"""Speculative decoding inside transformers' `generate`, by its argument `custom_generate`.

model.generate(**inputs, custom_generate=forerun.hf.generate)
"""

from forerun.hf.decoding import generate

__all__ = ["generate"]
