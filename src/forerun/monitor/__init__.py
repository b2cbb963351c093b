"""Measures speculation in any decoding loop: acceptance, cost, and whether it pays."""

from forerun.monitor.evidence import DisableAdvice
from forerun.monitor.monitor import Monitor
from forerun.monitor.snapshot import Snapshot

__all__ = ["DisableAdvice", "Monitor", "Snapshot"]
