"""The dialects of feeds, and one line of a feed at a time, by all of the rules; ``lines`` uses it for unusual lines.

=============  =========================  ==========================  ==========================
..             v1 (ZeroEventHub)          v2a (FeedAPI of 2023)       v2b (FeedAPI, today's)
=============  =========================  ==========================  ==========================
discovery      none                       base, no arguments          base, no arguments
fetch          base                       base                        base + ``/events``
recognised by  ``n``                      ``partition``               ``token``
event member   ``data``                   ``event``                   ``data``
page size      ``pagesizehint``           ``pageSizeHint``            ``pagesizehint``
=============  =========================  ==========================  ==========================

A line is a JSON object; duplicate members count as their last one. It is, by its members:

* an event: the dialect's event member (``data`` or ``event``), an object, a string or null; the other dialects' member
  is accepted where this one and a cursor are missing (F-31). Any other kind of value is refused (P-25, F-22). A null
  next to a cursor is no event: a server that always writes all members writes it for a missing one.
* a checkpoint: a string ``cursor``; null counts as missing. A line may be an event and then a checkpoint (C-06).
* anything else: skipped (C-05).

v1 events and checkpoints carry their ``partition``, and those of a partition that was not requested are skipped (C-21).
Next to an event, ``"encoding": "base64"`` means that the string is base64 of bytes that are not text, and ``key`` is
the event's key, as its JSON text where it is no string: extensions of this project's server, unknown members to all
other readers. A published line has no other members.

Spec: feedapi-spec SPEC.md of 2023-05 (v2a) and of 2025-05 (v2b), "Response", zeroeventhub SPEC.md (v1);
docs/specifications.md, C-05, C-06, C-17, C-21, F-22, F-29, F-30.
"""

from __future__ import annotations

import base64
import json
import re
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.feed.strict_json import MAX_DEPTH, depth_of, dump_exact, load_exact, refuse_constant, shown

NDJSON: Final = "application/x-ndjson"
"""The media type of lines of JSON; it does not tell their dialect."""
ZEH: Final = "application/zeh-"
"""The prefix of the media types of ZeroEventHub's versions (zeroeventhub SPEC.md, "Content type", 691d843)."""
ZEH_V1: Final = f"{ZEH}v1"
"""The media type of version 1; clients should request it, servers may answer NDJSON."""


class Dialect(Enum):
    """A version of the protocol; the value is its name in option ``dialect``.

    ``PUBLISHED`` are the lines of a request that publishes, an extension of this project's server: events alone, in
    either member, and nothing that would not be stored.
    """

    V1 = "v1"
    V2A = "v2a"
    V2B = "v2b"
    PUBLISHED = "published"

    @property
    def event_key(self) -> str:
        """The member of a line that holds an event."""
        return "event" if self in (Dialect.V2A, Dialect.PUBLISHED) else "data"

    @property
    def other_event_key(self) -> str:
        """The member of an event in the other dialects; accepted where ``event_key`` and a cursor are missing."""
        return "data" if self.event_key == "event" else "event"


BASE64: Final = "base64"
"""The value of member ``encoding`` beside a string event that is base64 of other bytes."""

_EVENTS: Final = frozenset({"event", "data"})
_PARTITION: Final = re.compile("0|[1-9][0-9]{0,8}")
_SPACE: Final = re.compile("[ \t\r\n]*")
# Check numbers without converting them: a number of many digits costs quadratic time, and no value is used.
_DECODER: Final = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0, parse_constant=refuse_constant)


class Line(NamedTuple):
    """The content of one line.

    ``event`` is the exact JSON text of an object, the UTF-8 of a string, or the bytes decoded from base64; None for
    null, and on a line that ``is_event`` False. ``cursor`` is None on a line that is no checkpoint.
    """

    event: bytes | None
    is_event: bool
    cursor: str | None
    key: str | None


class Member(NamedTuple):
    """A member of a line's object: its value, and the start and end of its text in the line, in characters."""

    value: Any
    start: int
    end: int


_MISSING: Final = Member(None, 0, 0)


def malformed(number: int, line: bytes | memoryview, problem: str) -> NoReturn:
    """Raise for a line that breaks the protocol.

    Args:
        number: the line's number in the parser's input, from 1.
        line: the line.
        problem: the fault.
    """
    raise RemoteProtocolError(f"line {number} of the response: {problem}: {shown(line)}")


def read_line(line: bytes | memoryview, number: int, dialect: Dialect, partition: int | None) -> Line | None:
    """Read one line.

    Args:
        line: its bytes, without the newline; a carriage return and other JSON whitespace around it are skipped.
        number: 1-based, for errors.
        dialect: the version of the response.
        partition: v1: the requested partition; None accepts all. It is ignored in the other dialects.

    Returns:
        None for a line to skip: empty, unknown, or of another partition.

    Raises:
        RemoteProtocolError: the line is malformed; the message names it and shows its beginning.
    """
    try:
        text = str(line, "utf-8")
        members = _members_of(text)
    except StopIteration as error:
        malformed(number, line, f"is no JSON object (character {int(error.value) + 1})")
    except UnicodeDecodeError as error:
        malformed(number, line, f"is no UTF-8 (byte {error.start + 1})")
    except (ValueError, RecursionError) as error:
        malformed(number, line, f"is no JSON object ({error})")
    if members is None:
        return None
    if dialect is Dialect.PUBLISHED:
        _check_published(members, number, line)
    cursor = members.get("cursor", _MISSING).value
    if cursor is not None and not isinstance(cursor, str):
        malformed(number, line, "'cursor' is no string")
    event = members.get(dialect.event_key)
    if event is None and cursor is None:
        event = members.get(dialect.other_event_key)
    if event is not None and event.value is None and cursor is not None:
        event = None
    if event is None and cursor is None:
        return None
    if dialect is Dialect.V1:
        its = members.get("partition", _MISSING)
        # The line has the digits of a number, because numbers are not converted.
        digits = its.value if isinstance(its.value, str) else text[its.start : its.end]
        if not _PARTITION.fullmatch(digits):
            malformed(number, line, "'partition' is missing or no integer")
        if partition is not None and int(digits) != partition:
            return None
    if cursor is not None:
        _encodable(cursor, number, line, "'cursor'")
    if event is None:
        return Line(None, False, cursor, None)
    its = members.get("key", _MISSING)
    key = its.value
    if isinstance(key, str):
        _encodable(key, number, line, "'key'")
    elif key is not None:
        key = dump_exact(load_exact(text[its.start : its.end]))
    if event.value is None:
        return Line(None, True, cursor, key)
    if isinstance(event.value, dict):
        return Line(text[event.start : event.end].encode(), True, cursor, key)
    if not isinstance(event.value, str):
        malformed(number, line, "the event is no JSON object, no string, and not null")
    if "encoding" in members and members["encoding"].value == BASE64:
        try:
            return Line(base64.b64decode(event.value, validate=True), True, cursor, key)
        except ValueError:
            malformed(number, line, "the event is no base64")
    return Line(_encodable(event.value, number, line, "the event"), True, cursor, key)


def _check_published(members: dict[str, Member], number: int, line: bytes | memoryview) -> None:
    """Refuse a line of a publisher that holds no event, or anything that would not be stored."""
    events = members.keys() & _EVENTS
    if len(events) != 1:
        malformed(number, line, f'holds {len(events)} events, expected one, {{"event": …}}, and no cursors')
    for name in members.keys() - _EVENTS - {"key", "encoding"}:
        malformed(
            number, line, f"member {ascii(name)[:80]} would be lost, expected 'event', 'key' and 'encoding' alone"
        )
    if members.get("encoding", _MISSING).value not in (None, BASE64):
        malformed(number, line, f"'encoding' is not \"{BASE64}\"")


def _members_of(text: str) -> dict[str, Member] | None:
    """Return a line's members, of a repeated name the last one; None for an empty line.

    Raises:
        StopIteration: a character is not allowed at its place; ``value`` is its index.
        ValueError: a string or a constant is not JSON, or the line is nested deeper than ``MAX_DEPTH``.
        RecursionError: Python's parser has fewer levels left than that.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH and depth_of(text) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    at = _skip(text, 0)
    if at == len(text):
        return None
    at = _skip(text, _expect(text, at, "{"))
    members: dict[str, Member] = {}
    while members or text[at : at + 1] != "}":
        _expect(text, at, '"')
        name, at = _DECODER.raw_decode(text, at)
        at = _expect(text, _skip(text, at), ":")
        start = _skip(text, at)
        value, at = _DECODER.raw_decode(text, start)
        members[name] = Member(value, start, at)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            break
        at = _skip(text, _expect(text, at, ","))
    at = _skip(text, at + 1)
    if at != len(text):
        raise StopIteration(at)
    return members


def _skip(text: str, at: int) -> int:
    """Return the position of the next character that is not whitespace."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise StopIteration(at)
    return at + 1


def _encodable(text: str, number: int, line: bytes | memoryview, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        malformed(number, line, f"{what} holds half of a surrogate pair")
