"""The values of options: numbers, booleans, instants and positions, each with a message fit for the user."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from spark_streams.errors import FilterError, OptionError
from spark_streams.filters.event_streams import parse_sql
from spark_streams.position import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    AtTime,
    Matching,
    Position,
    position_from_json,
)

__all__ = ["boolean", "expression", "instant_ms", "integer", "positions_json"]

_OFFSETS_EXAMPLE: Final = '{"0": "earliest", "1": {"at": "00000000000000000042"}, "2": "00000000000000000042"}'
_TIMESTAMPS_EXAMPLE: Final = '{"0": 1585672841000, "1": -386380800000}'
_ISO: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*(Z|z|[+-]\d{2}(?::?\d{2})?)?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NS_PER_MS: Final = 1_000_000


def integer(option: str, text: str, *, low: int, high: int, unit: str) -> int:
    """Return a whole number from ``low`` to ``high``, both inclusive.

    Raises:
        OptionError: it is not one.
    """
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text) or not low <= int(text) <= high:
        raise OptionError(option, f"'{_short(text)}' is not {unit} as a whole number, at least {low}")
    return int(text)


def boolean(option: str, text: str) -> bool:
    """Return what ``true`` or ``false`` says, in any case.

    Raises:
        OptionError: it says neither.
    """
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise OptionError(option, f"'{_short(text)}' is neither 'true' nor 'false'")
    return word == "true"


def instant_ms(option: str, value: object) -> int:
    """Return an instant as milliseconds since the epoch; negative ones are before 1970.

    Args:
        option: the option's name, for messages.
        value: an integer of milliseconds, as int or text, or a date or time of ISO 8601 (UTC when it says no offset).
            A fraction finer than a millisecond is rounded up: the first event not earlier than it is meant.

    Raises:
        OptionError: it is no instant, or outside int64.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(option, value)
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            return _bounded(option, int(text))
        match = _ISO.fullmatch(text)
        if match:
            return _iso_ms(option, text, match)
    raise OptionError(
        option,
        f"'{_short(str(value))}' is no instant, expected milliseconds since 1970-01-01T00:00:00Z as a whole number "
        "(negative before it) or ISO 8601 such as 1957-10-04T19:28:34Z",
    )


def positions_json(option: str, text: str, *, timestamps: bool) -> dict[str, Position]:
    """Return the position of each partition that a JSON object says.

    Args:
        option: the option's name, for messages.
        text: the JSON.
        timestamps: whether the values are instants, not positions.

    Raises:
        OptionError: bad JSON (with the place), or a value that is no position here.
    """
    example = _TIMESTAMPS_EXAMPLE if timestamps else _OFFSETS_EXAMPLE
    words = "" if timestamps else "'earliest', 'latest' or "
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(option, pairs))
    except json.JSONDecodeError as fault:
        near = text[max(0, fault.pos - 10) : fault.pos + 10]
        raise OptionError(
            option,
            f"bad JSON at line {fault.lineno} column {fault.colno} (near {near!r}): {fault.msg}; expected {words}a "
            f"JSON object such as {example}",
        ) from None
    if not isinstance(value, dict) or not value:
        raise OptionError(option, f"expected {words}a JSON object with each partition's position, such as {example}")
    return {
        partition: AtTime(instant_ms(option, position)) if timestamps else _position(option, partition, position)
        for partition, position in value.items()
    }


def _position(option: str, partition: str, value: object) -> Position:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise OptionError(
            option,
            f"partition '{partition}' has the number {value}, but offsets of AMQP event streams are opaque strings, to "
            'be compared and never counted: write an offset as the log gave it, "…" to start after it or {"at": "…"} '
            "to start with it",
        )
    try:
        position = position_from_json(value)
    except ValueError as fault:
        raise OptionError(option, f"partition '{partition}': {fault}") from None
    if isinstance(position, Matching):
        return expression(option, position.text)
    return position


def expression(option: str, text: str) -> Matching:
    """Return the position of the first event that a filter of AMQP event streams (§5.2.2) matches.

    Raises:
        OptionError: the text is no such filter; the message has the column of the fault.
    """
    try:
        parse_sql(text)
    except FilterError as fault:
        raise OptionError(
            option, f"{fault}; expected a comparison such as d.event-streams-timestamp >= 1585672841000"
        ) from None
    return Matching(text)


def _without_repeats(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise OptionError(option, f"'{name}' is there twice")
        out[name] = value
    return out


def _iso_ms(option: str, text: str, match: re.Match[str]) -> int:
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=timezone.utc
        )
    except ValueError as fault:
        raise OptionError(option, f"'{text}' is no instant: {fault}") from None
    nanoseconds = int((fraction or "").ljust(9, "0"))
    ms = (moment - _EPOCH) // timedelta(milliseconds=1) - -nanoseconds // _NS_PER_MS
    if zone and zone not in "Zz":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset_ms = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000
        ms -= offset_ms if zone[0] == "+" else -offset_ms
    return _bounded(option, ms)


def _bounded(option: str, ms: int) -> int:
    if not MIN_TIMESTAMP_MS <= ms <= MAX_TIMESTAMP_MS:
        raise OptionError(option, f"{ms} is outside int64 milliseconds")
    return ms


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
