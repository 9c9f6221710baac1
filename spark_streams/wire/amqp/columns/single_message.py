"""Decode the columns of one message with ``wire/amqp/message.py``: for messages that the lockstep walk marks irregular.

This file defines the meaning of every column; ``decode.py`` returns the same, faster, for common shapes.

- ``value``: data sections joined; an amqp-value string as UTF-8, an amqp-value binary its bytes; any other amqp-value
  (null too: ``null``) as canonical JSON; amqp-sequence sections as one JSON array. No body: null.
- ``offset``, ``timestamp``, the partitions: annotations, where the dialect has them (``places``); an offset that is a
  number as 20 digits.
- ``key``: the annotation of the dialect, such as ``event-streams-group-key``, else property ``group-id``; a null counts
  as missing.
- ``properties``: null without the section; ids as canonical text, timestamps in microseconds.
- ``application_properties``, ``message_annotations``: null without the section, keys and values as canonical text, a
  null value as null. Of equal keys the last one's value stays, at the first one's place, because Spark's maps refuse
  duplicates.
- ``message``: the encoded message from its message annotations on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from spark_streams.errors import RemoteProtocolError
from spark_streams.offsets import format_offset
from spark_streams.redaction import quoted
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.canonical_text import canonical_bytes, canonical_json
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

_ANNOTATIONS: Final = frozenset(
    {"offset", "source_partition", "target_partition", "timestamp", "timestamp_ms", "partitions_changed"}
)
"""The columns that are annotations of the log, or for it."""
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


def microseconds(milliseconds: int, what: str, overflow: Overflow = "fail") -> int | None:
    """Return an instant in microseconds; None if it does not fit int64 and ``overflow`` is ``null``.

    Raises:
        TimestampOverflow: the instant does not fit, and ``overflow`` is ``fail``; the message names ``what``.
    """
    if not -MAX_TIMESTAMP_MS <= milliseconds <= MAX_TIMESTAMP_MS:
        if overflow == "null":
            return None
        raise TimestampOverflow(
            f"{what}: {int(milliseconds)} ms does not fit a timestamp in microseconds "
            f"(expected {-MAX_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS})"
        )
    return milliseconds * 1000


def last_section(names: Collection[str], places: Places) -> int:
    """Return the code of the last section that columns need, a footer for all; a message is not read beyond it."""
    return places.head if _ANNOTATIONS.issuperset(names) else m.FOOTER


def row_columns(
    raw: bytes, names: Collection[str], overflow: Overflow = "fail", places: Places = EVENT_STREAMS.places
) -> dict[str, Any]:
    """Return the named columns of one message: texts as bytes, timestamps as int, maps as lists of pairs.

    Args:
        raw: exactly one encoded message, up to the ``last_section`` of ``names`` at least.
        names: as for ``decode_columns``.
        overflow: as for ``decode_columns``.
        places: as for ``decode_columns``.

    Raises:
        RemoteProtocolError: the message, or a part of it that a named column needs, is broken.
        TimestampOverflow: as ``decode_columns``.
    """
    sections = m.split_sections(raw, last_section(names, places))
    by_code = {section.code: section for section in sections}

    def content(code: int) -> Any:
        return m.decode_section(raw, by_code[code]) if code in by_code else None

    columns: dict[str, Any] = {}
    wanted = set(names)
    in_place = {name: place for name, place in places.by_column.items() if name in wanted & _ANNOTATIONS}
    if "partitions_changed" in wanted or any(place.section == m.DELIVERY_ANNOTATIONS for place in in_place.values()):
        delivery = content(m.DELIVERY_ANNOTATIONS)
        columns.update(_annotated(m.DELIVERY_ANNOTATIONS, delivery, in_place, overflow))
        if "partitions_changed" in wanted:
            columns["partitions_changed"] = _partitions(delivery)
    of_message = any(place.section == m.MESSAGE_ANNOTATIONS for place in in_place.values())
    annotations = None
    if of_message or wanted & {"key", "group_key", "message_annotations"}:
        annotations = content(m.MESSAGE_ANNOTATIONS)
        columns.update(_annotated(m.MESSAGE_ANNOTATIONS, annotations, in_place, overflow))
    properties = content(m.PROPERTIES) if wanted & {"key", "properties", "creation_time_ms"} else None
    if wanted & {"key", "properties"} and properties is not None:
        columns["properties"] = _properties(properties, overflow)
    texts = None if annotations is None or wanted <= _ANNOTATIONS else text_pairs(annotations)
    columns["message_annotations"] = texts
    group_key = None if places.key is None else dict(texts or ()).get(places.key.key.encode())
    if group_key is not None:
        columns["key"] = columns["group_key"] = group_key
    elif properties is not None and "key" in wanted:
        columns["key"] = columns["properties"]["group_id"]
    if "creation_time_ms" in wanted and properties is not None:
        columns["creation_time_ms"] = _field(properties, CREATION_TIME)
    if "application_properties" in wanted:
        application = content(m.APPLICATION_PROPERTIES)
        columns["application_properties"] = None if application is None else text_pairs(application)
    if "value" in wanted:
        columns["value"] = _value(raw, sections)
    columns["bare_start"] = next((s.start for s in sections if s.code > m.DELIVERY_ANNOTATIONS), len(raw))
    if "message" in wanted:
        columns["message"] = raw[columns["bare_start"] :]
    return {name: columns.get(name) for name in (*wanted, "bare_start")}


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


def text_pairs(entries: dict[Any, Any] | Pairs) -> list[tuple[bytes, bytes | None]]:
    """Return a map's entries as canonical text."""
    pairs = entries if isinstance(entries, Pairs) else entries.items()
    texts: dict[bytes, bytes | None] = {}
    for key, value in pairs:
        texts[canonical_bytes(key)] = None if value is None else canonical_bytes(value)
    return list(texts.items())


def _annotated(section: int, annotations: Any, in_place: Mapping[str, Place], overflow: Overflow) -> dict[str, Any]:
    """Return the columns that are annotations of one section."""
    columns: dict[str, Any] = {}
    for name, place in in_place.items():
        value = lookup(annotations, place.key) if place.section == section else None
        if value is None:
            continue
        what = f"{'delivery' if section == m.DELIVERY_ANNOTATIONS else 'message'} annotation {place.key}"
        kind, expected = _EXPECTED[place.kind]
        _check(value, kind, what, expected)
        if place.kind == "long":
            columns[name] = _offset(value, what)
        elif place.kind == "timestamp":
            columns[name] = microseconds(value, place.key, overflow) if name == "timestamp" else int(value)
        else:
            columns[name] = value.encode()
    return columns


def _offset(number: int, what: str) -> bytes:
    if number < 0:
        raise RemoteProtocolError(f"{what}: {number}, expected a number that is not negative")
    return format_offset(number).encode()


def _partitions(annotations: Any) -> list[str] | None:
    found = None
    for key in ASSIGNED_KEYS:
        changed = lookup(annotations, key)
        if changed is None:
            continue
        items = list(changed.items) if isinstance(changed, Array) else changed
        items = items if isinstance(items, list) else [items]
        if not all(isinstance(item, str) for item in items):
            raise RemoteProtocolError(f"delivery annotation {key}: {quoted(changed, 80)}, expected an array of symbols")
        found = [str(item) for item in items]
    return found


def _field(properties: list[Any], index: int) -> Any:
    name, kind = PROPERTY_FIELDS[index]
    value = properties[index] if index < len(properties) else None
    _check(value, _ALLOWED[kind], f"property {name.replace('_', '-')}", kind)
    return value


def _check(value: Any, allowed: type, what: str, expected: str) -> None:
    if value is not None and not isinstance(value, allowed):
        raise RemoteProtocolError(f"{what}: {quoted(value, 80)}, expected {expected}")


def _properties(properties: list[Any], overflow: Overflow) -> dict[str, Any]:
    if len(properties) > len(PROPERTY_FIELDS):
        raise RemoteProtocolError(f"properties section: {len(properties)} fields, expected {len(PROPERTY_FIELDS)}")
    fields: dict[str, Any] = {}
    for index, (name, kind) in enumerate(PROPERTY_FIELDS):
        value = _field(properties, index)
        if value is not None and kind == "timestamp":
            value = microseconds(value, f"property {name.replace('_', '-')}", overflow)
        elif value is not None and kind not in ("uint", "binary"):
            value = canonical_bytes(value)
        fields[name] = value
    return fields


def _value(raw: bytes, sections: list[m.Section]) -> bytes | None:
    body = [section for section in sections if m.DATA <= section.code <= m.AMQP_VALUE]
    if not body:
        return None
    values = [m.decode_section(raw, section) for section in body]
    if body[0].code == m.DATA:
        return b"".join(values)
    if body[0].code == m.AMQP_SEQUENCE:
        return canonical_json([item for sequence in values for item in sequence]).encode()
    if type(values[0]) is bytes:
        return bytes(values[0])
    if type(values[0]) is str:
        return values[0].encode()
    return canonical_json(values[0]).encode()
