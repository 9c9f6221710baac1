"""Warns of times in a start, an end or a filter that are likely not the times that the user meant.

A time is always milliseconds since 1970. One in seconds is in January 1970, mostly before every event; one in micro- or
nanoseconds is in a year beyond 50,000. Both are valid positions, and not refused: the query runs, and a warning says
how the time was understood and what is there. The warning uses the bounds and offsets that the caller knows, and asks
no peer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from spark_streams.client.log_client import Bounds
from spark_streams.filters.describe import shorten, to_text
from spark_streams.filters.targets.full_sql import is_time
from spark_streams.filters.tree import Expression, predicates
from spark_streams.position import After, At, AtTime, Earliest, Position
from spark_streams.redaction import safe_text

_log = logging.getLogger(__name__)

_UNITS: Final = {"seconds": (1_000, 1), "microseconds": (1, 1_000), "nanoseconds": (1, 1_000_000)}
"""The factor and divisor that turn a number of each unit into milliseconds."""
_OUR_TIME: Final = range(315_532_800_000, 4_102_444_800_000)
"""The milliseconds of 1980 to 2099: a number that lies between them in another unit is likely in that unit."""


class Asked(NamedTuple):
    """A position at which a query starts or ends in one partition.

    Args:
        partition: its identifier.
        wanted: the position of the options.
        found: what it was resolved to; for a time, ``At`` the first event from then on, or ``After`` the newest
            event where all events are earlier.
        bounds: what the partition retains.
    """

    partition: str
    wanted: Position
    found: Earliest | At | After
    bounds: Bounds

    def __str__(self) -> str:
        if isinstance(self.wanted, AtTime):
            return f"at {self.wanted.timestamp_ms}, which is {instant_text(self.wanted.timestamp_ms)}"
        return str(self.wanted)

    @property
    def held(self) -> str:
        """The partition and its offsets, for messages."""
        first, last = self.bounds.earliest, self.bounds.latest
        return safe_text(f"partition '{self.partition}', which holds offsets '{first}' to '{last}'")


def instant_text(ms: int) -> str:
    """Return an instant of any year in ISO 8601; in brackets the one in another unit, if that was likely meant."""
    unit = _likely_unit(ms)
    if unit is None:
        return _iso(ms)
    times, by = _UNITS[unit]
    return f"{_iso(ms)} (times are in milliseconds: in {unit} it would be {_iso(ms * times // by)})"


def warn_of_times(who: str, option: str, asked: Sequence[Asked], *, end: bool = False) -> bool:
    """Log a warning if a time that was likely meant otherwise makes reading start, or end, outside all events.

    A start after the events is such a time, and so is an end before them. A start before them and an end after them
    are ordinary, unless the number is a time of our days in another unit.

    Args:
        who: the query or the stream, for the message.
        option: what gave the times, for the message.
        asked: the positions in all partitions; those without events do not count.
        end: whether they are ends.

    Returns:
        Whether there was a warning.
    """
    asked = [each for each in asked if each.bounds.latest is not None]
    places = [_doubtful_place(each, end) for each in asked]
    if not places or not all(places):
        return False
    verb = "ends" if end else "starts"
    _log.warning("%s: %s: reading %s %s, %s of %s", who, option, verb, asked[0], places[0], asked[0].held)
    return True


def warn_of_filter(who: str, expression: Expression) -> None:
    """Log a warning of the first number in a filter that is likely a time in another unit than milliseconds."""
    for each in predicates(expression):
        for value in each.values if is_time(each.reference) else ():
            if isinstance(value, int) and _likely_unit(value) is not None:
                text = "%s: the filter has %s, where %d is %s"
                _log.warning(text, who, shorten(to_text(each)), value, instant_text(value))
                return


def _doubtful_place(asked: Asked, end: bool) -> str | None:
    """Return where reading starts or ends, if a time that was likely meant otherwise puts that outside all events."""
    behind, before = (asked.found == each for each in (After(str(asked.bounds.latest)), At(str(asked.bounds.earliest))))
    if not isinstance(asked.wanted, AtTime) or not (behind or before):
        return None
    if behind == end and _likely_unit(asked.wanted.timestamp_ms) is None:
        return None
    return "behind the newest event" if behind else "before the oldest event"


def _likely_unit(ms: int) -> str | None:
    """Return the unit in which a number is a time of our days; None where it is none, or is one in milliseconds."""
    return next((unit for unit, (times, by) in _UNITS.items() if ms * times // by in _OUR_TIME), None)


def _iso(ms: int) -> str:
    return f"{np.datetime64(ms, 'ms')}Z"
