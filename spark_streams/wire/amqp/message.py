"""Decode one AMQP message at a time: find its encoded sections, and decode their values.

::

    message  = [header] [delivery-annotations] [message-annotations] bare-message [footer]
    bare     = [properties] [application-properties] body
    body     = data*  |  amqp-sequence*  |  amqp-value
    section  = 0x00 0x53 code value             code: 0x70 header … 0x78 footer, in ascending order

The decoder accepts what clients do against the rules: no body at all (proton), the footer before the body (rhea), and a
data section that holds null (Microsoft's SDK for JavaScript).

Spec: AMQP 1.0 part 3 §3.2 (message format).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from spark_streams.errors import RemoteProtocolError
from spark_streams.redaction import quoted
from spark_streams.wire.amqp.decode import Raw, decode_value
from spark_streams.wire.amqp.values import Symbol, ULong

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78

_LISTS: Final = frozenset({0x45, 0xC0, 0xD0})
_MAPS: Final = frozenset({0xC1, 0xD1})
_BINARIES: Final = frozenset({0x40, 0xA0, 0xB0})
_SECTIONS: Final = (
    (HEADER, "header", "list", _LISTS),
    (DELIVERY_ANNOTATIONS, "delivery-annotations", "map", _MAPS),
    (MESSAGE_ANNOTATIONS, "message-annotations", "map", _MAPS),
    (PROPERTIES, "properties", "list", _LISTS),
    (APPLICATION_PROPERTIES, "application-properties", "map", _MAPS),
    (DATA, "data", "binary", _BINARIES),
    (AMQP_SEQUENCE, "amqp-sequence", "list", _LISTS),
    (AMQP_VALUE, "amqp-value", "*", None),
    (FOOTER, "footer", "map", _MAPS),
)
"""Code, name, the value's type in the symbolic descriptor, and the format codes that it may have; None for any."""
SECTION_NAMES: Final = {code: name for code, name, _, _ in _SECTIONS}
_CODES: Final = {f"amqp:{name}:{kind}": code for code, name, kind, _ in _SECTIONS}
VALUE_CODES: Final = {code: allowed for code, _, _, allowed in _SECTIONS if allowed is not None}
"""Each section code to the format codes that its value may have; an amqp-value may have any."""


class Section(NamedTuple):
    """The place of a section: ``start`` is its 0x00, ``value`` its value's constructor, ``end`` is exclusive."""

    code: int
    start: int
    value: int
    end: int


def split_sections(raw: Raw, last: int = FOOTER, most: int | None = None) -> list[Section]:
    """Return the sections of one message; see ``each_section``.

    Args:
        raw: exactly one encoded message, or as much of one as ``last`` needs.
        last: the code of the last section of interest; the message is not read beyond it.
        most: the message is not read beyond so many sections; None: as many as there are.
    """
    return list(islice(each_section(raw, last), most))


def each_section(raw: Raw, last: int = FOOTER) -> Iterator[Section]:
    """Yield the sections of one message, with values not decoded; the arguments are those of ``split_sections``.

    Raises:
        RemoteProtocolError: the bytes are no sections, their order is wrong, or a section occurs twice.
    """
    position = before = 0
    body = False
    while position < len(raw):
        code, value = section_head(raw, position)
        if last < FOOTER and code > last:
            break
        end = skip_value(raw, value)
        if code in VALUE_CODES and raw[value] not in VALUE_CODES[code]:
            raise RemoteProtocolError(f"{SECTION_NAMES[code]} section: holds format code 0x{raw[value]:02x}")
        if before and (not may_follow(before, code) or (body and before == FOOTER)):
            raise RemoteProtocolError(
                f"message: {SECTION_NAMES[code]} section after the {SECTION_NAMES[before]} section"
            )
        yield Section(code, position, value, end)
        position, before, body = end, code, body or DATA <= code <= AMQP_VALUE
        if last < FOOTER and code >= last:
            break


def section_head(raw: Raw, position: int) -> tuple[int, int]:
    """Return the code of the section that begins at ``position``, and where its value does.

    Raises:
        RemoteProtocolError: no section begins there.
    """
    if raw[position] != 0:
        raise RemoteProtocolError(f"message at byte {position}: 0x{raw[position]:02x}, expected a section (0x00)")
    descriptor, value = decode_value(raw, position + 1)
    code = _CODES.get(str(descriptor)) if isinstance(descriptor, Symbol) else descriptor
    if not (isinstance(descriptor, (ULong, Symbol)) and code in SECTION_NAMES):
        raise RemoteProtocolError(f"message at byte {position}: {quoted(descriptor, 80)} describes no message section")
    return int(code), value


def may_follow(before: int, code: int) -> bool:
    """Return whether a section may follow another one (AMQP 1.0, 3.2)."""
    if before == code:
        return code in (DATA, AMQP_SEQUENCE)
    if before in (DATA, AMQP_SEQUENCE, AMQP_VALUE):
        return code == FOOTER
    if before == FOOTER:
        return DATA <= code <= AMQP_VALUE
    return code > before


def skip_value(raw: Raw, position: int) -> int:
    """Return the position after the value at ``position``; nothing is decoded, because constructors give sizes.

    Raises:
        RemoteProtocolError: the bytes end before the value does, or a byte is no format code.
    """
    start, missing = position, 1  # a described value is two values after its 0x00: descriptor and value
    while position < len(raw):
        code = raw[position]
        kind = code >> 4
        position += 1
        if code == 0:
            missing += 1
            continue
        if kind < 4:
            raise RemoteProtocolError(f"AMQP value at byte {position - 1}: 0x{code:02x} is no format code")
        if kind < 0xA:
            position += (0, 1, 2, 4, 8, 16)[kind - 4]
        else:
            width = 4 if kind % 2 else 1
            if position + width > len(raw):
                break
            position += width + int.from_bytes(raw[position : position + width], "big")
        if position > len(raw):
            break
        missing -= 1
        if not missing:
            return position
    raise RemoteProtocolError(f"AMQP value at byte {start}: the bytes end before the value does")


def decode_section(raw: Raw, section: Section) -> Any:
    """Decode a section's value; see ``decode_part``."""
    return decode_part(raw, section.code, section.value, section.end)


def decode_part(raw: Raw, code: int, at: int, end: int) -> Any:
    """Decode a value of a section, from ``at`` to ``end`` (exclusive).

    Raises:
        RemoteProtocolError: the value cannot be decoded, or ends elsewhere; the message names the section.
    """
    try:
        value, stop = decode_value(raw, at)
    except RemoteProtocolError as fault:
        raise RemoteProtocolError(f"{SECTION_NAMES[code]} section: {fault}") from fault
    if stop != end:
        raise RemoteProtocolError(f"{SECTION_NAMES[code]} section: its value ends at {stop}, not {end}")
    return value


def decode_sections(raw: Raw) -> list[tuple[int, Any]]:
    """Return the code and the decoded value of every section of exactly one encoded message.

    Raises:
        RemoteProtocolError: the bytes are anything else.
    """
    return [(section.code, decode_section(raw, section)) for section in split_sections(raw)]


class Entry(NamedTuple):
    """An entry of a map: its key (empty for one that is no text), and where it begins, its value, and its end."""

    key: str
    start: int
    value: int
    end: int


def each_entry(raw: Raw, at: int) -> Iterator[Entry]:
    """Yield the entries of the map at a place; no value is decoded.

    Raises:
        RemoteProtocolError: the bytes are no map.
    """
    end = skip_value(raw, at)
    count, start = item_count(raw, at)
    if count % 2:
        raise RemoteProtocolError(f"AMQP map at byte {at}: {count} keys and values, expected an even number")
    for _ in range(count // 2):
        value = skip_value(raw, start)
        stop = skip_value(raw, value)
        if stop > end:
            break
        yield Entry(_key(raw[start:value]), start, value, stop)
        start = stop
    if start != end:
        raise RemoteProtocolError(f"AMQP map at byte {at}: its entries do not end with it")


def _key(encoded: Raw) -> str:
    head = {0xA1: 2, 0xA3: 2, 0xB1: 5, 0xB3: 5}.get(encoded[0])
    return "" if head is None else str(encoded[head:], "utf-8", "replace")


def item_places(raw: Raw, at: int) -> list[int]:
    """Return where each item of the list or map at a place begins, and where the last one ends.

    Raises:
        RemoteProtocolError: the items do not end with the list or map.
    """
    end = skip_value(raw, at)
    count, first = item_count(raw, at)
    places = [first]
    while len(places) <= count and places[-1] < end:
        places.append(skip_value(raw, places[-1]))
    if places[-1] != end or len(places) <= count:
        raise RemoteProtocolError(f"AMQP list or map at byte {at}: its items do not end with it")
    return places


def item_count(raw: Raw, at: int) -> tuple[int, int]:
    """Return how many items the list or map at a place claims, keys and values each, and where the first one begins."""
    if raw[at] == 0x45:
        return 0, at + 1
    width = 4 if raw[at] & 0x10 else 1
    return int.from_bytes(raw[at + 1 + width : at + 1 + 2 * width], "big"), at + 1 + 2 * width
