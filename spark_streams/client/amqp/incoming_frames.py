"""Splits what a peer sends between the deliveries of our links and proton's engine.

::

    received bytes --> frames --> transfers and flows of our receiving links  --> Deliveries, in columns
                              --> flows and dispositions of our sending links --> OutgoingDeliveries
                              --> all others, in their order                  --> proton's engine

Proton has no name for the place of a link in the peer's frames, so the frames that tell it are read on their way to
proton: begin (which of our channels the peer's channel answers), attach, detach and end.

Spec: AMQP 1.0 part 2 §2.2 (the header before the frames), §2.5.1 (channels), §2.6.2 (handles).
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final

import numpy as np

from spark_streams.client.amqp.deliveries import Deliveries
from spark_streams.client.amqp.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    TRANSFER,
    USUAL_DISPOSITION,
    Performative,
    performative_code,
    read_performative,
)
from spark_streams.wire.amqp.transfer_frames import HEAD_BYTES, Frames, Transfers, read_transfers, split_frames
from spark_streams.wire.amqp.values import UInt, UShort

_SIZE: Final = struct.Struct(">I")
_READ: Final = frozenset({BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END})


class IncomingFrames:
    """The bytes that came on one connection, after SASL.

    Args:
        size: bytes that can be received at once.
        max_frame_bytes: the largest frame.

    Attributes:
        buffer: holds the received bytes.
    """

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        self.buffer = bytearray(size + max_frame_bytes)
        self._view = memoryview(self.buffer)
        self._max_frame_bytes = max_frame_bytes
        self._start = self._end = 0
        self._started = False
        self._awaited: dict[str, Deliveries | OutgoingDeliveries] = {}
        self._begun: dict[int, tuple[int, int, int]] = {}
        self._active: dict[int, Deliveries] = {}
        self._sending: dict[int, OutgoingDeliveries] = {}

    @property
    def room(self) -> memoryview:
        """Where to receive the next bytes; behind an incomplete frame, which moves to the beginning."""
        if self._start:
            self.buffer[: self._end - self._start] = self.buffer[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        return self._view[self._end :]

    def await_attach(self, deliveries: Deliveries | OutgoingDeliveries) -> None:
        """Have the frames about the link with the name of ``deliveries`` taken by these, from the peer's attach on."""
        self._awaited[deliveries.name] = deliveries

    def forget(self, deliveries: Deliveries | OutgoingDeliveries) -> None:
        """Forget a link whose session has ended."""
        self._awaited.pop(deliveries.name, None)

    def written(self) -> bytes:
        """Return the frames that the deliveries have to write."""
        return b"".join([each.frames() for links in (self._active, self._sending) for each in links.values()])

    def received(self, count: int) -> list[tuple[int, int]]:
        """Take ``count`` bytes that were received into ``room``.

        Returns:
            The ranges of ``buffer`` that are proton's, valid until more is received. An incomplete frame comes with its
            end.

        Raises:
            RemoteProtocolError: the peer broke a rule about a receiving link.
        """
        self._end += count
        ranges: list[tuple[int, int]] = []
        if not self._started:
            if self._end < HEAD_BYTES:
                return ranges
            self._started, self._start = True, HEAD_BYTES
            ranges.append((0, HEAD_BYTES))  # "AMQP" and the version, no frame
        frames = split_frames(self._view, self._start, self._end, self._max_frame_bytes)
        if frames.starts.size:
            ranges += self._others(frames)
        self._start = frames.stop
        if self._end - frames.stop >= HEAD_BYTES:
            (size,) = _SIZE.unpack_from(self.buffer, frames.stop)
            if not HEAD_BYTES <= size <= self._max_frame_bytes:
                ranges.append((frames.stop, self._end))  # proton refuses such a frame by its head, with its own words
                self._start = self._end
        return ranges

    def _others(self, frames: Frames) -> list[tuple[int, int]]:
        """Give transfers and flows to their deliveries, and return the ranges of the others."""
        if not self._active and not self._sending and not self._awaited:
            return [(int(frames.starts[0]), frames.stop)]
        others: list[tuple[int, int]] = []
        if self._sending:
            frames = self._without_dispositions(frames)
        elif any(deliveries.in_parts for deliveries in self._active.values()):
            frames = self._without_parts(frames, others)
        if not frames.starts.size:
            return others
        transfers = read_transfers(self.buffer, frames)
        # Runs of usual transfers of one link, all settled or none; any other frame is a run of its own.
        link = transfers.channel << 33 | transfers.handle << 1 | transfers.settled
        link[~transfers.usual] = -1
        edges = np.flatnonzero((link[1:] != link[:-1]) | (link[1:] < 0)) + 1
        bounds = [0, *edges.tolist(), link.size]
        for first, stop in pairwise(bounds):
            if not self._taken(frames, transfers, first, stop):
                start, end = int(frames.starts[first]), int(frames.ends[stop - 1])
                if others and others[-1][1] == start:
                    start = others.pop()[0]
                others.append((start, end))
        return others

    def _without_parts(self, frames: Frames, others: list[tuple[int, int]]) -> Frames:
        """Take frames one by one, as long as they are parts of messages; return the frames after these.

        After one large message another one comes most often, and no two parts are alike enough for columns.
        """
        starts, ends = frames.starts.tolist(), frames.ends.tolist()
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            frame = self._view[start:end]
            if not self._one_taken(frame):
                others.append((start, end))
            deliveries = self._active.get(int.from_bytes(frame[6:8], "big"))
            if deliveries is not None and not deliveries.in_parts:
                return frames._replace(starts=frames.starts[row + 1 :], ends=frames.ends[row + 1 :])
        return frames._replace(starts=frames.starts[:0], ends=frames.ends[:0])

    def _without_dispositions(self, frames: Frames) -> Frames:
        """Give usual dispositions to the deliveries that they are about; return the other frames."""
        match, left = USUAL_DISPOSITION.fullmatch, []
        for row, (start, end) in enumerate(zip(frames.starts.tolist(), frames.ends.tolist(), strict=True)):
            found = match(self._view, start, end)
            deliveries = None if found is None else self._sending.get(int.from_bytes(found[1], "big"))
            if found is None or deliveries is None:
                left.append(row)
            else:
                deliveries.on_usual(found)
        return frames._replace(starts=frames.starts[left], ends=frames.ends[left])

    def _taken(self, frames: Frames, transfers: Transfers, first: int, stop: int) -> bool:
        """Give a run of frames to its deliveries; return False if they are proton's."""
        start, end = int(frames.starts[first]), int(frames.ends[stop - 1])
        if not transfers.usual[first]:
            return self._one_taken(self._view[start:end])
        deliveries = self._active.get(int(transfers.channel[first]))
        if deliveries is None or deliveries.handle != int(transfers.handle[first]):
            return False
        rows = slice(first, stop)
        deliveries.on_usual(
            self._view[start:end],
            transfers.payload_start[rows] - start,
            frames.ends[rows] - start,
            transfers.delivery_id[rows],
            settled=bool(transfers.settled[first]),
        )
        return True

    def _one_taken(self, frame: memoryview) -> bool:
        channel = int.from_bytes(frame[6:8], "big")
        deliveries = self._active.get(channel)
        if deliveries is not None and deliveries.on_same(frame):
            return True
        code = performative_code(frame)
        if code not in _READ:
            return False
        if code == END:
            self._begun.pop(channel, None)
            if deliveries is not None:
                self._active.pop(channel).end()
            if channel in self._sending:
                self._sending.pop(channel).end()
            return False
        if channel in self._sending:
            return self._of_sender(self._sending[channel], channel, read_performative(bytes(frame)))
        if code not in (BEGIN, ATTACH) and deliveries is None:
            return False
        read = read_performative(bytes(frame))
        if code == BEGIN:
            ours = read.field(0, UShort, None)
            if ours is not None:  # else a session that the peer begins
                self._begun[channel] = ours, read.field(1, UInt, 0), read.field(2, UInt, 0)
        elif code == ATTACH:
            attached = self._awaited.pop(read.field(0, str, ""), None) if channel in self._begun else None
            if isinstance(attached, OutgoingDeliveries):
                ours, _, window = self._begun[channel]
                attached.attached(ours, window, read.field(1, UInt, 0))
                self._sending[channel] = attached
            elif attached is not None:
                attached.attached(*self._begun[channel][:2], read.field(1, UInt, 0), read.field(9, UInt, 0))
                self._active[channel] = attached
        elif deliveries is not None:
            if code == FLOW:
                deliveries.on_flow(read)
                return True
            if read.field(0, UInt, 0) != deliveries.handle:
                return False
            if code == TRANSFER:
                deliveries.on_transfer(read)
                return True
            self._active.pop(channel).end()
        return False

    def _of_sender(self, deliveries: OutgoingDeliveries, channel: int, read: Performative) -> bool:
        """Read a frame of a session on which we send; return False if it is proton's too."""
        if read.code == FLOW:
            deliveries.on_flow(read)
            return True
        if read.code == DISPOSITION:
            deliveries.on_disposition(read)
            return True
        if read.code == DETACH and read.field(0, UInt, 0) == deliveries.handle:
            self._sending.pop(channel).end()
        return False
