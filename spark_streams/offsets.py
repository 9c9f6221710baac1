"""Offsets as clients see them: opaque strings whose lexicographic order is the log's order."""

from __future__ import annotations

from typing import Final

__all__ = ["OFFSET_DIGITS", "format_offset"]

OFFSET_DIGITS: Final = 20
"""Fixed width, enough for any uint64, so that '9' < '10' and '99' < '100' hold lexicographically too."""


def format_offset(number: int) -> str:
    """Return the offset string of the event with this number: 20 decimal digits with leading zeros.

    Raises:
        ValueError: the number is negative or too long.

    """
    text = f"{number:020d}"
    if number < 0 or len(text) != OFFSET_DIGITS:
        raise ValueError(f"{number} is not the number of an event")
    return text
