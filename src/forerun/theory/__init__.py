"""The mathematics of speculative decoding, in NumPy alone."""
