"""How the pages write numbers, bytes and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from spark_streams.log.format.record_batch import NO_TIMESTAMP
from spark_streams.server.web.shown_text import visible

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHOWN: Final = bytes(each if 32 <= each < 127 else ord(".") for each in range(256))
UNKNOWN: Final = "–"


def number(count: int | float | None) -> str:
    """Return a number with separated thousands; a dash for one that is not known."""
    if count is None:
        return UNKNOWN
    if isinstance(count, float) and not count.is_integer():
        return f"{count:,.1f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{int(count):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def whole(text: str, digits: int = 19) -> int | None:
    """Return a text as a whole number, 0 or more; None for another text, or one of more than ``digits`` digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def size(count: int | None) -> str:
    """Return a number of bytes in the largest unit of which there is at least one."""
    if count is None:
        return UNKNOWN
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if not unit else f"{amount:.1f} {_UNITS[unit]}"


def time(ms: int | None) -> str:
    """Return an instant in ms since the epoch in UTC as RFC 3339 writes it; in ms where the year has no four digits."""
    if ms is None or ms == NO_TIMESTAMP:
        return UNKNOWN
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(" ", "milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{ms} ms"


def seconds(ms: int | None) -> str:
    """Return an instant as ``time`` does, without its fraction of a second."""
    whole = time(ms)
    return f"{whole.partition('.')[0]}Z" if "." in whole else whole


def hexadecimal(content: bytes) -> str:
    """Return bytes as lines of an offset, sixteen bytes, and their ASCII, as ``hexdump -C`` does."""
    lines = []
    for start in range(0, len(content), 16):
        row = content[start : start + 16]
        words = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        lines.append(f"{start:08x}  {words:<48}  |{row.translate(_SHOWN).decode()}|")
    return "\n".join(lines)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "size": size,
    "time": time,
    "seconds": seconds,
    "visible": visible,
}
"""The names of these functions in templates."""
