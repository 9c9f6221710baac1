"""Decode the columns of one message with ``wire/amqp/message.py``: for messages that the lockstep walk marks irregular.

This file defines the meaning of every column; ``decode.py`` returns the same, faster, for common shapes.

A cell depends on its message alone: on the sections up to the last one that its column needs (``_LAST``), and in a map
or list on the values that the column has. Damage anywhere else changes nothing, whichever columns are asked for.

- ``value``: data sections joined; an amqp-value string as UTF-8, an amqp-value binary its bytes; any other amqp-value
  as canonical JSON; amqp-sequence sections as one JSON array. No body, or nothing but null in it: null.
- ``offset``, ``timestamp_ms``, the partitions: annotations, where the dialect has them (``places``); an offset that is
  a number as 20 digits.
- ``key``: the annotation of the dialect, such as ``event-streams-group-key``, else property ``group-id``; a null counts
  as missing.
- ``properties_ms``: null without the section; ids as canonical text, timestamps in milliseconds.
- ``application_properties``, ``message_annotations``: null without the section, keys and values as canonical text, a
  null value as null. Of equal keys the last one's value stays, at the first one's place, because Spark's maps refuse
  duplicates.
- ``message``: the encoded message from its message annotations on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from functools import cache
from typing import Any, Final, Literal

from spark_streams.errors import RemoteProtocolError
from spark_streams.offsets import format_offset
from spark_streams.redaction import quoted
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.canonical_text import canonical_bytes, canonical_json
from spark_streams.wire.amqp.decode import STEP_BYTES, Raw, value_steps
from spark_streams.wire.amqp.dialects.dialect import Place, Places
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.event_streams import ASSIGNED_KEYS
from spark_streams.wire.amqp.values import Array, Long, Pairs, Timestamp, UInt

Overflow = Literal["fail", "null"]
"""How to handle an instant that does not fit int64 microseconds: the read fails, or the cell is null."""

MAX_TIMESTAMP_MS: Final = 9_223_372_036_854_775
"""The largest distance from the epoch, in milliseconds, whose microseconds fit int64."""

PROPERTY_FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("message_id", "text"),
    ("user_id", "binary"),
    ("to", "text"),
    ("subject", "string"),
    ("reply_to", "text"),
    ("correlation_id", "text"),
    ("content_type", "string"),
    ("content_encoding", "string"),
    ("absolute_expiry_time", "timestamp"),
    ("creation_time", "timestamp"),
    ("group_id", "string"),
    ("group_sequence", "uint"),
    ("reply_to_group_id", "string"),
)
"""The fields of the properties section in order, and the types of their values (part 3 §3.2.4); ``text`` is any."""
CREATION_TIME, GROUP_ID = 9, 10
"""The numbers of two of them."""

ANNOTATIONS: Final = frozenset(
    {"offset", "source_partition", "target_partition", "timestamp", "timestamp_ms", "partitions_changed"}
)
"""The columns that are annotations of the log, or for it."""
_SECTIONS_OF: Final = {
    "message_annotations": m.MESSAGE_ANNOTATIONS,
    "application_properties": m.APPLICATION_PROPERTIES,
}
"""The columns that are maps, and their sections."""
_LAST: Final = _SECTIONS_OF | {
    "message": m.DELIVERY_ANNOTATIONS,
    "group_key": m.MESSAGE_ANNOTATIONS,
    "key": m.PROPERTIES,
    "properties_ms": m.PROPERTIES,
    "creation_time_ms": m.PROPERTIES,
    "value": m.FOOTER,
}
"""The last section that a column needs, whatever the message holds after it; the others are annotations of the log."""
_EXPECTED: Final[dict[str, tuple[type, str]]] = {
    "symbol": (str, "a symbol"),
    "string": (str, "a string"),
    "long": (Long, "a long"),
    "timestamp": (Timestamp, "a timestamp"),
}
"""The kinds of annotations: the Python type of their values, and its name in errors."""

_ALLOWED: Final = {"text": object, "string": str, "binary": bytes, "timestamp": Timestamp, "uint": UInt}


class TimestampOverflow(RemoteProtocolError):
    """An instant is legal AMQP, but does not fit int64 microseconds."""


def last_section(names: Collection[str], places: Places) -> int:
    """Return the code of the last section that columns need, a footer for all; a message is not read beyond it."""
    return max((_LAST.get(name, places.head) for name in names), default=places.head)


def row_columns(
    raw: bytes, names: Collection[str], places: Places = EVENT_STREAMS.places, last: int | None = None
) -> dict[str, Any]:
    """Return the named columns of one message: texts as bytes, timestamps as int, maps as lists of pairs.

    Args:
        raw: exactly one encoded message, up to the section ``last`` at least.
        names: as for ``decode_columns``, with times in milliseconds only.
        places: as for ``decode_columns``.
        last: the code of the last section to decode; None for the ``last_section`` of ``names``.

    Raises:
        RemoteProtocolError: a part of the message that a named column needs is broken.
    """
    message = _Message(raw, m.split_sections(raw, last_section(names, places) if last is None else last))
    columns: dict[str, Any] = {}
    for name in names:
        place = places.by_column.get(name)
        if name in _SECTIONS_OF:
            columns[name] = message.texts(_SECTIONS_OF[name])
        elif name in ("key", "group_key"):
            found = None if places.key is None else message.annotation(places.key)
            text = None if found is None else canonical_bytes(found)
            columns[name] = message.field_text(GROUP_ID) if text is None and name == "key" else text
        elif place is not None:
            columns[name] = _annotation(message.annotation(place), place)
        elif name == "partitions_changed":
            columns[name] = _partitions(message)
        elif name == "properties_ms":
            columns[name] = message.fields()
        elif name == "creation_time_ms":
            columns[name] = message.field(CREATION_TIME)
        elif name == "value":
            columns[name] = _value(raw, message.sections)
        else:
            columns[name] = raw[message.bare_start :] if name == "message" else None
    return columns | {"bare_start": message.bare_start}


def message_steps(raw: Raw, places: Places) -> Generator[None, None, dict[str, Any]]:
    """Check one message for all its possible readers, and return what a log node needs of it.

    Nothing else is built, so a value of millions of items takes no memory.

    Args:
        raw: exactly one encoded message.
        places: as for ``decode_columns``.

    Returns:
        ``bare_start``, and the columns ``group_key``, ``target_partition`` and ``creation_time_ms``.

    Yields:
        None, after each few thousand bytes.

    Raises:
        RemoteProtocolError: a part of the message that a reader may need is broken.
    """
    columns: dict[str, Any] = dict.fromkeys(("group_key", "target_partition", "creation_time_ms"))
    columns["bare_start"] = mark = 0
    for section in m.each_section(raw):
        if section.start - mark > STEP_BYTES:
            mark = section.start
            yield
        if section.code <= m.DELIVERY_ANNOTATIONS:
            columns["bare_start"] = section.end
        elif section.code < m.FOOTER:
            yield from value_steps(raw, section.value, section.end, keep=False)
        if section.code == m.PROPERTIES:
            columns["creation_time_ms"] = (_Message(raw, [section]).fields() or {})["creation_time"]
        for name, place in places.by_column.items():
            if name in columns and place.section == section.code:
                last, mark = None, section.start
                for entry in m.each_entry(raw, section.value):
                    if entry.end - mark > STEP_BYTES:
                        mark = entry.end
                        yield
                    last = entry if entry.key == place.key else last
                if last is not None:
                    value = _short(raw, section.code, last.value, last.end)
                    text = name == "group_key" and value is not None
                    columns[name] = canonical_bytes(value) if text else _annotation(value, place)
    return columns


def _short(raw: Raw, code: int, at: int, end: int) -> Any:
    """Decode a value of a section, unless it is a compound of many."""
    if end - at > STEP_BYTES and not 0x40 <= raw[at] < 0xC0:
        raise RemoteProtocolError(f"{m.SECTION_NAMES[code]} section: a list, map or array of {end - at} bytes")
    return m.decode_part(raw, code, at, end)


class _Message:
    """One message: each value is decoded alone, when a column needs it."""

    def __init__(self, raw: Raw, sections: list[m.Section]) -> None:
        self._raw = raw
        self.sections = sections
        self._values = {section.code: section.value for section in sections}
        self.bare_start = max((s.end for s in sections if s.code <= m.DELIVERY_ANNOTATIONS), default=0)
        self._entries = cache(lambda code: self._places(m.each_entry, code))
        self._items = cache(lambda: self._places(m.item_places, m.PROPERTIES))

    def _places(self, read: Callable[[Raw, int], Iterable[Any]], code: int) -> list[Any] | None:
        """Return where the entries or items of a section are; None without the section."""
        if code not in self._values:
            return None
        try:
            return list(read(self._raw, self._values[code]))
        except RemoteProtocolError as fault:
            raise RemoteProtocolError(f"{m.SECTION_NAMES[code]} section: {fault}") from fault

    def annotation(self, place: Place) -> Any:
        """Return the value of an annotation, of several the last one's; None if there is none."""
        found = [entry for entry in self._entries(place.section) or () if entry.key == place.key]
        return m.decode_part(self._raw, place.section, found[-1].value, found[-1].end) if found else None

    def texts(self, code: int) -> list[tuple[bytes, bytes | None]] | None:
        """Return the entries of a map as canonical text; None without the section."""
        entries = self._entries(code)
        if entries is None:
            return None
        texts: dict[bytes, bytes | None] = {}
        for _, start, at, end in entries:
            key, value = m.decode_part(self._raw, code, start, at), m.decode_part(self._raw, code, at, end)
            texts[canonical_bytes(key)] = None if value is None else canonical_bytes(value)
        return list(texts.items())

    def field(self, index: int) -> Any:
        """Return a field of the properties; None for null and where there is none."""
        places = self._items() or ()
        if index + 1 >= len(places):
            return None
        value = _short(self._raw, m.PROPERTIES, *places[index : index + 2])
        name, kind = PROPERTY_FIELDS[index]
        _check(value, _ALLOWED[kind], f"property {name.replace('_', '-')}", kind)
        return value

    def field_text(self, index: int) -> bytes | None:
        """Return a field of the properties as canonical text."""
        value = self.field(index)
        return None if value is None else canonical_bytes(value)

    def fields(self) -> dict[str, Any] | None:
        """Return all fields of the properties, times in milliseconds; None without the section."""
        if m.PROPERTIES not in self._values:
            return None
        count, _ = m.item_count(self._raw, self._values[m.PROPERTIES])
        if count > len(PROPERTY_FIELDS):
            raise RemoteProtocolError(f"properties section: {count} fields, expected {len(PROPERTY_FIELDS)}")
        as_is = ("timestamp", "uint", "binary")
        return {
            name: self.field(index) if kind in as_is else self.field_text(index)
            for index, (name, kind) in enumerate(PROPERTY_FIELDS)
        }


def lookup(entries: dict[Any, Any] | Pairs | None, key: str) -> Any:
    """Return the value at a text or symbol in a map; that of the last one if there are several; None if there is none.

    Args:
        entries: the map; None if there is none.
        key: the text or symbol.
    """
    if entries is None:
        return None
    pairs = entries if isinstance(entries, Pairs) else entries.items()
    values = [value for name, value in pairs if isinstance(name, str) and str(name) == key]
    return values[-1] if values else None


def _annotation(value: Any, place: Place) -> Any:
    """Return the value of a column that is an annotation."""
    if value is None:
        return None
    what = f"{'delivery' if place.section == m.DELIVERY_ANNOTATIONS else 'message'} annotation {place.key}"
    kind, expected = _EXPECTED[place.kind]
    _check(value, kind, what, expected)
    if place.kind == "long":
        return _offset(value, what)
    return int(value) if place.kind == "timestamp" else value.encode()


def _offset(number: int, what: str) -> bytes:
    if number < 0:
        raise RemoteProtocolError(f"{what}: {number}, expected a number that is not negative")
    return format_offset(number).encode()


def _partitions(message: _Message) -> list[str] | None:
    found = None
    for key in ASSIGNED_KEYS:
        changed = message.annotation(Place(m.DELIVERY_ANNOTATIONS, key, "symbol"))
        if changed is None:
            continue
        items = list(changed.items) if isinstance(changed, Array) else changed
        items = items if isinstance(items, list) else [items]
        if not all(isinstance(item, str) for item in items):
            raise RemoteProtocolError(f"delivery annotation {key}: {quoted(changed, 80)}, expected an array of symbols")
        found = [str(item) for item in items]
    return found


def _check(value: Any, allowed: type, what: str, expected: str) -> None:
    if value is not None and not isinstance(value, allowed):
        raise RemoteProtocolError(f"{what}: {quoted(value, 80)}, expected {expected}")


def _value(raw: bytes, sections: list[m.Section]) -> bytes | None:
    body = [section for section in sections if m.DATA <= section.code <= m.AMQP_VALUE]
    if not body:
        return None
    values = [m.decode_section(raw, section) for section in body]
    if body[0].code == m.DATA:
        content = [value for value in values if value is not None]
        return b"".join(content) if content else None
    if body[0].code == m.AMQP_SEQUENCE:
        return canonical_json([item for sequence in values for item in sequence]).encode()
    if values[0] is None or type(values[0]) is bytes:
        return values[0]
    if type(values[0]) is str:
        return values[0].encode()
    return canonical_json(values[0]).encode()
