"""Find the sections of many messages, the entries of their maps and the fields of their lists, in a lockstep walk.

One NumPy operation advances every message's position. The high nibble of AMQP's format codes gives the length of a
value, so skipping needs no case analysis for each type::

    0x4_ 0   0x5_ 1   0x6_ 2   0x7_ 4   0x8_ 8   0x9_ 16     bytes after the code
    0xa_ 0xc_ 0xe_ 1 + n(1)      0xb_ 0xd_ 0xf_ 4 + n(4)     n is the big-endian size that follows the code

The eight bytes at a position hold a section's whole head (``00 53 code code size``). Every position is checked against
its message's end before its bytes are used.

A walk returns only what is certain. It marks a message whose shape is uncommon or broken (descriptors in another form,
described values, keys that are no text, order or sizes that do not fit) as ``irregular``, and leaves it to
``wire/amqp/message.py``, which decodes it or raises an error that names the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.amqp.decode import FORMAT_CODES
from spark_streams.wire.amqp.message import (
    AMQP_VALUE,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    VALUE_CODES,
    may_follow,
)
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions

Codes = NDArray[np.int64]

MAX_STEPS: Final = 24
"""The most sections of a message on the lockstep path; one with more (many data sections) is irregular."""
MAX_PAIRS: Final = 64
"""The most map entries of a message on the lockstep path; steps with only a few messages left do not pay."""

NULL_CODE: Final = 0x40
FIXED_WIDTH: Final = np.array([(0, 1, 2, 4, 8, 16)[c // 16 - 4] if 4 <= c // 16 <= 9 else 0 for c in range(256)])
HEAD_BYTES: Final = np.array([(2, 5)[(c // 16) % 2] if c >= 0xA0 else 1 for c in range(256)])
"""The bytes of a format code and of the size that follows it."""
_SHIFT: Final = 64 - 8 * HEAD_BYTES
_BEHIND_CODE: Final = 2**56 - 1
"""The eight bytes from a format code on are shifted and masked to the size; to 0 for a code without size."""
_IS_TEXT: Final = np.isin(np.arange(256), (0xA1, 0xA3, 0xB1, 0xB3))
KNOWN: Final = np.array([c in FORMAT_CODES for c in range(256)])
"""True for the bytes that are format codes of AMQP 1.0."""

FEW: Final = 12
"""Up to this many messages of a block are decoded one by one: a NumPy call costs about as much as this many."""

_START: Final = HEADER - 1
_KINDS: Final = FOOTER - HEADER + 1


_MAY_HOLD: Final = np.array(
    [[code in VALUE_CODES.get(section, FORMAT_CODES) for code in range(256)] for section in range(HEADER, FOOTER + 1)]
).reshape(-1)
"""Whether a section may hold a value of a format code, for all pairs of them."""
_MAY_FOLLOW: Final = np.array(
    [
        [before == _START or may_follow(before, section) for section in range(HEADER, FOOTER + 1)]
        for before in range(_START, FOOTER + 1)
    ]
).reshape(-1)
"""Whether a section may come after another one, or first, for all pairs of them."""


class Extents(NamedTuple):
    """Values, one for each row: their format codes, and the ranges of their content after the code and the size.

    A row without a value has the code of null.
    """

    code: Codes
    start: Positions
    end: Positions

    @staticmethod
    def empty(n: int) -> Extents:
        """Return ``n`` rows without a value."""
        return Extents(np.full(n, NULL_CODE, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))

    def at(self, rows: Positions | Mask) -> Extents:
        """Return the values of these rows."""
        return Extents(*(column[rows] for column in self))

    def keep(self, rows: Positions, values: Extents) -> None:
        """Set the values of these rows."""
        self.code[rows], self.start[rows], self.end[rows] = values


def extents(word: Codes, position: Positions) -> Extents:
    """Return the code and the extent of the value at each position; a descriptor or a byte that is no code has none.

    The end may lie outside the message, and ``code`` may be no format code: the caller checks both.

    Args:
        word: the eight bytes at each position, at least five of them right.
        position: each value's format code.
    """
    code = (word >> 56) & 0xFF
    of = _distinct(code)
    start = position + HEAD_BYTES.take(of)
    return Extents(code, start, start + FIXED_WIDTH.take(of) + ((word & _BEHIND_CODE) >> _SHIFT.take(of)))


def _distinct(code: Codes) -> Codes:
    """Return the one code that all values have, as in most steps of most blocks, or all codes."""
    return code[:1] if code.size and (code == code[0]).all() else code


@dataclass
class Sections:
    """The places of each message's sections.

    Args:
        value: section code to the position of its value's format code, -1 where a message has no such section.
        end: section code to the position after it.
        bare_start: where header and delivery annotations end.
        body_code: the body's section code, 0 where there is no body.
        several: messages whose body has more than one section.
        irregular: messages that this walk left to ``wire/amqp/message.py``.
    """

    value: dict[int, Positions]
    end: dict[int, Positions]
    bare_start: Positions
    body_code: Codes
    several: Mask
    irregular: Mask


def walk_sections(words: PaddedWords, starts: Positions, ends: Positions, last: int = FOOTER) -> Sections:
    """Walk all messages from section to section.

    Args:
        words: the bytes.
        starts: first byte of each message, inclusive.
        ends: byte after each message, exclusive.
        last: the code of the last section of interest; a message is not read beyond it.
    """
    n = starts.size
    found = Sections({}, {}, starts.copy(), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.bool_))
    if n <= FEW:
        found.irregular[:] = True
        return found
    rows, position, end = np.arange(n), starts, ends
    before = np.full(n, _START, np.int64)
    for _ in range(MAX_STEPS):
        live = position < end
        if not live.all():
            rows, position, end, before = rows[live], position[live], end[live], before[live]
        if not rows.size:
            return found
        word = words.big(position)
        code = (word >> 40) & 0xFF
        format_code, _, stop = extents(word << 24, position + 3)
        kind = code - HEADER
        good = (word >> 48 == 0x0053) & (kind >= 0) & (kind < _KINDS)
        kind = np.where(good, kind, 0)
        good &= _MAY_HOLD[kind << 8 | format_code] & _MAY_FOLLOW[(before - _START) * _KINDS + kind]
        good &= stop <= end
        if not good.all():
            found.irregular[rows[~good]] = True
            rows, position, end, stop, code = rows[good], position[good], end[good], stop[good], code[good]
        _record(found, rows, position, stop, code)
        if last < FOOTER:
            going = code < last
            rows, stop, end, code = rows[going], stop[going], end[going], code[going]
        position, before = stop, code
    found.irregular[rows[position < end]] = True
    return found


def _record(found: Sections, rows: Positions, position: Positions, stop: Positions, codes: Codes) -> None:
    n = found.irregular.size
    for kind in np.flatnonzero(np.bincount(codes - HEADER, minlength=_KINDS)):
        code = HEADER + int(kind)
        mask = codes == code
        here, at, upto = (rows, position, stop) if mask.all() else (rows[mask], position[mask], stop[mask])
        if code not in found.value:
            found.value[code], found.end[code] = np.full(n, -1, np.int64), np.zeros(n, np.int64)
        if DATA <= code <= AMQP_VALUE:
            found.several[here] = found.body_code[here] != 0
            found.body_code[here] = code
        if code <= DELIVERY_ANNOTATIONS:
            found.bare_start[here] = upto
        found.value[code][here] = at + 3
        found.end[code][here] = upto


class Pair(NamedTuple):
    """One step of a walk: the next entry of every map, or the next item of every list, that has one.

    The keys of a list's items are empty.
    """

    rows: Positions
    key: Extents
    value: Extents

    def chosen(self, mask: Mask) -> Pair:
        """Return the entries where the mask is true."""
        return self if mask.all() else Pair(self.rows[mask], self.key.at(mask), self.value.at(mask))


class _Items:
    """The items of many lists or maps, one step of all at a time."""

    def __init__(
        self, words: PaddedWords, rows: Positions, position: Positions, end: Positions, irregular: Mask
    ) -> None:
        word = words.big(position)
        of = _distinct((word >> 56) & 0xFF)
        head = HEAD_BYTES.take(of)
        # The count is as wide as the size, and follows it; a size of one byte leaves it in the word.
        behind = word << 8 if (head == 2).all() else words.big(position + head - 1)
        self.count = (behind & _BEHIND_CODE) >> _SHIFT.take(of)
        self.position = position + 2 * head - 1
        self.rows, self.end, self.irregular = rows, end, irregular
        self.drop((self.position > end) | (self.count > 2 * MAX_PAIRS))

    def keep(self, mask: Mask) -> None:
        """Continue with these only."""
        if not mask.all():
            self.rows, self.position = self.rows[mask], self.position[mask]
            self.end, self.count = self.end[mask], self.count[mask]

    def drop(self, bad: Mask) -> None:
        """Mark these irregular, and continue without them."""
        if bad.any():
            self.irregular[self.rows[bad]] = True
            self.keep(~bad)

    def finish(self) -> bool:
        """Remove those that have no item left, which must end at their stated end; return whether any are left."""
        done = self.count == 0
        if done.any():
            self.irregular[self.rows[done & (self.position != self.end)]] = True
            self.keep(~done)
        return bool(self.rows.size)


def walk_items(
    words: PaddedWords, rows: Positions, position: Positions, end: Positions, irregular: Mask, each: int
) -> Iterator[Pair]:
    """Walk the entries of many maps, or the items of many lists; mark those that the walk cannot follow.

    A map or list may be marked even after some of its entries.

    Args:
        words: the bytes.
        rows: the message of each map or list.
        position: the format code of each.
        end: position after each.
        irregular: set at index ``rows`` for maps with keys that are no text, described values, or broken sizes.
        each: number of items of an entry: 2 for maps, 1 for lists.
    """
    if not rows.size:
        return
    items = _Items(words, rows, position, end, irregular)
    items.drop(items.count % each != 0)
    while items.finish():
        at = items.position
        key = extents(words.big(at), at) if each == 2 else Extents(at, at, at)  # no key, and no code
        bad = key.end >= items.end
        if each == 2:
            bad |= ~_IS_TEXT[key.code]
        if bad.any():
            items.drop(bad)
            key = key.at(~bad)
        pair = Pair(items.rows, key, extents(words.big(key.end), key.end))
        good = KNOWN[pair.value.code] & (pair.value.end <= items.end)
        if not good.all():
            pair = pair.chosen(good)
            items.drop(~good)
        items.position, items.count = pair.value.end, items.count - each
        yield pair
