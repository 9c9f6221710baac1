"""Reads transfer frames in columns: where many deliveries' payloads lie, and their ids, tags and handles.

::

    frame        size(u32, itself counted) doff(u8) type(u8) channel(u16) performative payload
    transfer     00 53 14 list [handle, delivery-id, delivery-tag, message-format, settled, more, rcv-settle-mode,
                                state, resume, aborted, batchable]

A usual transfer is a whole delivery: it has a delivery-id and a tag, and neither ``more``, ``state``, ``resume`` nor
``aborted``. A sender writes nearly all of its transfers in the same layout: the same fields in the same encodings, so
that only the channel, the handle, the id and the tag differ. The reader finds the layout of one frame, and compares
all others with it in a few operations on their bytes before the payload; then it takes the next layout of what is left.

A sender of frames in other encodings, or of deliveries in several frames, sends transfers that are not usual here; the
caller reads these one by one.

Spec: AMQP 1.0 part 2 §2.3 (frames), §2.7.5 (transfer).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.columnar.byte_view import Mask, Positions, Readable, loads

HEAD_BYTES: Final = 8
"""Size, data offset, type and channel of a frame."""
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_WORD: Final = 8
_FEW: Final = 12
"""Up to this many frames are read one by one, which takes less time than the NumPy operations."""
_FEWEST_ALIKE: Final = 64
"""The fewest frames of equal size for which comparing their sizes in one operation pays."""
_FIRST_GUESS: Final = 256
"""The number of frames in the first guess of equal sizes; each right guess multiplies it by eight."""
_STRETCH: Final = (16, 4096)
"""The number of frames to follow one by one before the next guess of equal sizes: at first, and at most; it doubles."""
_LAYOUTS: Final = 8
"""The most layouts of one block that are compared in columns; frames in another one are read one by one."""


class Frames(NamedTuple):
    """Whole frames that follow one another.

    Args:
        starts: first byte of each frame, its size field, inclusive.
        ends: byte after each frame, exclusive.
        stop: byte after the last whole frame. An incomplete frame begins there, or one whose size is out of bounds.
    """

    starts: Positions
    ends: Positions
    stop: int


class Transfers(NamedTuple):
    """The fields of the usual transfers among some frames; the values of the other rows mean nothing.

    Args:
        usual: which frames are usual transfers.
        channel, handle, delivery_id: the numbers of each.
        settled: whether the sender has settled it; False where the field is absent.
        tag_start, tag_end: where the bytes of the delivery's tag lie, the end exclusive.
        payload_start: first byte of the payload, inclusive; it ends where the frame does.
        message_format: the message's format, 0 where the field is absent.
    """

    usual: Mask
    channel: Positions
    handle: Positions
    delivery_id: Positions
    settled: Mask
    tag_start: Positions
    tag_end: Positions
    payload_start: Positions
    message_format: Positions

    def rows(self, rows: Mask) -> Transfers:
        """Return the fields of some of the frames."""
        return Transfers(*(column[rows] for column in self))  # type: ignore[arg-type]


def split_frames(buffer: Readable, start: int, end: int, max_bytes: int) -> Frames:
    """Split bytes into frames; stop before an incomplete frame.

    Args:
        buffer: the bytes.
        start: the size field of the first frame, inclusive.
        end: where the received bytes end, exclusive.
        max_bytes: the largest frame; the result stops before a larger one, and before one smaller than its head.
    """
    runs: list[Positions] = []
    stretch, guess = _STRETCH[0], _FIRST_GUESS
    while end - start >= HEAD_BYTES:
        size = _U32.unpack_from(buffer, start)[0]
        if not HEAD_BYTES <= size <= max_bytes or size > end - start:
            break
        alike = min(guess, (end - start) // size)
        good = 0
        if alike >= _FEWEST_ALIKE:
            same = np.ndarray((alike,), ">u4", buffer, start, (size,)) == size
            good = alike if same.all() else int(same.argmin())
        if good >= _FEWEST_ALIKE:
            begins = np.arange(start, start + (good + 1) * size, size, dtype=np.int64)
            stretch, guess = _STRETCH[0], 8 * guess if good == alike else _FIRST_GUESS
        else:
            begins = np.fromiter(islice(_followed(buffer, start, end, max_bytes), stretch + 1), np.int64)
            stretch, guess = min(2 * stretch, _STRETCH[1]), _FIRST_GUESS
        runs.append(begins)
        start = int(begins[-1])
    if not runs:
        none = np.zeros(0, np.int64)
        return Frames(none, none, start)
    every = runs[0] if len(runs) == 1 else np.concatenate((*(run[:-1] for run in runs), np.array([start], np.int64)))
    return Frames(every[:-1], every[1:], start)


def _followed(buffer: Readable, at: int, end: int, max_bytes: int) -> Iterator[int]:
    """Yield the place of each frame, and then that after the last whole one."""
    size_at = _U32.unpack_from
    last = end - HEAD_BYTES
    yield at
    while at <= last:
        size = size_at(buffer, at)[0]
        if not HEAD_BYTES <= size <= max_bytes or size > end - at:
            return
        at += size
        yield at


def read_transfers(buffer: Readable, frames: Frames) -> Transfers:
    """Read the usual transfers among some frames.

    Args:
        buffer: the bytes that ``frames`` points into.
        frames: the frames.
    """
    n = frames.starts.size
    if n <= _FEW:
        found = _Columns(n)
        found.read(buffer, frames, range(n))
        return found.result()
    memory = np.frombuffer(buffer, np.uint8)
    found = _Columns(n)
    left = np.arange(n)
    for _ in range(_LAYOUTS):
        layout = None
        while left.size and layout is None:
            row = int(left[0])
            layout = _layout(buffer, int(frames.starts[row]), int(frames.ends[row]))
            if layout is None:
                left = left[1:]
        if layout is None:
            return found.result()
        starts = frames.starts[left]
        same = layout.matches(memory, starts, frames.ends[left])
        if left.size == n and same.all():
            return Transfers(same, *layout.columns(buffer, starts))
        found.set(left[same], layout.columns(buffer, starts[same]))
        left = left[~same]
    found.read(buffer, frames, left.tolist())
    return found.result()


_Values = tuple[Positions, Positions, Positions, Mask, Positions, Positions, Positions, Positions]
"""The columns of ``Transfers`` after the first."""


class _Columns:
    """Columns that are filled by rows."""

    def __init__(self, n: int) -> None:
        self._usual = np.zeros(n, np.bool_)
        self._numbers = np.zeros((7, n), np.int64)
        self._settled = np.zeros(n, np.bool_)

    def set(self, rows: Positions, values: _Values) -> None:
        self._usual[rows] = True
        channel, handle, delivery_id, self._settled[rows], *places = values
        for column, each in zip(self._numbers, (channel, handle, delivery_id, *places), strict=True):
            column[rows] = each

    def read(self, buffer: Readable, frames: Frames, rows: range | list[int]) -> None:
        """Read frames one by one."""
        for row in rows:
            start = int(frames.starts[row])
            layout = _layout(buffer, start, int(frames.ends[row]))
            if layout is not None:
                self._usual[row] = True
                self._settled[row] = layout.settled
                self._numbers[:, row] = layout.numbers(buffer, start)

    def result(self) -> Transfers:
        channel, handle, delivery_id, *places = self._numbers
        return Transfers(self._usual, channel, handle, delivery_id, self._settled, *places)


class _Number(NamedTuple):
    """Where a number of a frame lies: its place after the frame's start, and its width in bytes, 0, 1 or 4."""

    at: int
    width: int

    def read(self, buffer: Readable, start: int) -> int:
        at = start + self.at
        if self.width == 1:
            return buffer[at]
        return int(_U32.unpack_from(buffer, at)[0]) if self.width else 0

    def column(self, buffer: Readable, starts: Positions) -> Positions:
        if not self.width:
            return np.zeros(starts.size, np.int64)
        numbers = np.frombuffer(buffer, np.uint8) if self.width == 1 else loads(buffer, ">u4")
        return numbers[starts + self.at].astype(np.int64)


class _Layout(NamedTuple):
    """The layout of a usual transfer; all places count from the frame's start.

    Args:
        handle, delivery_id: where these are.
        tag_start, tag_end: where the tag is.
        settled: what the field says.
        size: bytes before the payload.
        message_format: what the field says.
        text: the bytes before the payload, in the frame from which the layout was read.
    """

    handle: _Number
    delivery_id: _Number
    tag_start: int
    tag_end: int
    settled: bool
    size: int
    message_format: int
    text: bytes

    def numbers(self, buffer: Readable, start: int) -> tuple[int, int, int, int, int, int, int]:
        """Return the numbers of the columns, for one frame."""
        return (
            _U16.unpack_from(buffer, start + 6)[0],
            self.handle.read(buffer, start),
            self.delivery_id.read(buffer, start),
            start + self.tag_start,
            start + self.tag_end,
            start + self.size,
            self.message_format,
        )

    def columns(self, buffer: Readable, starts: Positions) -> _Values:
        """Return the columns of frames that match."""
        channel: NDArray[np.int64] = loads(buffer, ">u2")[starts + 6].astype(np.int64)
        return (
            channel,
            self.handle.column(buffer, starts),
            self.delivery_id.column(buffer, starts),
            np.full(starts.size, self.settled),
            starts + self.tag_start,
            starts + self.tag_end,
            starts + self.size,
            np.full(starts.size, self.message_format),
        )

    def matches(self, memory: NDArray[np.uint8], starts: Positions, ends: Positions) -> Mask:
        """Return which frames have this layout: the same bytes but for size, channel, handle, id and tag.

        A short frame at the buffer's end is not compared, and so not among them.
        """
        fixed = bytearray(b"\xff" * self.size)
        for start, stop in (
            (0, 4),
            (6, 8),
            (self.handle.at, self.handle.at + self.handle.width),
            (self.delivery_id.at, self.delivery_id.at + self.delivery_id.width),
            (self.tag_start, self.tag_end),
        ):
            fixed[start:stop] = bytes(stop - start)
        wide = -(-self.size // _WORD) * _WORD
        compared = int(np.searchsorted(starts, memory.size - wide, "right"))
        heads = loads(memory, f"V{wide}")[starts[:compared]].view(np.uint64).reshape(compared, wide // _WORD)
        bits, text = (np.frombuffer(each.ljust(wide, b"\0"), np.uint64) for each in (fixed, self.text))
        other = (heads ^ text) & bits
        same = np.zeros(starts.size, np.bool_)
        same[:compared] = ~other.any(axis=1) if other.any() else True
        if int((ends - starts).min()) < self.size:
            same &= ends - starts >= self.size
        return same


_NULL, _BOOLEAN, _TRUE, _FALSE, _ZERO, _SMALL_UINT, _UINT = 0x40, 0x56, 0x41, 0x42, 0x43, 0x52, 0x70
_TINY_LIST, _LIST = 0xC0, 0xD0
_TRANSFER: Final = b"\x00\x53\x14"
_UINT_WIDTHS: Final = {_ZERO: 0, _SMALL_UINT: 1, _UINT: 4}
_IGNORED_WIDTHS: Final = (
    {_NULL: 0, **_UINT_WIDTHS},  # message-format
    {_NULL: 0, _TRUE: 0, _FALSE: 0, _BOOLEAN: 1},  # settled
    {_NULL: 0, _FALSE: 0, _BOOLEAN: 1},  # more
    {_NULL: 0, 0x50: 1},  # rcv-settle-mode, an ubyte
    {_NULL: 0},  # state
    {_NULL: 0, _FALSE: 0, _BOOLEAN: 1},  # resume
    {_NULL: 0, _FALSE: 0, _BOOLEAN: 1},  # aborted
    {_NULL: 0, _TRUE: 0, _FALSE: 0, _BOOLEAN: 1},  # batchable
)
"""For each field after the tag, how many bytes follow each format code that a usual transfer has there."""
_MOST_TAG_BYTES: Final = 32
"""The most bytes of a delivery-tag (part 2 §2.8.7) here: those of a longer one would be compared in every frame."""
_FORMAT: Final = 3
_SETTLED: Final = 4
_BATCHABLE: Final = 10
_FIELDS: Final = 11


def _layout(buffer: Readable, start: int, end: int) -> _Layout | None:
    """Return the layout of a frame, None if it is no usual transfer."""
    if end - start < 20 or buffer[start + 4] != 2 or buffer[start + 5] != 0:
        return None  # head, descriptor and a wide list's head have as many; a transfer with a message has more
    if bytes(buffer[start + 8 : start + 11]) != _TRANSFER:
        return None
    if buffer[start + 11] == _TINY_LIST:
        stop, count, at = start + 13 + buffer[start + 12], buffer[start + 13], start + 14
    elif buffer[start + 11] == _LIST:
        (size,), (count,) = _U32.unpack_from(buffer, start + 12), _U32.unpack_from(buffer, start + 16)
        stop, at = start + 16 + size, start + 20
    else:
        return None
    if stop > end or not 3 <= count <= _FIELDS:
        return None
    numbers = []
    for _ in range(2):
        width = _UINT_WIDTHS.get(buffer[at]) if at < stop else None
        if width is None:
            return None
        numbers.append(_Number(at + 1 - start, width))
        at += 1 + width
    if stop - at < 2:
        return None
    wide = buffer[at] == 0xB0 and stop - at >= 5
    if not wide and buffer[at] != 0xA0:
        return None
    tag_start = at + (5 if wide else 2)
    tag_size = _U32.unpack_from(buffer, at + 1)[0] if wide else buffer[at + 1]
    if tag_size > _MOST_TAG_BYTES:
        return None
    at = tag_end = tag_start + tag_size
    settled, message_format = False, 0
    for index in range(3, count):
        code = buffer[at] if at < stop else -1
        width = _IGNORED_WIDTHS[index - 3].get(code)
        if width is None or at + width >= stop:
            return None
        if code == _BOOLEAN and buffer[at + 1] > (index in (_SETTLED, _BATCHABLE)):
            return None
        if index == _FORMAT and code != _NULL:
            message_format = int.from_bytes(bytes(buffer[at + 1 : at + 1 + width]), "big")
        elif index == _SETTLED:
            settled = code == _TRUE or (code == _BOOLEAN and buffer[at + 1] == 1)
        at += 1 + width
    if at != stop:
        return None
    handle, delivery_id = numbers
    text = bytes(buffer[start:stop])
    places = tag_start - start, tag_end - start
    return _Layout(handle, delivery_id, *places, settled, stop - start, message_format, text)
