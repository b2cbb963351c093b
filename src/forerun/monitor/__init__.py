"""Watches speculation from outside, in any loop: what it accepts, what it costs, whether it pays."""

from forerun.monitor.evidence import Decision
from forerun.monitor.monitor import Monitor
from forerun.monitor.snapshot import Snapshot

__all__ = ["Decision", "Monitor", "Snapshot"]
