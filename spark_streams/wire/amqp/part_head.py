"""Reads the parts of large messages by comparison, as all but their size, id, tag and payload is the same.

::

    frame     size(u32) [doff type channel performative] payload
    head                 the part in brackets

A sender writes the head of the second part as that of the first one, or at least that of the third as that of the
second; the last part differs in ``more``. The first part of the next message differs in the delivery-id and the tag.
Comparing bytes takes a tenth of the time of decoding the fields.

Spec: AMQP 1.0 part 2 §2.6.12 (a message in several frames), §2.7.5 (transfer).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_streams.wire.amqp.performatives import Performative

_SIZE: Final = 4
"""Bytes of a frame before the head."""
_TRUE, _FALSE, _UINT, _SHORT_BINARY = 0x41, 0x42, 0x70, 0xA0
_ID, _TAG, _MORE, _ABORTED = 1, 2, 5, 9


class PartHead(NamedTuple):
    """The head of a part that is not the last one of its message.

    Args:
        head: its bytes.
        last: the same with ``more`` false.
        number: the delivery-id; None where the part has none.
        settled: whether the part says that the message is settled.
        id_at: where the four bytes of the delivery-id are in ``head``; 0 where they are encoded otherwise.
        tag_at, tag_end: where the tag is in ``head``.
    """

    head: bytes
    last: bytes
    number: int | None
    settled: bool
    id_at: int
    tag_at: int
    tag_end: int

    @classmethod
    def of(cls, transfer: Performative) -> PartHead | None:
        """Return the head of a part; None for a whole message, a last part, and what is encoded in an uncommon way.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        raw, places = transfer.raw, transfer.places
        if len(places) <= _MORE or raw[places[_MORE]] != _TRUE or transfer.has(_ABORTED):
            return None
        number, settled = transfer.number(_ID, None), transfer.field(4, bool, False)
        id_at = tag_at = tag_end = 0
        if raw[places[_ID]] == _UINT and raw[places[_TAG]] == _SHORT_BINARY:
            id_at, tag_at = places[_ID] + 1 - _SIZE, places[_TAG] + 2 - _SIZE
            tag_end = tag_at + raw[places[_TAG] + 1]
        head, more_at = raw[_SIZE : transfer.payload], places[_MORE] - _SIZE
        last = head[:more_at] + bytes((_FALSE,)) + head[more_at + 1 :]
        return cls(head, last, number, settled, id_at, tag_at, tag_end)

    def goes_on(self, frame: memoryview) -> bool | None:
        """Return ``more`` of a frame that goes on with the message; None if it must be decoded to know."""
        here = frame[_SIZE : _SIZE + len(self.head)]
        if here == self.head:
            return True
        return False if here == self.last else None

    def following(self, frame: memoryview) -> PartHead | None:
        """Return the head of a frame that is the first part of another message; None if it must be decoded to know."""
        here, head = bytes(frame[_SIZE : _SIZE + len(self.head)]), self.head
        id_at, id_end, tag_at, tag_end = self.id_at, self.id_at + 4, self.tag_at, self.tag_end
        if not id_at or here[:id_at] != head[:id_at] or here[id_end:tag_at] != head[id_end:tag_at]:
            return None
        if here[tag_end:] != head[tag_end:]:
            return None
        last = here[:tag_end] + self.last[tag_end:]
        return self._replace(head=here, last=last, number=int.from_bytes(here[id_at:id_end], "big"))
