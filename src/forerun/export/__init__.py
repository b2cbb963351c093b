"""Checks heads for other engines, replays them as those engines read them, and writes portable copies."""
