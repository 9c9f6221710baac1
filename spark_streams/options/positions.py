"""Reads the options for the start and the end of reading, and positions with numeric offsets, such as RabbitMQ's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_streams.errors import OptionError
from spark_streams.filters.decimals import MAX_INT64
from spark_streams.offsets import format_offset, start_hint
from spark_streams.options.names import (
    ENDING_OFFSETS,
    ENDING_OFFSETS_BY_TIMESTAMP,
    ENDING_TIMESTAMP,
    STARTING_EXPRESSION,
    STARTING_OFFSETS,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_TIMESTAMP,
)
from spark_streams.options.parser import OptionReader
from spark_streams.options.values import did_you_mean, filter_expression, instant_ms, json_object, short
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Matching, Position, position_from_json

STARTS: Final = (STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_OFFSETS)
"""The options for the start of reading: one instant, one per partition, or positions; a query has at most one."""
ENDS: Final = (ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, ENDING_OFFSETS)
"""The same options for the end of reading."""

_INSTANTS: Final = (1585672841000, -386380800000)


@dataclass(frozen=True)
class PositionRange:
    """The start or the end of reading: a position for all partitions, or one for each.

    Args:
        everywhere: the position in every partition, or None when ``each`` has the positions.
        each: partition identifier to position, complete: every partition of the stream has to be in it.
        option: the option with the positions, for messages.
    """

    everywhere: Position | None
    each: Mapping[str, Position] = field(default_factory=dict, hash=False)
    option: str = STARTING_OFFSETS


def read_starting(given: OptionReader, default: Position) -> PositionRange:
    """Return where reading starts.

    Raises:
        OptionError: two options give the start, or a value is no position.
    """
    if given.one_of(*STARTS, STARTING_EXPRESSION) == STARTING_EXPRESSION:
        text = given.required(STARTING_EXPRESSION, "such as type = 'order' AND publish_time >= 1585672841000")
        filter_expression(STARTING_EXPRESSION, text)
        return PositionRange(Matching(text), option=STARTING_EXPRESSION)
    return _positions(given, *STARTS) or PositionRange(default)


def read_ending(given: OptionReader, default: Position | None) -> PositionRange | None:
    """Return where reading ends: the position where it would continue.

    Raises:
        OptionError: two options give the end, or a value is no position.
    """
    found = _positions(given, *ENDS)
    return PositionRange(default, option=ENDING_OFFSETS) if found is None and default is not None else found


def refuse_empty_spans(starting: PositionRange, ending: PositionRange) -> None:
    """Refuse positions that leave a batch query nothing to read, and expressions as its end.

    Raises:
        OptionError: the query starts at the latest event, or ends at the earliest or at an expression.
    """
    _refuse(starting, LATEST, "a batch query that starts at the latest event has nothing to read")
    _refuse(ending, EARLIEST, "a batch query that ends at the earliest event has nothing to read")
    for partition, position in ending.each.items():
        if isinstance(position, Matching):
            raise OptionError(ending.option, f"partition '{partition}': an expression says where to start only")


def _positions(given: OptionReader, timestamp: str, by_timestamp: str, offsets: str) -> PositionRange | None:
    name = given.one_of(timestamp, by_timestamp, offsets)
    if name is None:
        return None
    text = given.get(name) or ""
    if name == timestamp:
        return PositionRange(AtTime(instant_ms(name, text)), option=name)
    word, example = text.strip().lower(), given.form.offsets_example
    of_instants = name == by_timestamp
    if of_instants:
        example = json.dumps(dict(zip(json.loads(example), _INSTANTS, strict=False)))
    elif word in ("earliest", "latest"):
        return PositionRange(EARLIEST if word == "earliest" else LATEST, option=name)
    elif not word.startswith(("{", "[")):
        raise OptionError(
            name,
            f"'{short(text)}' is neither 'earliest' nor 'latest' nor a JSON object such as {example}"
            f"{start_hint(word) or did_you_mean(word, ('earliest', 'latest'))}",
        )
    values = json_object(name, text, words="" if of_instants else "'earliest', 'latest' or ", example=example)
    for partition, value in values.items():
        # The JSON of Spark's Kafka source maps topics to partitions, and partitions to offsets.
        if isinstance(value, dict) and value and all(re.fullmatch("[0-9]+", key) for key in value):
            raise OptionError(
                name,
                f"'{partition}' has partitions in it, as a topic of Kafka has: a query reads one stream, so its "
                f"partitions stand at the top, such as {example}",
            )
    each = {
        partition: AtTime(instant_ms(name, value)) if of_instants else given.form.position(name, partition, value)
        for partition, value in values.items()
    }
    return PositionRange(None, each, name)


def _refuse(span: PositionRange, word: Position, why: str) -> None:
    where = [partition for partition, position in span.each.items() if position == word]
    if span.everywhere == word or where:
        partitions = f" (partition {', '.join(repr(p) for p in where)})" if where else ""
        raise OptionError(span.option, f"'{word}' cannot be used here{partitions}: {why}")


def read_position(option: str, partition: str, value: object, expected: str | None = None) -> Position:
    """Read a position of a partition.

    Args:
        option: the option's name, for messages.
        partition: the partition's name, for messages.
        value: its JSON value.
        expected: the message for a value that is no position; None for the message of ``position_from_json``.

    Raises:
        OptionError: the value is no position, or its expression is no filter.
    """
    try:
        position = position_from_json(value)
    except ValueError as fault:
        raise OptionError(option, f"partition '{partition}': {expected or fault}") from None
    if isinstance(position, Matching):
        filter_expression(option, position.text, f"partition '{partition}': ")
    return position


def numbered_position(option: str, partition: str, value: object, peer: str = "RabbitMQ") -> Position:
    """Read a position of a partition whose offsets are numbers.

    Args:
        option: the option's name, for messages.
        partition: the partition's name, for messages.
        value: its JSON value. A number is the position at that offset (-2 is earliest, -1 latest), a string of digits
            the position after that offset; ``{"at": …}`` and ``{"after": …}`` take numbers and strings.
        peer: the peer that the offsets belong to, for messages.

    Returns:
        The position, its offset as 20 digits.

    Raises:
        OptionError: the value is no position, its offset is outside 0 to 2^63-1, or its expression is no filter.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value in (-2, -1):
            return EARLIEST if value == -2 else LATEST
        return At(_offset(option, partition, value, peer))
    if isinstance(value, dict) and len(value) == 1:
        ((word, operand),) = value.items()
        if word in ("at", "after") and isinstance(operand, (int, str)) and not isinstance(operand, bool):
            offset = _offset(option, partition, operand, peer)
            return At(offset) if word == "at" else After(offset)
    position = read_position(
        option,
        partition,
        value,
        f"{value!r} is not a position: expected an offset as a number (reading starts with it; -2 for earliest, -1 for "
        'latest) or as a string (reading starts after it), "earliest", "latest", {"at": offset}, {"after": offset}, '
        '{"timestamp": milliseconds} or {"expression": text}',
    )
    return After(_offset(option, partition, position.offset, peer)) if isinstance(position, After) else position


def _offset(option: str, partition: str, value: int | str, peer: str) -> str:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,20}", value):
        raise OptionError(
            option,
            f"partition '{partition}': '{value}' is no offset of {peer}, expected 1 to 20 decimal digits"
            f"{start_hint(value)}",
        )
    if not 0 <= int(value) <= MAX_INT64:
        shown = str(value)[:24]
        why = "negative, and only -2 (earliest) and -1 (latest) are" if int(value) < 0 else "more than 2^63-1"
        raise OptionError(option, f"partition '{partition}': offset {shown} is {why}; offsets go from 0 to 2^63-1")
    return format_offset(int(value))
