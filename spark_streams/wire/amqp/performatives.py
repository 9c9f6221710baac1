"""Reads and writes the frames of sessions and links, one at a time; ``transfer_frames.py`` reads transfers in columns.

::

    frame          size(u32, itself counted) doff(u8) type(u8) channel(u16) [extended header] performative payload
    performative   00 descriptor list

Spec: AMQP 1.0 part 2 §2.3 (frames), §2.7 (performatives).
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import skip_value
from spark_streams.wire.amqp.transfer_frames import Frames
from spark_streams.wire.amqp.values import Described, Symbol, UInt, ULong, coded
from spark_streams.wire.columnar.byte_view import Mask, Readable, Words

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
ERROR: Final = 0x1D
SOURCE: Final = 0x28
TARGET: Final = 0x29
SERIAL: Final = 0xFFFF_FFFF
"""Delivery-ids, counts and transfer numbers are serial numbers of 32 bits (§2.8.8)."""

USUAL_DISPOSITION: Final = re.compile(
    # head; disposition, a list of: receiver, first, last, settled, accepted (an empty list), and perhaps batchable
    rb".{4}\x02\x00(.{2})\x00\x53\x15\xc0..\x41"
    rb"(?:\x43|\x52(.)|\x70(.{4}))(?:(\x40)|\x43|\x52(.)|\x70(.{4}))\x41\x00\x53\x24(?:\x45|\xc0\x01\x00)[\x40\x42]?",
    re.DOTALL,
)
"""A whole frame that settles deliveries as accepted: many peers write one for each. Its groups, for ``usual_range``:
the channel; ``first`` in one byte or four; an absent ``last``, or one in one byte or four."""

_HEAD: Final = struct.Struct(">IBBH")
_U32: Final = struct.Struct(">I")
_WIDTHS: Final = bytes((1, 2, 3, 5, 9, 17)[code // 16 - 4] if 0x40 <= code < 0xA0 else 0 for code in range(256))
"""Bytes of a value by its format code, where the code gives them; some peers send only frames with such fields."""
_NULL, _TRUE, _FALSE, _ZERO, _SMALL_UINT, _UINT = 0x40, 0x41, 0x42, 0x43, 0x52, 0x70
_CODES: Final = coded(OPEN, "open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close")


class Performative(NamedTuple):
    """A performative, its fields not decoded.

    Args:
        code: its descriptor's number.
        raw: the frame.
        places: where each of its fields begins in ``raw``.
        payload: the first byte after it.
    """

    code: int
    raw: bytes
    places: list[int]
    payload: int

    def field(self, index: int, kind: type, default: Any) -> Any:
        """Return the value of a field; ``default`` where it is null or absent.

        Raises:
            RemoteProtocolError: the field has another type, or cannot be decoded.
        """
        if index >= len(self.places):
            return default
        at = self.places[index]
        code = self.raw[at]
        if code == _NULL:
            return default
        if kind is bool and code in (_TRUE, _FALSE):
            return code == _TRUE
        value = decode_value(self.raw, at)[0]
        if not isinstance(value, kind):
            raise RemoteProtocolError(
                f"field {index} of performative 0x{self.code:02x}: {type(value).__name__.lower()}, "
                f"expected {kind.__name__.lower()}"
            )
        return value

    def number(self, index: int, default: Any) -> Any:
        """Return the value of an uint field as an int; ``default`` where it is null or absent.

        Raises:
            RemoteProtocolError: as for ``field``.
        """
        if index < len(self.places):
            at = self.places[index]
            code = self.raw[at]
            if code == _ZERO:
                return 0
            if code == _SMALL_UINT:
                return self.raw[at + 1]
            if code == _UINT:
                return _U32.unpack_from(self.raw, at + 1)[0]
        return self.field(index, UInt, default)

    def has(self, index: int) -> bool:
        """Return whether a field is there, and not null."""
        return index < len(self.places) and self.raw[self.places[index]] != _NULL


def usual_range(found: re.Match[bytes]) -> tuple[int, int]:
    """Return the first and the last delivery-id of a disposition that ``USUAL_DISPOSITION`` matches."""
    _, narrow, wide, absent, narrow_last, wide_last = found.groups()
    first = int.from_bytes(wide or narrow or b"", "big")
    return first, first if absent else int.from_bytes(wide_last or narrow_last or b"", "big")


def signed(difference: int) -> int:
    """Return the difference of two serial numbers."""
    difference &= SERIAL
    return difference if difference <= SERIAL >> 1 else difference - SERIAL - 1


def empty_frames(buffer: Readable, frames: Frames) -> Mask:
    """Return which of many whole frames have no performative: these are heartbeats (§2.4.5).

    Args:
        buffer: the bytes that ``frames`` points into.
        frames: the frames.
    """
    heads = Words(np.frombuffer(buffer, np.uint8)).little(frames.starts + 4)
    empty: Mask = (frames.ends - frames.starts == _HEAD.size) & (heads & 0xFFFF == 2)
    return empty


def performative_code(frame: bytes | bytearray | memoryview) -> int | None:
    """Return the number of a whole frame's performative; None for a frame without one that can be read."""
    start = 4 * frame[4]
    if frame[5] != 0 or not _HEAD.size <= start < len(frame) or frame[start] != 0:
        return None
    if frame[start : start + 2] == b"\x00\x53" and len(frame) > start + 2:
        return frame[start + 2]
    try:
        descriptor, _ = decode_value(bytes(frame[start + 1 : start + 64]))
    except RemoteProtocolError:
        return None
    if isinstance(descriptor, Symbol):
        return _CODES.get(descriptor)
    return int(descriptor) if isinstance(descriptor, ULong) else None


def read_performative(frame: bytes) -> Performative:
    """Read a whole frame that has a performative.

    Raises:
        RemoteProtocolError: the bytes are no described list.
    """
    code = performative_code(frame)
    if code is None:
        raise RemoteProtocolError("a frame without performative")
    at = 4 * frame[4] + 1
    at += 2 if frame[at] == 0x53 else skip_value(frame, at) - at
    kind = frame[at] if at < len(frame) else 0
    width = {0xC0: 1, 0xD0: 4}.get(kind)
    payload = skip_value(frame, at)
    places: list[int] = []
    if width is None:
        if kind != 0x45:
            raise RemoteProtocolError(f"performative 0x{code:02x}: its value is no list")
        return Performative(code, frame, places, payload)
    count = int.from_bytes(frame[at + 1 + width : at + 1 + 2 * width], "big")
    at += 1 + 2 * width
    while count and at < payload:
        places.append(at)
        at += _WIDTHS[frame[at]] or skip_value(frame, at) - at
        count -= 1
    # Bytes may follow the counted fields: proton 0.40 writes an attach's properties twice when capabilities are null.
    if count or at > payload or (at < payload and (code != ATTACH or len(places) < _FIELDS[ATTACH])):
        raise RemoteProtocolError(f"performative 0x{code:02x}: its fields do not end with its list")
    return Performative(code, frame, places, payload)


_FIELDS: Final = {
    **dict(zip(range(OPEN, CLOSE + 1), (10, 8, 14, 11, 11, 6, 3, 1, 1), strict=True)),
    SOURCE: 11,
    TARGET: 7,
    ERROR: 3,
    REJECTED: 1,
}
"""How many fields a performative, or a list in one, has (AMQP 1.0 part 2 §2.7, §2.8.14; part 3 §3.4.3, §3.5.3)."""


def with_all_fields(value: Any) -> Any:
    """Return a described list with null in the place of each field that was left out at its end, and so on within."""
    if not isinstance(value, Described) or not isinstance(value.value, list):
        return value
    fields = [with_all_fields(each) for each in value.value]
    count = _FIELDS.get(value.descriptor, 0) if isinstance(value.descriptor, int) else 0
    return Described(value.descriptor, fields + [None] * (count - len(fields)))


def encode_flow(channel: int, *numbers: int, drain: bool, all_fields: bool = False) -> bytes:
    """Return a flow of a link; it is sent so often that ``encode_frame`` would take a tenth of a reader's time.

    Args:
        channel: the channel.
        numbers: the first seven fields, from next-incoming-id to link-credit, or eight, with available.
        drain: the field of this name.
        all_fields: whether to write the null fields after it, too.
    """
    fields = b"".join([b"\x70" + _U32.pack(number) for number in numbers]) + b"\x40" * (8 - len(numbers))
    fields += (b"\x41" if drain else b"\x42") + (b"\x40\x40" if all_fields else b"")
    performative = b"\x00\x53\x13\xc0" + bytes((len(fields) + 1, 11 if all_fields else 9)) + fields
    return _HEAD.pack(_HEAD.size + len(performative), 2, 0, channel) + performative


def encode_frame(channel: int, code: int, fields: list[Any], *, all_fields: bool = False) -> bytes:
    """Return a frame without payload.

    Args:
        channel: the channel.
        code: the performative's descriptor.
        fields: its fields, as ``encode_value`` takes them.
        all_fields: whether to write those that were left out at the end, too (``with_all_fields``).
    """
    described = Described(ULong(code), fields)
    performative = encode_value(with_all_fields(described) if all_fields else described)
    return _HEAD.pack(_HEAD.size + len(performative), 2, 0, channel) + performative
