"""Measurements on the user's machine."""
