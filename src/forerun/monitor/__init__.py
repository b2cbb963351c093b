"""Measures speculation in any decoding loop: acceptance, cost, and whether it pays."""

from forerun.monitor.monitor import DisableAdvice, Monitor
from forerun.monitor.snapshot import Snapshot

__all__ = ["DisableAdvice", "Monitor", "Snapshot"]
