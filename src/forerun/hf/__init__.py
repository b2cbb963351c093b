"""Speculative decoding inside transformers' `generate`, by one argument:

model.generate(**inputs, custom_generate=forerun.hf.generate)
"""

from forerun.hf.decoding import generate

__all__ = ["generate"]
