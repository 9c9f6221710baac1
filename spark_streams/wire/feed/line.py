"""One line of a feed at a time: all of the rules, and what ``lines`` falls back to for unusual lines.

A line is a JSON object; duplicate members count as their last one. It is, by its members:

* an event: the dialect's event member (``data`` or ``event``), an object or a string; the other dialects' member is
  taken where this one and a cursor are missing (notes, section 4, item 5). Any other kind of value is refused (P-25,
  F-22), but a null beside a cursor, which is how a server that always writes all members leaves one out.
* a checkpoint: a string ``cursor``; null is none. A line may be an event and then a checkpoint (C-06).
* anything else: passed over (C-05).

v1 events and checkpoints say their ``partition``, and those of a partition that was not asked for are passed over
(C-21). Beside an event, ``"encoding": "base64"`` with a string says that the string is base64 of bytes that are no
text, and a string ``key`` is the event's key: extensions of this project's server, unknown members to everyone else.

Spec: feedapi-spec SPEC.md, "Response"; notes C-05, C-06, C-17, C-21, F-22.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, Final, NamedTuple, NoReturn

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.strict import MAX_DEPTH, depth_of, refuse_constant, shown

__all__ = ["BASE64", "Line", "malformed", "read_line"]

BASE64: Final = "base64"
"""The value of member ``encoding`` beside a string event that is base64 of other bytes."""

_SPACE: Final = re.compile("[ \t\r\n]*")
# Numbers are checked and not converted: a number of many digits costs quadratic time, and no value is looked at.
_DECODER: Final = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0, parse_constant=refuse_constant)


class Line(NamedTuple):
    """What one line says.

    ``event`` is the exact JSON text of an object, the UTF-8 of a string, or the bytes that base64 stood for; None on a
    line without event. ``text`` says that it was a string. ``cursor`` is None on a line that is no checkpoint.
    """

    event: bytes | None
    text: bool
    cursor: str | None
    key: str | None


def malformed(number: int, line: bytes, problem: str) -> NoReturn:
    """Raise for a line that breaks the protocol.

    Args:
        number: 1-based, in what was given to the parser.
        line: the line.
        problem: what is wrong with it.
    """
    raise RemoteProtocolError(f"line {number} of the response: {problem}: {shown(line)}")


def read_line(line: bytes, number: int, dialect: Dialect, partition: int | None) -> Line | None:
    """Read one line.

    Args:
        line: its bytes, without the newline; a carriage return and other JSON whitespace around it are passed over.
        number: 1-based, for errors.
        dialect: the version that is spoken.
        partition: v1: the partition that was asked for; None takes all. Not looked at in the other dialects.

    Returns:
        None for a line that is to be passed over: empty, unknown, or of another partition.

    Raises:
        RemoteProtocolError: the line is malformed; the message names it and shows its beginning.
    """
    try:
        text = line.decode("utf-8")
        if text.count("[") + text.count("{") > MAX_DEPTH and depth_of(text) > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        members = _members(text)
    except StopIteration as error:
        malformed(number, line, f"is no JSON object (character {int(error.value) + 1})")
    except UnicodeDecodeError as error:
        malformed(number, line, f"is no UTF-8 (byte {error.start + 1})")
    except (ValueError, RecursionError) as error:
        malformed(number, line, f"is no JSON object ({error})")
    if members is None:
        return None
    cursor = _get(members, "cursor")
    if cursor is not None and not isinstance(cursor, str):
        malformed(number, line, "'cursor' is no string")
    name = dialect.event_key
    if name not in members and cursor is None and dialect.other_event_key in members:
        name = dialect.other_event_key
    if name in members and cursor is not None and members[name].value is None:
        del members[name]
    if name not in members and cursor is None:
        return None
    if dialect is Dialect.V1 and not _asked_for(members, partition, number, line):
        return None
    if cursor is not None:
        _encodable(cursor, number, line, "'cursor'")
    if name not in members:
        return Line(None, False, cursor, None)
    key = _get(members, "key")
    if isinstance(key, str):
        _encodable(key, number, line, "'key'")
    return _event(members[name], _get(members, "encoding"), cursor, key if isinstance(key, str) else None, number, line)


class _Member(NamedTuple):
    value: Any
    text: str


def _members(text: str) -> dict[str, _Member] | None:
    """Return a line's members with their exact texts, the last one of each name; None for an empty line.

    Raises:
        StopIteration: at a character that cannot be there; ``value`` is its index.
        ValueError: a string or a constant is not as JSON has it.
    """
    at = _skip(text, 0)
    if at == len(text):
        return None
    at = _expect(text, at, "{")
    members: dict[str, _Member] = {}
    at = _skip(text, at)
    while text[at : at + 1] != "}" or members:
        _expect(text, at, '"')
        name, at = _DECODER.raw_decode(text, at)
        at = _expect(text, _skip(text, at), ":")
        start = _skip(text, at)
        value, at = _DECODER.raw_decode(text, start)
        members[name] = _Member(value, text[start:at])
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            break
        at = _skip(text, _expect(text, at, ","))
    at = _skip(text, at + 1)
    if at != len(text):
        raise StopIteration(at)
    return members


def _skip(text: str, at: int) -> int:
    """Return where the next character is that is no whitespace."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise StopIteration(at)
    return at + 1


def _get(members: dict[str, _Member], name: str) -> Any:
    member = members.get(name)
    return None if member is None else member.value


def _asked_for(members: dict[str, _Member], partition: int | None, number: int, line: bytes) -> bool:
    """Return whether a line of v1 is of the partition that was asked for."""
    member = members.get("partition")
    # Exact texts: numbers are not converted.
    text = "" if member is None else member.value if isinstance(member.value, str) else member.text
    if not re.fullmatch("0|[1-9][0-9]{0,8}", text):
        malformed(number, line, "'partition' is missing or no integer")
    return partition is None or int(text) == partition


def _encodable(text: str, number: int, line: bytes, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        malformed(number, line, f"{what} holds half of a surrogate pair")


def _event(member: _Member, encoding: Any, cursor: str | None, key: str | None, number: int, line: bytes) -> Line:
    value = member.value
    if isinstance(value, dict):
        return Line(member.text.encode(), False, cursor, key)
    if not isinstance(value, str):
        malformed(number, line, "the event is no JSON object and no string")
    if encoding != BASE64:
        return Line(_encodable(value, number, line, "the event"), True, cursor, key)
    try:
        return Line(base64.b64decode(value, validate=True), True, cursor, key)
    except (binascii.Error, ValueError):
        malformed(number, line, "the event is no base64")
