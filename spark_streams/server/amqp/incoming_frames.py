"""Splits what a peer sends between the deliveries of the door's links and proton's engine.

::

    received bytes --> frames --> transfers  --> Deliveries, in columns
                              --> flows and dispositions --> Deliveries, OutgoingDeliveries and their sessions
                              --> all others --> proton's engine, in their order

proton has no name for the place of a link in the peer's frames, so the frames that tell it are read on their way to
proton: begin, attach, detach and end. They go to proton one at a time, so that the event that follows is known to be
that frame's. A frame about a session or a link that the peer has not begun or attached is proton's, which has words for
it.

Spec: AMQP 1.0 part 2 §2.2 (the header before the frames), §2.5.1 (channels), §2.6.2 (handles).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.amqp.deliveries import Deliveries, IncomingSession, Messages, Violation, delivery_ids
from spark_streams.server.amqp.error_conditions import DECODE_ERROR
from spark_streams.server.amqp.outgoing_deliveries import DONE, OutgoingDeliveries, OutgoingSession
from spark_streams.server.appender import copied
from spark_streams.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    USUAL_DISPOSITION,
    Performative,
    performative_code,
    performative_codes,
    read_performative,
    usual_range,
)
from spark_streams.wire.amqp.transfer_frames import HEAD_BYTES, Frames, Transfers, read_transfers, split_frames
from spark_streams.wire.columnar.byte_view import Positions

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_READ: Final = frozenset({BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION})
_BETWEEN_RESTS: Final = 64
_FEW: Final = 4
"""Up to this many frames without a transfer are read one by one at once: most reads bring a flow or a disposition."""
_UNREAD: Final = (0, OPEN, CLOSE)
_PASSED: Final = -2
"""The place of a frame that is proton's, whatever is in it."""


class IncomingFrames:
    """The bytes that come on one connection, after SASL.

    Args:
        config: the door's settings.
        unfinished: called with the number of bytes that messages of which only some frames have come grew by.
        outcomes: whether the door needs to know what becomes of what it sends.

    Attributes:
        attach: the attach that was given to proton last.
        begun: the session of the begin that was given to proton last.
        attached: the deliveries of the attach that was given to proton last; None for a link on which the door sends.
        attached_sender: the same for such a link; None for one on which the peer sends.
        arrived: the deliveries that have got messages or a refusal, credit or outcomes; whoever reads it clears it.
    """

    def __init__(self, config: LinkConfig, unfinished: Callable[[int], None], *, outcomes: bool = True) -> None:
        self.attach: Performative | None = None
        self.begun: IncomingSession | None = None
        self.attached: Deliveries | None = None
        self.attached_sender: OutgoingDeliveries | None = None
        self.arrived: dict[Deliveries | OutgoingDeliveries, None] = {}
        self._config = config
        self._unfinished = unfinished
        self._outcomes = outcomes
        self._rest = bytearray()
        self._needed = HEAD_BYTES
        self._started = self._ended = False
        self._sessions: dict[int, IncomingSession] = {}
        self._links: dict[int, Deliveries] = {}
        """Channel and handle, as ``_place`` joins them, to the deliveries of a link on which the peer sends."""
        self._sending: dict[int, OutgoingDeliveries] = {}
        """The same of links on which the door sends."""

    @property
    def sessions(self) -> list[IncomingSession]:
        """The sessions that the peer has begun and not ended."""
        return list(self._sessions.values())

    def received(self, data: bytes) -> Iterator[bytes | memoryview]:
        """Take bytes from the peer, and yield those that are proton's, as they become due.

        Whoever takes them asks for no more once proton takes no more, and may rest before going on where they are
        empty: frames that are read one at a time take long if there are many.

        Proton hears at least an empty frame, so that it knows that the peer is not silent.

        Raises:
            Violation: the peer broke a rule about transfers.
        """
        if self._ended:
            yield data
            return
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                yield EMPTY_FRAME if self._started else b""
                return
            data, self._rest = bytes(self._rest), bytearray()
        view, start = memoryview(data), 0
        if not self._started:
            if len(data) < HEAD_BYTES:
                self._rest += data
                return
            yield view[:HEAD_BYTES]  # "AMQP" and the version, no frame
            self._started, start = True, HEAD_BYTES
        frames = split_frames(data, start, len(data), self._config.max_frame_bytes)
        given = False
        for first, end in self._others(view, frames):
            given |= end > first
            yield view[first:end]
        left = len(data) - frames.stop
        size = int.from_bytes(view[frames.stop : frames.stop + 4], "big") if left >= 4 else HEAD_BYTES
        if not HEAD_BYTES <= size <= self._config.max_frame_bytes:
            self._ended = True
            yield view[frames.stop :]  # proton has words for such a frame
        elif not given and len(data) > start:
            yield EMPTY_FRAME
        if left and not self._ended:
            self._rest += view[frames.stop :]
            self._needed = size

    def _others(self, view: memoryview, frames: Frames) -> Iterator[tuple[int, int]]:
        """Give transfers to their deliveries, and yield the ranges of the other frames."""
        if not frames.starts.size:
            return
        if frames.starts.size <= _FEW and not any(
            performative_code(view[start:end]) == TRANSFER
            for start, end in zip(frames.starts.tolist(), frames.ends.tolist(), strict=True)
        ):
            for row in range(frames.starts.size):
                yield from self._one(view, frames, row)
            return
        transfers = read_transfers(view, frames)
        places = np.where(transfers.usual, _place(transfers.channel, transfers.handle), -1)
        # A link may be attached or detached between these frames, so each run is looked up again at its turn.
        distinct = places[:1] if (places == places[0]).all() else np.unique(places)
        unknown = [place for place in distinct.tolist() if place not in self._links]
        alone: list[int] = []
        if unknown:
            codes = performative_codes(view, frames)
            passed = np.isin(codes, _UNREAD)
            places[passed] = _PASSED
            alone = np.flatnonzero(np.isin(places, unknown) & ~passed).tolist()
        at = 0
        for number, row in enumerate([*alone, len(places)]):
            if number % _BETWEEN_RESTS == _BETWEEN_RESTS - 1:
                yield 0, 0
            if at < row:
                yield from self._taken(view, frames, transfers, places, at, row)
            at = row + 1
            if row == len(places):
                break
            yield from self._one(view, frames, row)

    def _one(self, view: memoryview, frames: Frames, row: int) -> Iterator[tuple[int, int]]:
        """Read one frame, and yield its range if it is proton's."""
        start, end = int(frames.starts[row]), int(frames.ends[row])
        frame = view[start:end]
        code = performative_code(frame)
        if code not in _READ or not self._one_taken(frame, code):
            # At once: it may begin or end something, or be a fault after which nothing is taken.
            yield start, end
            self._after(frame, code)

    def _taken(
        self, view: memoryview, frames: Frames, transfers: Transfers, places: Positions, first: int, stop: int
    ) -> Iterator[tuple[int, int]]:
        """Give usual transfers to their deliveries; yield the ranges of the frames between them that are proton's."""
        run = places[first:stop]
        distinct = run[:1].tolist() if (run == run[0]).all() else np.unique(run).tolist()
        # A frame is proton's because nothing in it matters here, or because its link was detached meanwhile.
        others = [place for place in distinct if place not in self._links]
        if others:
            mine = ~np.isin(run, others)
            edges = [first, *(first + 1 + np.flatnonzero(np.diff(mine))).tolist(), stop]
            for begin, end in itertools.pairwise(edges):
                if mine[begin - first]:
                    yield from self._taken(view, frames, transfers, places, begin, end)
                else:
                    yield int(frames.starts[begin]), int(frames.ends[end - 1])
            return
        while first < stop and any(self._links[place].is_begun for place in distinct):
            # The last frame of a message in several frames may look like that of a whole message.
            self._one_transfer(view, frames, places, first)
            first += 1
        if first == stop:
            return
        rows = slice(first, stop)
        if not self._count(places[rows], distinct, transfers.delivery_id[rows]):
            for row in range(first, stop):
                self._one_transfer(view, frames, places, row)  # what came before the fault is taken
            return
        starts, ends = transfers.payload_start[rows], frames.ends[rows]
        ids = delivery_ids(transfers.delivery_id[rows], transfers.settled[rows])
        formats = transfers.message_format[rows] if transfers.message_format[rows].any() else None
        if len(distinct) == 1:
            # A copy: the message that came with many others, and waits for its turn, must not keep all their memory.
            origin = int(starts[0])
            memory = np.array(view[origin : int(ends[-1])])
            self._give(distinct[0], Messages(memory, starts - origin, ends - origin, ids, formats))
            return
        for place in distinct:
            chosen = np.flatnonzero(places[rows] == place)
            if len(chosen):
                values = copied(view, starts[chosen], ends[chosen])
                bounds = np.frombuffer(values.buffers()[1], np.int64, len(chosen) + 1)
                memory = np.frombuffer(values.buffers()[2] or b"", np.uint8)
                of_place = None if formats is None else formats[chosen]
                self._give(place, Messages(memory, bounds[:-1], bounds[1:], ids[chosen], of_place))

    def _one_transfer(self, view: memoryview, frames: Frames, places: Positions, row: int) -> None:
        deliveries = self._links[int(places[row])]
        with self._counted(deliveries):
            deliveries.on_transfer(read_performative(bytes(view[int(frames.starts[row]) : int(frames.ends[row])])))

    def _count(self, places: Positions, distinct: list[int], ids: Positions) -> bool:
        """Count usual transfers in their sessions; return False, and count nothing, if they break a rule."""
        channels = list({place >> 32 for place in distinct})
        sessions = [self._sessions[channel] for channel in channels]
        of_sessions = [ids] if len(channels) == 1 else [ids[places >> 32 == channel] for channel in channels]
        together = list(zip(sessions, of_sessions, strict=True))
        if not all(session.allows(each) for session, each in together):
            return False
        for session, each in together:
            session.count(each)
        return True

    def _give(self, place: int, messages: Messages) -> None:
        deliveries = self._links[place]
        deliveries.on_whole(messages)
        self.arrived[deliveries] = None

    @contextlib.contextmanager
    def _counted(self, deliveries: Deliveries) -> Iterator[None]:
        """Count what a frame adds to unfinished messages, or ends of them."""
        before = len(deliveries.begun)
        yield
        self.arrived[deliveries] = None
        if len(deliveries.begun) != before:
            self._unfinished(len(deliveries.begun) - before)

    def _one_taken(self, frame: memoryview, code: int) -> bool:
        """Read one frame that tells the place of a link, or is about one; return False if it is proton's too."""
        channel = int.from_bytes(frame[6:8], "big")
        session = self._sessions.get(channel)
        if code != BEGIN and session is None:
            return False
        try:
            if code == DISPOSITION and (usual := USUAL_DISPOSITION.fullmatch(frame)) is not None:
                assert session is not None
                self.arrived.update(dict.fromkeys(session.outgoing.settle(*usual_range(usual), DONE)))
                return True
            read = read_performative(bytes(frame))
            if code == BEGIN:
                self.begun = self._sessions[channel] = IncomingSession(
                    read.number(1, 0),
                    self._config.session_bytes,
                    self._config.max_frame_bytes,
                    OutgoingSession(read.number(2, 0), outcomes=self._outcomes),
                )
                return False
            assert session is not None
            if code == ATTACH:
                place = _place(channel, read.number(1, 0))
                self.attach = read
                self.attached = self.attached_sender = None
                if read.field(2, bool, False):
                    self.attached_sender = self._sending[place] = OutgoingDeliveries(session.outgoing)
                else:
                    self.attached = self._links[place] = Deliveries(
                        session, read.number(9, 0), self._config.max_message_bytes
                    )
                return False
            if code == DISPOSITION:
                self.arrived.update(dict.fromkeys(session.outgoing.on_disposition(read)))
                return True
            if code == FLOW:
                return self._flow_taken(session, channel, read)
            deliveries = self._links.get(_place(channel, read.number(0, 0)))
            if deliveries is None:
                return False
            with self._counted(deliveries):
                deliveries.on_transfer(read)
            return True
        except RemoteProtocolError as fault:
            raise Violation(DECODE_ERROR, str(fault)) from fault

    def _flow_taken(self, session: IncomingSession, channel: int, flow: Performative) -> bool:
        """Read a flow; return False if it is about a link that is not attached."""
        handle = flow.number(4, None)
        place = -1 if handle is None else _place(channel, handle)
        deliveries = self._links.get(place) or self._sending.get(place)
        if deliveries is None and handle is not None:
            return False
        session.outgoing.on_flow(flow)
        if deliveries is None:
            session.flow_due |= flow.field(9, bool, False)
        else:
            deliveries.on_flow(flow)
            self.arrived[deliveries] = None
        return True

    def _after(self, frame: memoryview, code: int | None) -> None:
        """Forget what a frame has ended."""
        channel = int.from_bytes(frame[6:8], "big")
        if code == END:
            ended = self._sessions.pop(channel, None)
            if ended is not None:
                ended.channel = ended.outgoing.channel = None
            for links in (self._links, self._sending):
                for place in [place for place in links if place >> 32 == channel]:
                    del links[place]
        elif code == DETACH:
            try:
                handle = read_performative(bytes(frame)).number(0, 0)
            except RemoteProtocolError as fault:
                raise Violation(DECODE_ERROR, str(fault)) from fault
            self._links.pop(_place(channel, handle), None)
            self._sending.pop(_place(channel, handle), None)


def _place(channel: Any, handle: Any) -> Any:
    """Return a channel and a handle as one number."""
    return channel << 32 | handle
