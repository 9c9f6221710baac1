"""Words of the event stream specification, for tests: names, filters, events as they arrive, encoded events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import proton
from proton import Data, Delivery, Described, Message, symbol, ulong

CAPABILITY = symbol("AMQP_EVENT_STREAMS_V1_0")
PARTITION = symbol("event-streams-partition")
GROUP = symbol("event-streams-consumer-group")
EPOCH = symbol("event-streams-epoch")
OFFSET = symbol("event-streams-offset")
TIMESTAMP = symbol("event-streams-timestamp")
SOURCE_PARTITION = symbol("event-streams-source-partition")
TARGET_PARTITION = symbol("event-streams-target-partition")
CHANGED = symbol("event-streams-associated-partitions-changed")
GROUP_KEY = symbol("event-streams-group-key")
DA_FILTER = symbol("amqp:event-streams-delivery-annotations-filter")
SQL_FILTER = symbol("amqp:event-streams-sql-filter")
DA_CODE = ulong(0x200)
SQL_CODE = ulong(0x201)


def annotations_filter(descriptor: Any = DA_FILTER, **values: Any) -> Described:
    """A delivery annotations filter over ``offset`` and ``timestamp``."""
    entries: dict[Any, Any] = {}
    if "offset" in values:
        entries[OFFSET] = symbol(values["offset"])
    if "timestamp" in values:
        entries[TIMESTAMP] = proton.timestamp(values["timestamp"])
    return Described(descriptor, entries)


def sql_filter(text: str, descriptor: Any = SQL_FILTER) -> Described:
    return Described(descriptor, text)


EARLIEST = annotations_filter(offset="@earliest")


class Refused(Exception):
    """The other side answered an attach, or a transfer, with an error."""

    def __init__(self, condition: str | None, description: str | None, info: Any = None) -> None:
        super().__init__(condition, description)
        self.condition = condition
        self.description = description or ""
        self.info = info


class Ended(Exception):
    """The connection ended; ``condition`` is the close's or the transport's."""

    def __init__(self, condition: str | None, description: str | None = None) -> None:
        super().__init__(condition, description)
        self.condition = condition


@dataclass
class Event:
    """One delivery as it arrived."""

    encoded: bytes
    delivery: Delivery

    @cached_property
    def message(self) -> Message:
        message = Message()
        message.decode(self.encoded)
        return message

    @property
    def body(self) -> Any:
        body = self.message.body
        return bytes(body) if isinstance(body, memoryview) else body

    @property
    def annotations(self) -> dict[Any, Any]:
        return dict(self.message.instructions or {})

    @property
    def offset(self) -> Any:
        return self.annotations[OFFSET]

    @property
    def timestamp(self) -> Any:
        return self.annotations.get(TIMESTAMP)

    @property
    def partition(self) -> Any:
        return self.annotations.get(SOURCE_PARTITION)


def sections(encoded: bytes) -> list[tuple[int, Any]]:
    """Return (descriptor code, value) of each section, as proton reads them."""
    found = []
    while encoded:
        data = Data()
        encoded = encoded[data.decode(encoded) :]
        data.rewind()
        data.next()
        described = data.get_object()
        found.append((int(described.descriptor), described.value))
    return found


def encode(
    message: Any,
    *,
    target: str | None = None,
    key: str | None = None,
    annotations: Mapping[Any, Any] | None = None,
    instructions: Mapping[Any, Any] | None = None,
) -> bytes:
    """Encode an event: bytes become a data section, a str an amqp-value; a Message is itself, a bytearray sent raw."""
    if isinstance(message, bytearray):
        return bytes(message)
    if not isinstance(message, Message):
        message = Message(body=message, inferred=isinstance(message, bytes))
    if target is not None:
        instructions = {**(instructions or {}), TARGET_PARTITION: symbol(target)}
    if key is not None:
        annotations = {**(annotations or {}), GROUP_KEY: key}
    if instructions:
        message.instructions = dict(instructions)
    if annotations:
        message.annotations = dict(annotations)
    return bytes(message.encode())
