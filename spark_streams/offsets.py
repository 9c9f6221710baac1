"""Converts offsets between numbers and texts of 20 decimal digits, so that both have the same order.

The log and RabbitMQ's streams number their offsets; rows, positions and AMQP have them as texts of one width.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.position import After, At, Position

OFFSET_DIGITS: Final = 20
"""The fixed width, enough for any uint64, so that '9' < '10' and '99' < '100' hold lexicographically too."""
MAX_OFFSET: Final = 2**63 - 1
"""The largest offset that Spark's BIGINT, and so any arithmetic on it, can hold; brokers count to 2^64-1."""
_GROUP: Final = 10_000
_WORDS: Final = np.frombuffer("".join(f"{n:04d}" for n in range(_GROUP)).encode(), np.uint32)
"""The four ASCII digits of every number below 10,000, as one uint32 in this machine's byte order."""


def format_offset(number: int) -> str:
    """Return the offset of the event with this number: 20 decimal digits with leading zeros.

    Raises:
        ValueError: the number is negative or too long.
    """
    text = f"{number:0{OFFSET_DIGITS}d}"
    if number < 0 or len(text) != OFFSET_DIGITS:
        raise ValueError(f"{number} is not the number of an event")
    return text


def offset_number(text: str) -> int:
    """Return the number of an offset.

    Raises:
        LocalProtocolError: the text is not 1 to 20 decimal digits, or its number is more than 2^63-1.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS) or int(text) > MAX_OFFSET:
        raise LocalProtocolError(
            f"'{text}' is no offset of a RabbitMQ stream: expected up to {OFFSET_DIGITS} decimal digits"
        )
    return int(text)


def start_hint(text: str) -> str:
    """Return advice about the text ``-1``, which other clients take for a start; empty for any other text."""
    elsewhere = "; '-1' is the beginning in Event Hubs' clients, and the end in Kafka's: say 'earliest' or 'latest'"
    return elsewhere if text.strip() == "-1" else ""


def first_wanted(start: Position) -> int | None:
    """Return the first offset of a range that starts at a position; None if the position has no offset (earliest)."""
    return offset_number(start.offset) + isinstance(start, After) if isinstance(start, (At, After)) else None


def next_message(start: Position) -> str:
    """Describe the first message from a position on, for error messages; offsets without a message may precede it."""
    number = first_wanted(start)
    return "its first message" if number is None else f"the message at offset '{format_offset(number)}' or the next"


def offset_digits(offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the ASCII digits of offsets that are not negative, shape (n, 20)."""
    words = np.empty((len(offsets), OFFSET_DIGITS // 4), np.uint32)
    if len(offsets):
        first, last = int(offsets[0]), int(offsets[-1])
        if last - first == len(offsets) - 1 and bool((offsets[1:] > offsets[:-1]).all()):
            _write_run(words, first)
        else:
            _write(words, offsets)
    return words.view(np.uint8)


def _write_run(words: NDArray[np.uint32], first: int) -> None:
    """Write consecutive numbers: their last four digits are a slice of ``_WORDS``, and the others rarely change."""
    at, count = 0, len(words)
    while at < count:
        head, low = divmod(first + at, _GROUP)
        to = min(count, at + _GROUP - low)
        for place in range(words.shape[1] - 2, -1, -1):
            head, group = divmod(head, _GROUP)
            words[at:to, place] = _WORDS[group]
        words[at:to, -1] = _WORDS[low : low + to - at]
        at = to


def _write(words: NDArray[np.uint32], offsets: NDArray[np.int64]) -> None:
    left = offsets
    for place in range(words.shape[1] - 1, -1, -1):
        if not left.any():
            words[:, : place + 1] = _WORDS[0]
            break
        left, group = np.divmod(left, _GROUP)
        words[:, place] = _WORDS[group]


def offset_column(offsets: NDArray[np.int64]) -> pa.StringArray:
    """Return offsets that are not negative as a column of texts."""
    bounds = np.arange(len(offsets) + 1, dtype=np.int32) * OFFSET_DIGITS
    return pa.StringArray.from_buffers(len(offsets), pa.py_buffer(bounds), pa.py_buffer(offset_digits(offsets)))


def equal_range(text: str) -> tuple[int, int]:
    """Return the place of a text among the offsets of all events, in lexicographic order (A-24).

    Args:
        text: any text, an offset or not.

    Returns:
        The least event number whose offset is >= ``text``, and the least whose offset is > ``text``: they differ by one
        for an offset, and are equal for any other text. ``10**OFFSET_DIGITS`` when there is none.
    """
    head = text[:OFFSET_DIGITS]
    digits = head[: len(head) - len(head.lstrip("0123456789"))]
    number = int(digits.ljust(OFFSET_DIGITS, "0"))
    if len(text) == len(digits) == OFFSET_DIGITS:
        return number, number + 1
    # A text that ends within the digits, or goes on with a character below '0', precedes all numbers with its digits.
    if len(text) > len(digits) and (len(digits) == OFFSET_DIGITS or text[len(digits)] > "9"):
        number += 10 ** (OFFSET_DIGITS - len(digits))
    return number, number
