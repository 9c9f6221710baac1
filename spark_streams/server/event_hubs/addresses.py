"""Reads the addresses of Event Hubs, and the filter that says where a receiver begins.

::

    <hub>                                              send: the log chooses the partition, or the key does
    <hub>/Partitions/<n>                               send to one partition
    <hub>/ConsumerGroups/<group>/Partitions/<n>        receive
    <hub>/Publishers/<name>   <hub>/$management        what tokens may cover too; neither is served
    $management   $cbs                                 requests about hubs; tokens

Each may have a scheme and a host in front of it. The fixed words are not case-sensitive.

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from spark_streams.errors import CorruptLog
from spark_streams.log import Partition
from spark_streams.offsets import format_offset
from spark_streams.server.amqp.error_conditions import NOT_FOUND, LinkRefused
from spark_streams.wire.amqp.dialects.event_hubs import (
    ARGUMENT_ERROR,
    ENQUEUED_TIME_KEY,
    OFFSET_KEY,
    SELECTOR,
    SELECTOR_NUMBERS,
    SEQUENCE_NUMBER_KEY,
)
from spark_streams.wire.amqp.engine.session import INVALID_FIELD
from spark_streams.wire.amqp.engine.termini import FILTER, Terminus
from spark_streams.wire.amqp.values import Described

_PATH: Final = re.compile(
    r"(?P<hub>.+?)(?P<below>/Publishers/[^/]+|/\$management|"
    r"(?:/ConsumerGroups/(?P<group>[^/]+))?(?:/Partitions/(?P<partition>[^/]+))?)/?",
    re.IGNORECASE | re.DOTALL,
)
_SELECTOR: Final = re.compile(
    rf"\s*amqp\.annotation\.({SEQUENCE_NUMBER_KEY}|{OFFSET_KEY}|{ENQUEUED_TIME_KEY})\s*(>=?)\s*'([^']*)'\s*"
)
_MOST_DIGITS: Final = 20


class HubAddress(NamedTuple):
    """An address.

    Args:
        path: without scheme, host and slashes around it.
        hub: the hub's name.
        place: the hub and the parts that follow it, in lower case: a place is below all that it begins with.
        group: the consumer group, or None.
        partition: the partition's identifier, or None.
    """

    path: str
    hub: str
    place: tuple[str, ...]
    group: str | None = None
    partition: str | None = None


def read_address(text: str) -> HubAddress:
    """Read an address.

    Raises:
        LinkRefused: it names nothing (amqp:not-found).
    """
    _, found, rest = text.partition("://")
    path = (rest.partition("/")[2] if found else text).strip("/")
    match = _PATH.fullmatch(path)
    if match is None:
        raise LinkRefused(NOT_FOUND, f"the address '{text:.200}' names no event hub")
    place = match["hub"].lower(), *match["below"].lower().split("/")[1:]
    return HubAddress(path, match["hub"], place, match["group"], match["partition"])


class Start(NamedTuple):
    """Where a receiver begins.

    Args:
        partition: the partition that it reads.
        offset: the first offset that it gets.
        filter: the entry of the source's filter that says so, for the door's answer; empty without one.
    """

    partition: Partition
    offset: int
    filter: dict[Any, Any]


def read_start(source: Terminus, partition: Partition) -> Start:
    """Return where a receiver begins, by the filter of its source; without one, with the first event.

    An offset that retention has removed is no error: the receiver begins with the first event that is retained.

    Args:
        source: what the peer's attach says.
        partition: the partition that it reads.

    Raises:
        LinkRefused: the position is past the log's end, or no position (com.microsoft:argument-error); or the filter
            cannot be read (amqp:invalid-field).
    """
    for name, value in source.field(FILTER, dict, {}).items():
        if isinstance(value, Described) and _is_selector(value.descriptor):
            return Start(partition, _first(value.value, partition), {name: value})
        if isinstance(name, str) and str(name) == SELECTOR:
            raise LinkRefused(INVALID_FIELD, f"the filter '{SELECTOR}' has to be described, by its name or its number")
    return Start(partition, 0, {})


def _is_selector(descriptor: Any) -> bool:
    if isinstance(descriptor, str):
        return str(descriptor) == SELECTOR
    return isinstance(descriptor, int) and int(descriptor) in SELECTOR_NUMBERS


def _first(expression: Any, partition: Partition) -> int:
    match = _SELECTOR.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        raise LinkRefused(
            INVALID_FIELD,
            f"the selector {str(expression)!r:.200} is none of those that an event hub knows: amqp.annotation."
            f"{OFFSET_KEY}, {SEQUENCE_NUMBER_KEY} or {ENQUEUED_TIME_KEY}, > or >=, and a value in quotes",
        )
    key, comparison, text = match.groups()
    end = partition.next_offset
    if key == OFFSET_KEY and text == "@latest":
        return end
    number = _number(text)
    if number is None:
        raise _invalid(key, text, end)
    wanted = number if comparison == ">=" else number + 1
    if key == ENQUEUED_TIME_KEY:
        try:
            at = partition.offset_for_time(wanted)
        except (CorruptLog, OSError):
            return 0  # reading raises it
        return end if at is None else at[0]
    if wanted > end:
        raise _invalid(key, text, end)
    return max(0, wanted)


def _number(text: str) -> int | None:
    digits = text[1:] if text.startswith("-") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def _invalid(key: str, text: str, end: int) -> LinkRefused:
    """Return the refusal of a position, with the service's text, by which clients recognise it."""
    if key == ENQUEUED_TIME_KEY:
        return LinkRefused(ARGUMENT_ERROR, f"The supplied enqueued time '{text:.80}' is no number of milliseconds.")
    what, last = "sequence number", str(end - 1)
    if key == OFFSET_KEY:
        what, last = "offset", format_offset(end - 1) if end else "-1"
    return LinkRefused(
        ARGUMENT_ERROR, f"The supplied {what} '{text:.80}' is invalid. The last {what} in the system is '{last}'"
    )
