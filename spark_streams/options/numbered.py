"""Positions of a format whose offsets are numbers, as RabbitMQ's are."""

from __future__ import annotations

import re
from typing import Final

from spark_streams.errors import OptionError
from spark_streams.options.parser import MAX_INT64
from spark_streams.options.values import expression
from spark_streams.position import EARLIEST, LATEST, After, At, Matching, Position, position_from_json

__all__ = ["OFFSET_DIGITS", "numbered_position"]

OFFSET_DIGITS: Final = 20
"""Digits of an offset as text, zero padded, so that the order of the texts is that of the numbers."""


def numbered_position(option: str, partition: str, value: object) -> Position:
    """Read a position of a partition whose offsets are numbers.

    Args:
        option: the option's name, for messages.
        partition: the partition's name, for messages.
        value: its JSON value: a number starts with that offset (-2 is earliest, -1 latest), digits in a string start
            after it, and the objects of the position model take both.

    Returns:
        The position, its offset as 20 digits.

    Raises:
        OptionError: it is no position, an offset is outside 0 to 2^63-1, or an expression is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value in (-2, -1):
            return EARLIEST if value == -2 else LATEST
        return At(_offset(option, partition, value))
    if isinstance(value, dict) and len(value) == 1:
        ((word, operand),) = value.items()
        if word in ("at", "after") and isinstance(operand, (int, str)) and not isinstance(operand, bool):
            offset = _offset(option, partition, operand)
            return At(offset) if word == "at" else After(offset)
    try:
        position = position_from_json(value)
    except ValueError:
        raise OptionError(
            option,
            f"partition '{partition}': {value!r} is not a position: expected an offset as a number (reading starts "
            'with it; -2 for earliest, -1 for latest) or as a string (reading starts after it), "earliest", "latest", '
            '{"at": offset}, {"after": offset}, {"timestamp": milliseconds} or {"expression": text}',
        ) from None
    if isinstance(position, Matching):
        return expression(option, position.text, partition)
    return After(_offset(option, partition, position.offset)) if isinstance(position, After) else position


def _offset(option: str, partition: str, value: int | str) -> str:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,20}", value):
        raise OptionError(
            option, f"partition '{partition}': '{value}' is no offset of RabbitMQ, expected 1 to 20 decimal digits"
        )
    if not 0 <= int(value) <= MAX_INT64:
        shown = str(value)[:24]
        why = "negative, and only -2 (earliest) and -1 (latest) are" if int(value) < 0 else "more than 2^63-1"
        raise OptionError(option, f"partition '{partition}': offset {shown} is {why}; offsets go from 0 to 2^63-1")
    return f"{int(value):0{OFFSET_DIGITS}d}"
