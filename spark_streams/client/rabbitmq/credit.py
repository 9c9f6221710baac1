"""How many chunks a reader lets the broker send ahead: few large ones, many small ones, hardly any behind its range.

A credit is one chunk, of one record or of thousands. Ten hide a round trip where chunks are large; where each has but a
record, ten would make every round trip carry ten records, and a frame of credit follow each of them.

Brokers do not begin to send while the credit left is at most half of the first (S-73), so the window is
never smaller than the first credit, and is filled again when a quarter of it is used up.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_CREDIT", "CreditWindow"]

FIRST_CREDIT: Final = 10
"""What a subscription begins with, and the smallest window."""
LARGEST_WINDOW: Final = 1_000
BYTES_AHEAD: Final = 4 << 20
"""A window has chunks of about so many bytes."""
_WEIGHT: Final = 8
"""The averages are of about so many chunks."""


class CreditWindow:
    """The credit of one subscription that began with ``FIRST_CREDIT``."""

    def __init__(self) -> None:
        self._outstanding = FIRST_CREDIT
        self._bytes = 0.0
        self._records = 0.0

    def consumed(self, chunk_bytes: int, records: int, wanted: int) -> int:
        """Count a chunk that came, and return the credit to grant now, 0 for none yet.

        Args:
            chunk_bytes: its size.
            records: how many offsets it uses up.
            wanted: how many offsets of the range are still to come.
        """
        self._outstanding -= 1
        if not self._bytes:
            self._bytes, self._records = float(chunk_bytes), float(records)
        self._bytes += (chunk_bytes - self._bytes) / _WEIGHT
        self._records += (records - self._records) / _WEIGHT
        ahead = min(BYTES_AHEAD / (self._bytes + 1), wanted / (self._records + 1), LARGEST_WINDOW)
        window = max(FIRST_CREDIT, int(ahead))
        owed = window - self._outstanding
        if owed < window // 4:
            return 0
        self._outstanding = window
        return owed
