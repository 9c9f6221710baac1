"""Defines instants, int64 milliseconds since the epoch; reads them as people write them, and writes ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
_YEAR: Final = re.compile(r"(-?)(\d+)")


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


def iso_instants(micros: NDArray[np.int64]) -> list[str]:
    """Return instants in microseconds since the epoch as ISO 8601 in UTC without the zone, with six digits of a second.

    Arrow, and Python's datetime, have no text for many of them. A year of more than four digits has its sign, as one
    before year 0 (ISO 8601 section 4.3.2).
    """
    # Not of microseconds: the lowest of them is "not a time" to NumPy.
    seconds, rest = np.divmod(micros, 1_000_000)
    texts = _with_signs(seconds.view("datetime64[s]"))
    return [f"{text}.{fraction:06d}" for text, fraction in zip(texts, rest.tolist(), strict=True)]


def iso_dates(days: NDArray[np.int64]) -> list[str]:
    """Return days since the epoch as ISO 8601, with the sign of a year as ``iso_instants``."""
    return _with_signs(days.view("datetime64[D]"))


def _with_signs(moments: NDArray[np.datetime64]) -> list[str]:
    def year(match: re.Match[str]) -> str:
        sign, digits = match.groups()
        return (sign or "+" * (len(digits) > 4)) + digits.zfill(4)

    return [_YEAR.sub(year, text, count=1) for text in np.datetime_as_string(moments).tolist()]
