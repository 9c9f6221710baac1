"""Doors that wait for their peers longer than tests wait for doors: what a door ends by itself, no time-out ended."""

from __future__ import annotations

HOUR_MS = 3_600_000
LONG_TIMEOUTS = {"handshake_timeout_ms": HOUR_MS, "write_timeout_ms": HOUR_MS, "authentication_delay_ms": 0}
"""Of each door's settings, what peers are not told; and wrong credentials are answered at once."""
