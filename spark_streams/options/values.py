"""Reads the values of options: instants, durations, lists and JSON, with messages for the user."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from spark_streams import filters
from spark_streams.errors import FilterError, OptionError
from spark_streams.filters.decimals import MAX_INT64
from spark_streams.filters.tree import Expression
from spark_streams.instants import bounded, read_instant

_LIST_EXAMPLE: Final = '["eu", "us, ca"]'
_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
"""The units of Spark's JavaUtils.timeStringAsMs, in microseconds."""
_NEAR: Final = 0.7
"""How alike two words have to be: 'warn' is nearly 'warning', and 'oldest' is not 'latest'."""


def instant_ms(option: str, value: object) -> int:
    """Return an instant as milliseconds since the epoch; negative ones are before 1970.

    Args:
        option: the option's name, for messages.
        value: an integer of milliseconds, as int or text, or a date or time of ISO 8601 (UTC when it says no offset).
            A fraction finer than a millisecond is rounded up, as the user wants the first event not earlier than it.

    Raises:
        OptionError: the value is no instant, or outside int64.
    """
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return bounded(value)
        return read_instant(str(value))
    except ValueError as fault:
        raise OptionError(option, str(fault)) from None


def duration_ms(option: str, text: str) -> int:
    """Return a length of time in milliseconds, given as in Spark: ``15m``, ``30s``, ``1h``, or bare milliseconds.

    The units are Spark's: us (rounded up to a millisecond), ms, s, m or min, h and d, in any case.

    Raises:
        OptionError: the text is no length of time, or one shorter than a millisecond or beyond int64 milliseconds.
    """
    match = re.fullmatch(r"([0-9]{1,19})\s*([a-z]*)", text.strip().lower())
    unit_us = _UNITS_US.get(match[2]) if match else None
    ms = -(-int(match[1]) * unit_us // 1000) if match and unit_us else 0
    if not 1 <= ms <= MAX_INT64:
        raise OptionError(
            option,
            f"'{short(text)}' is no length of time, expected such as 15m, 30s or 1h (units us, ms, s, m, h and d), or "
            "milliseconds as a whole number, at least 1",
        )
    return ms


def json_object(option: str, text: str, *, words: str, example: str) -> dict[str, Any]:
    """Return a JSON object with a value for each partition.

    Args:
        option: the option's name, for messages.
        text: the JSON.
        words: what else the option takes, for messages, such as ``'earliest' or ``; empty for nothing.
        example: an object that would do, for messages.

    Raises:
        OptionError: the text is bad JSON (the message has the place), no object or an empty one, or has a name twice.
    """
    expected = f"expected {words}a JSON object"
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(option, pairs))
    except json.JSONDecodeError as fault:
        near = text[max(0, fault.pos - 10) : fault.pos + 10]
        raise OptionError(
            option,
            f"bad JSON at line {fault.lineno} column {fault.colno} (near {near!r}): {fault.msg}; {expected} such as "
            f"{example}",
        ) from None
    except OptionError:
        raise
    except (ValueError, RecursionError):  # a number too long, or brackets too deep, for Python
        raise OptionError(option, f"bad JSON, too long a number or too deep; {expected} such as {example}") from None
    if not isinstance(value, dict) or not value:
        raise OptionError(option, f"{expected} with each partition's position, such as {example}")
    return value


def did_you_mean(text: str, words: Sequence[str]) -> str:
    """Return the end of a message about a text that is none of ``words``: the nearest word; empty if none is near."""
    close = difflib.get_close_matches(text.strip().lower(), words, n=1, cutoff=_NEAR)
    return f", did you mean '{close[0]}'?" if close else ""


def words_list(option: str, text: str) -> tuple[str, ...]:
    """Return the texts of a list separated by commas, or of a JSON list, in their order and without repeats.

    Blanks around a text between commas do not belong to it; a JSON list is for texts that have commas or such blanks.

    Raises:
        OptionError: the list is empty, a text is empty, or the JSON is bad.
    """
    found: list[object] = [word.strip() for word in text.split(",")]
    if text.strip().startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as fault:
            raise OptionError(
                option, f"bad JSON ({fault}), expected values separated by commas or a list such as {_LIST_EXAMPLE}"
            ) from None
        found = list(value)
    if not found or not all(isinstance(word, str) and word for word in found):
        raise OptionError(
            option,
            f"'{short(text)}' has an empty value or one that is no string, expected values separated by commas, such "
            f"as eu,us, or a JSON list such as {_LIST_EXAMPLE}",
        )
    return tuple(dict.fromkeys(str(word) for word in found))


def filter_expression(option: str, text: str, where: str = "") -> Expression:
    """Return the filter that a text expresses.

    Args:
        option: the option's name, for messages.
        text: the filter, or the base64 of its protobuf form.
        where: what the message begins with.

    Raises:
        OptionError: the text is neither; the message has the column of the fault.
    """
    try:
        return filters.read_filter(text)
    except FilterError as fault:
        raise OptionError(option, f"{where}{fault}") from None


def _without_repeats(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise OptionError(option, f"'{name}' is there twice")
        out[name] = value
    return out


def short(text: str) -> str:
    """Return a value as messages show it: a long one is cut."""
    return text if len(text) <= 60 else text[:60] + "…"
