"""Sizes of decoders, limits of hardware, and the time of forwards and rounds, without torch."""
