"""Defines instants, int64 milliseconds since the epoch; reads them as people write them, and writes ISO 8601."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIN_TIMESTAMP_MS: Final = -(2**63) + 1
"""The earliest instant, in ms; Long.MIN_VALUE itself means "no timestamp" in extended record batches (KIP-228)."""
MAX_TIMESTAMP_MS: Final = 2**63 - 1
"""The latest instant, in ms."""
_MS: Final = re.compile(r"[+-]?[0-9]{1,20}")
_ISO: Final = re.compile(
    r"(?P<year>\d{4}|[+-]\d{4,7}(?=-))(?P<dash>-?)"
    r"(?:(?P<month>\d\d)(?P=dash)(?P<day>\d\d)|(?P<ordinal>\d{3})|W(?P<week>\d\d)(?P=dash)(?P<weekday>\d))"
    r"(?:[Tt ](?P<hour>[01]\d|2[0-4])(?::?(?P<minute>[0-5]\d)(?::?(?P<second>[0-5]\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"\s*(?:[Zz]|(?P<sign>[+-])(?P<h>[01]\d|2[0-3])(?::?(?P<m>[0-5]\d)(?::?(?P<s>[0-5]\d))?)?)?)?",
    re.ASCII,
)
"""Dates by month, by day of the year, and by week, with a time or without one; a year of more than four digits has a
sign (ISO 8601 section 4.3.2)."""
_EPOCH: Final = date(1970, 1, 1)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""Years, and days, after which the calendar repeats itself, weeks included; ``date`` covers 24 of these cycles."""
_YEAR: Final = re.compile(r"(-?)(\d+)")


def read_instant(text: str) -> int:
    """Return an instant as milliseconds since the epoch; negative ones are before 1970.

    Args:
        text: a whole number of milliseconds, or a date or time of ISO 8601 (UTC when it says no offset). A fraction
            finer than a millisecond is rounded up, as the user wants the first event not earlier than it.

    Raises:
        ValueError: the text is no instant, or outside int64; the message says what was expected.
    """
    text = text.strip()
    if _MS.fullmatch(text):
        return bounded(int(text))
    try:
        seconds, fraction = read_iso(text)
        ms = seconds * 1000 - -int(fraction) * 1000 // 10 ** len(fraction)
    except ValueError as fault:
        shown = text if len(text) <= 60 else text[:60] + "…"
        raise ValueError(
            f"'{shown}' is no instant, expected milliseconds since 1970-01-01T00:00:00Z as a whole number "
            "(negative before it) or ISO 8601 such as 1957-10-04T19:28:34Z"
        ) from fault
    return bounded(ms)


def read_iso(text: str) -> tuple[int, str]:
    """Return an instant of ISO 8601, UTC when it says no offset: seconds since the epoch, and the fraction's digits.

    Raises:
        ValueError: the text is no instant of ISO 8601.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError("not ISO 8601")
    digits = match.groupdict()
    number = {name: int(found or 0) for name, found in digits.items() if name not in ("sign", "dash", "fraction")}
    cycle, year = divmod(number["year"], _CYCLE_YEARS)
    year += _CYCLE_YEARS
    if digits["month"]:
        day = date(year, number["month"], number["day"])
    elif digits["week"]:
        day = date.fromisocalendar(year, number["week"], number["weekday"])
    else:
        day = date(year, 1, 1) + timedelta(number["ordinal"] - 1)
        if day.year != year:
            raise ValueError("no such day")
    days = (day - _EPOCH).days + (cycle - 1) * _CYCLE_DAYS
    fraction = digits["fraction"] or "0"
    if number["hour"] == 24 and (number["minute"] or number["second"] or fraction.strip("0")):
        raise ValueError("after 24:00:00")
    offset = number["h"] * 3600 + number["m"] * 60 + number["s"]
    of_day = number["hour"] * 3600 + number["minute"] * 60 + number["second"]
    return days * 86_400 + of_day - (-offset if digits["sign"] == "-" else offset), fraction


def bounded(ms: int) -> int:
    """Return milliseconds that fit a timestamp.

    Raises:
        ValueError: they do not fit.
    """
    if not MIN_TIMESTAMP_MS <= ms <= MAX_TIMESTAMP_MS:
        raise ValueError(f"{ms} is outside int64 milliseconds")
    return ms


def iso_instants(micros: NDArray[np.int64]) -> list[str]:
    """Return instants in microseconds since the epoch as ISO 8601 in UTC without the zone, with six digits of a second.

    Arrow and Python's datetime cannot write many of them. A year of more than four digits has a sign, and so has a year
    before 0 (ISO 8601 section 4.3.2).
    """
    # In seconds, because the lowest int64 of microseconds is "not a time" to NumPy.
    seconds, rest = np.divmod(micros, 1_000_000)
    texts = _with_signs(seconds.view("datetime64[s]"))
    return [f"{text}.{fraction:06d}" for text, fraction in zip(texts, rest.tolist(), strict=True)]


def iso_dates(days: NDArray[np.int64]) -> list[str]:
    """Return days since the epoch as ISO 8601, with signs of years as in ``iso_instants``."""
    return _with_signs(days.view("datetime64[D]"))


def _with_signs(moments: NDArray[np.datetime64]) -> list[str]:
    def year(match: re.Match[str]) -> str:
        sign, digits = match.groups()
        return (sign or "+" * (len(digits) > 4)) + digits.zfill(4)

    return [_YEAR.sub(year, text, count=1) for text in np.datetime_as_string(moments).tolist()]
