"""Recognise lines of the same form: learn the form of one line, and find it in all others at once.

The lines of a response differ in their values and hardly ever in the rest. A template is the rest of a line without
its event and its strings::

    {"key":"customer-4","headers":{"id":"71"},"event":{"amount":4}}
    ------- string ---- ------------- ss ---- --------- event ----- -      what is left: constants and holes

A line has this form when it begins with the constants and plain strings up to the event, and ends with the ones after
it. All that is then known of the event is that it begins and ends like an object or a string. Once the event is known
to be exactly one value, the line matches the template: no member can hide where only one value is.

A plain string has no escape and no control character. A line with another string in a hole is not recognised, and
``line`` reads it alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Mask, Positions, Words
from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.line import BASE64, Member, parse_line
from spark_streams.wire.feed.plain_strings import string_end, string_start

MOST_HOLES: Final = 64
"""The most strings of a form: each of them takes a search of its own."""
LONG_LINE_BYTES: Final = 16 << 10
"""The bytes of a line above which the known forms are tried before a form is learned."""
LONGEST_LINE_BYTES: Final = 1 << 20
"""The bytes of a line from which on none is learned: it is read by itself, once."""
_NAME_OR_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')


class Found(NamedTuple):
    """The lines of one form; ranges are positions in the block, start inclusive, end exclusive.

    ``lines`` has their numbers. ``event``, ``cursor`` and ``key`` are None where the template has none.
    """

    lines: Positions
    event: tuple[Positions, Positions] | None
    cursor: tuple[Positions, Positions] | None
    key: tuple[Positions, Positions] | None


@dataclass(frozen=True)
class LineForm:
    """The form of a line.

    Args:
        before: the constants from the line's start to the event, or to its end; there is a hole between two of them.
        after: the constants from the event to the line's end; empty when there is no event.
        cursor: number of the hole that holds the checkpoint's cursor, counting those before the event first.
        key: number of the hole that holds the event's key.
        base64: whether the event is base64.
        wanted: whether it is an event or a checkpoint, of the requested partition.
    """

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    cursor: int | None
    key: int | None
    base64: bool
    wanted: bool

    @property
    def quotes(self) -> int:
        """The number of quotes in the constants."""
        return sum(text.count(b'"') for text in (*self.before, *self.after))

    def suits(self, line: bytes | memoryview) -> bool:
        """Return whether a line may have this form, by its start and its end."""
        first, last = self.before[0], (self.after or self.before)[-1]
        return line[: len(first)] == first and line[max(0, len(line) - len(last)) :] == last

    def find(self, content: Words, lines: Positions, start: Positions, end: Positions) -> Found:
        """Return which lines have this form.

        Args:
            content: the block.
            lines: the lines' numbers.
            start: the start of each line.
            end: the end of each line, without its line ending.
        """
        found = _Candidates(lines, start, end)
        for number, text in enumerate(self.before):
            if number:
                found.hole(found.left, string_end(content, found.left, found.right))
                found.left = found.holes[-1][1]
            found.keep(found.left + len(text) <= found.right)
            found.keep(content.holds(found.left, text))
            found.left = found.left + len(text)
        for number, text in enumerate(reversed(self.after)):
            if number:
                found.hole(string_start(content, found.right, found.left), found.right)
                found.right = found.holes[-1][0]
            found.keep(found.right - len(text) >= found.left)
            found.right = found.right - len(text)
            found.keep(content.holds(found.right, text))
        if self.after:
            found.keep(found.right - found.left >= 2)
            opening, closing = content.bytes[found.left], content.bytes[found.right - 1]
            found.keep(((opening == 0x7B) & (closing == 0x7D)) | ((opening == 0x22) & (closing == 0x22)))
        else:
            found.keep(found.left == found.right)
        before = len(self.before) - 1
        # Those after the event were found from the right.
        holes = found.holes[:before] + found.holes[before:][::-1]
        return Found(
            found.lines,
            (found.left, found.right) if self.after else None,
            None if self.cursor is None else holes[self.cursor],
            None if self.key is None else holes[self.key],
        )


class _Candidates:
    """The lines that have a form so far: the part of each that is left to compare, and the holes around it."""

    def __init__(self, lines: Positions, left: Positions, right: Positions) -> None:
        self.lines, self.left, self.right = lines, left, right
        self.holes: list[tuple[Positions, Positions]] = []

    def hole(self, start: Positions, end: Positions) -> None:
        """Add the next hole, and continue with the lines that have it: a place of the others is -1."""
        self.holes.append((start, end))
        self.keep((start >= 0) & (end >= 0))

    def keep(self, mask: Mask) -> None:
        """Continue with these lines only."""
        if not mask.all():
            self.lines, self.left, self.right = self.lines[mask], self.left[mask], self.right[mask]
            self.holes = [(start[mask], end[mask]) for start, end in self.holes]


def learn(line: bytes | memoryview, dialect: Dialect, partition: int | None) -> LineForm | None:
    """Return a line's form.

    Args:
        line: the line, without its ending.
        dialect: the version of the response.
        partition: v1: the requested partition; None accepts all.

    Returns:
        None for a line that is malformed, or whose form no others can have: empty, or with a repeated member. Also for
        an event that is null, for a key that is no string, and for more strings than ``MOST_HOLES``.
    """
    try:
        parsed = parse_line(line, 1, dialect, partition)
    except RemoteProtocolError:
        return None
    if parsed is None or not parsed.members or parsed.repeated:
        return None
    text, members, event = parsed.text, parsed.members, parsed.event
    if event is not None and not isinstance(event.value, dict | str):
        return None
    key = members.get("key")
    if key is not None and not isinstance(key.value, str | None):
        return None
    fixed = [member for word in ("partition", "encoding") if (member := members.get(word)) is not None]
    before, holes = _constants(text, 0, len(text) if event is None else event.start, fixed)
    after: list[str] = []
    if event is not None:
        after, more = _constants(text, event.end, len(text), fixed)
        holes = holes + more
    if len(holes) > MOST_HOLES:
        return None
    encoding = members.get("encoding")

    def hole(member: Member | None) -> int | None:
        return None if member is None or not isinstance(member.value, str) else holes.index(member.start + 1)

    return LineForm(
        tuple(constant.encode() for constant in before),
        tuple(constant.encode() for constant in after),
        hole(parsed.cursor),
        hole(key) if event is not None else None,
        event is not None and encoding is not None and encoding.value == BASE64,
        parsed.wanted,
    )


def _constants(text: str, start: int, end: int, fixed: list[Member]) -> tuple[list[str], list[int]]:
    """Return the text between the strings of a part of a line, and the start of each string, after its quote.

    Names do not count as strings here, nor do the ``fixed`` members, whose values decide how the line must be read.
    """
    constants: list[str] = []
    holes: list[int] = []
    at = start
    for token in _NAME_OR_STRING.finditer(text, start, end):
        if re.match(r"\s*:", text[token.end() : token.end() + 64]):
            continue
        if any(member.start == token.start() for member in fixed):
            continue
        constants.append(text[at : token.start() + 1])
        holes.append(token.start() + 1)
        at = token.end() - 1
    constants.append(text[at:end])
    return constants, holes


@lru_cache(maxsize=64)
def known_forms(dialect: Dialect, partition: int | None) -> tuple[LineForm, ...]:
    """Return the forms that known servers write, so that they need not be learned in every block."""
    start: dict[str, object] = {}
    members: list[dict[str, object]] = [{dialect.event_key: {}}, {"cursor": "c"}]
    if dialect is Dialect.V1:
        start = {"partition": partition}
        members += [{"headers": {}, "data": {}}, {"headers": None, "data": {}}]
    if dialect is Dialect.PUBLISHED:
        members += [{"event": {}, "key": "k"}, {"key": "k", "event": {}}]
    forms = [
        json.dumps({**start, **each}, separators=separators)
        for each in members
        for separators in ((",", ":"), (", ", ": "))
    ]
    learned = (learn(form.encode(), dialect, partition) for form in forms)
    return tuple(template for template in learned if template is not None)


def forms_of(line: bytes | memoryview, dialect: Dialect, partition: int | None) -> Iterator[LineForm]:
    """Yield the forms that a line may have: its own form, and for a long line the known ones before it.

    Learning costs as much as reading the line alone, which is little compared with a block of short lines.
    """
    if len(line) > LONG_LINE_BYTES:
        yield from (template for template in known_forms(dialect, partition) if template.suits(line))
    own = learn(line, dialect, partition) if len(line) < LONGEST_LINE_BYTES else None
    if own is not None:
        yield own
