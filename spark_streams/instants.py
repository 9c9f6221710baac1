"""Defines instants, int64 milliseconds since the epoch, and reads them as people write them: so, or in ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final

MIN_TIMESTAMP_MS: Final = -(2**63) + 1
"""The earliest instant, in ms; Long.MIN_VALUE itself means "no timestamp" in extended record batches (KIP-228)."""
MAX_TIMESTAMP_MS: Final = 2**63 - 1
"""The latest instant, in ms."""
_MS: Final = re.compile(r"[+-]?[0-9]{1,20}")
_ISO: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*(Z|z|[+-]\d{2}(?::?\d{2})?)?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NS_PER_MS: Final = 1_000_000


def read_instant(text: str) -> int:
    """Return an instant as milliseconds since the epoch; negative ones are before 1970.

    Args:
        text: a whole number of milliseconds, or a date or time of ISO 8601 (UTC when it says no offset). A fraction
            finer than a millisecond is rounded up: the first event not earlier than it is meant.

    Raises:
        ValueError: it is no instant, or outside int64; the text says what was expected.
    """
    text = text.strip()
    if _MS.fullmatch(text):
        return bounded(int(text))
    match = _ISO.fullmatch(text)
    if match:
        return bounded(_iso_ms(text, match))
    shown = text if len(text) <= 60 else text[:60] + "…"
    raise ValueError(
        f"'{shown}' is no instant, expected milliseconds since 1970-01-01T00:00:00Z as a whole number "
        "(negative before it) or ISO 8601 such as 1957-10-04T19:28:34Z"
    )


def _iso_ms(text: str, match: re.Match[str]) -> int:
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=timezone.utc
        )
    except ValueError as fault:
        raise ValueError(f"'{text}' is no instant: {fault}") from None
    nanoseconds = int((fraction or "").ljust(9, "0"))
    ms = (moment - _EPOCH) // timedelta(milliseconds=1) - -nanoseconds // _NS_PER_MS
    if zone and zone not in "Zz":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset_ms = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000
        ms -= offset_ms if zone[0] == "+" else -offset_ms
    return ms


def bounded(ms: int) -> int:
    """Return milliseconds that fit a timestamp.

    Raises:
        ValueError: they do not.
    """
    if not MIN_TIMESTAMP_MS <= ms <= MAX_TIMESTAMP_MS:
        raise ValueError(f"{ms} is outside int64 milliseconds")
    return ms
