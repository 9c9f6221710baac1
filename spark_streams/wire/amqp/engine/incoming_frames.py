"""Passes a peer's frames to the sessions and links of one connection, and to the engine, which has the endpoints.

::

    received bytes --> frames --> transfers              --> IncomingDeliveries, in columns
                              --> flows and dispositions --> sessions and links, of both directions
                              --> all others             --> the engine, in their order

Frames about an unknown session or link go to the engine, too.

Transfers of whole messages are read in columns. Two kinds of frames are read one by one, and fast: parts of a large
message, each mostly followed by another part, by comparison with an earlier part; and dispositions of the usual form,
of which many peers write one for each message.

Spec: AMQP 1.0 part 2 §2.2 (the header before the frames), §2.5.1 (channels), §2.6.2 (handles).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.engine.endpoints import Endpoint
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.messages import SETTLED, Messages
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.session import DECODE_ERROR, FRAMING_ERROR, IncomingSession, Violation
from spark_streams.wire.amqp.performatives import (
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    TRANSFER,
    USUAL_DISPOSITION,
    Performative,
    empty_frames,
    performative_code,
    read_performative,
    usual_range,
)
from spark_streams.wire.amqp.sasl import AMQP_HEADER
from spark_streams.wire.amqp.transfer_frames import HEAD_BYTES, Frames, Transfers, read_transfers, split_frames
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.gather import copied

Changed = Iterator[Endpoint | None]
"""Endpoints that the peer has opened or closed, and None where the caller may pause."""

_OF_LINKS: Final = frozenset({FLOW, TRANSFER, DISPOSITION})
_BETWEEN_RESTS: Final = 64
_FEW: Final = 4
"""Up to this many frames are read one by one as long as none is a transfer: most reads bring only a flow."""


class IncomingFrames:
    """The incoming frames of one connection, after SASL.

    Args:
        max_frame_bytes: the largest frame.
        on_endpoint: takes a frame about an endpoint, known or not, and its performative's number; returns the endpoint,
            if the peer has opened or closed one.

    Attributes:
        stop: where the bytes of an incomplete frame begin among those that were ``read`` last.
        started: whether the header has come.
        ended: whether the peer has closed the connection: nothing more is read.
        arrived: the links that have got messages or a fault, credit or outcomes; the reader clears it.
    """

    def __init__(self, max_frame_bytes: int, on_endpoint: Callable[[memoryview, int | None], Endpoint | None]) -> None:
        self.stop = 0
        self.started = self.ended = False
        self.arrived: dict[Any, None] = {}
        self._max_frame_bytes = max_frame_bytes
        self._on_endpoint = on_endpoint
        self._sessions: dict[int, IncomingSession] = {}
        """By the peer's channel."""
        self._receiving: dict[int, IncomingDeliveries] = {}
        """By the peer's channel and handle, as ``_place`` joins them."""
        self._sending: dict[int, OutgoingDeliveries] = {}
        """The same for links on which we send."""
        self._parts: IncomingDeliveries | None = None
        """The link whose last message came in parts, or is coming, if no other transfer came after it."""

    def begin(self, channel: int, session: IncomingSession) -> None:
        """Note the session of a channel of the peer's."""
        self._sessions[channel] = session

    def attach(self, channel: int, handle: int, link: IncomingDeliveries | OutgoingDeliveries) -> None:
        """Note the link of a channel and a handle of the peer's."""
        if isinstance(link, IncomingDeliveries):
            self._receiving[_place(channel, handle)] = link
        else:
            self._sending[_place(channel, handle)] = link

    def read(self, view: memoryview, start: int, end: int) -> Changed:
        """Read bytes of the peer.

        Yields:
            Each endpoint that the peer opens or closes, before anything after it is read; and None where the caller may
            pause, as many frames that are read one at a time take long.

        Args:
            view: the memory.
            start: the first byte, inclusive: where the call before has stopped.
            end: where the bytes end, exclusive.

        Raises:
            Violation: the peer broke a rule; what came before is taken.
        """
        self.stop = end
        if not self.started:
            if end - start < HEAD_BYTES:
                self.stop = start
                return
            header, start = bytes(view[start : start + HEAD_BYTES]), start + HEAD_BYTES
            if header != AMQP_HEADER:
                raise Violation(FRAMING_ERROR, f"the header is {header!r}, expected {AMQP_HEADER!r}")
            self.started = True
        frames = split_frames(view, start, end, self._max_frame_bytes)
        if frames.starts.size:
            try:
                yield from self._frames(view, frames)
            except Violation:
                raise
            except RemoteProtocolError as fault:
                raise Violation(DECODE_ERROR, str(fault)) from fault
        if self.ended:
            return
        size = int.from_bytes(view[frames.stop : frames.stop + 4], "big")
        if end - frames.stop >= 4 and not HEAD_BYTES <= size <= self._max_frame_bytes:
            raise Violation(FRAMING_ERROR, f"a frame of {size} bytes, expected 8 to {self._max_frame_bytes}")
        self.stop = frames.stop

    def _frames(self, view: memoryview, frames: Frames) -> Changed:
        """Give frames to their sessions and links, and to the engine."""
        if self._parts is not None or performative_code(view[frames.starts[0] : frames.ends[0]]) != TRANSFER:
            done = yield from self._one_by_one(view, frames)
            frames = frames._replace(starts=frames.starts[done:], ends=frames.ends[done:])
        if not frames.starts.size:
            return
        transfers = read_transfers(view, frames)
        places = _place(transfers.channel, transfers.handle)
        if not transfers.usual.all():
            places[~transfers.usual] = -1
        # A link may be attached or detached between these frames, so each run is looked up again at its turn.
        distinct = _distinct(places)
        unknown = [place for place in distinct if place not in self._receiving]
        alone: list[int] = []
        if unknown:
            empty = empty_frames(view, frames)
            if empty.any():
                frames = frames._replace(starts=frames.starts[~empty], ends=frames.ends[~empty])
                transfers, places = transfers.rows(~empty), places[~empty]
            alone = np.flatnonzero(np.isin(places, unknown)).tolist()
        block, at = _Block(view, frames, transfers, places, None if unknown else distinct), 0
        for number, row in enumerate([*alone, len(places)]):
            if number % _BETWEEN_RESTS == _BETWEEN_RESTS - 1:
                yield None
            if at < row:
                yield from self._columns(block, at, row)
            at = row + 1
            if row < len(places):
                yield from self._one(view, *block.bounds(row))

    # --- one by one

    def _one_by_one(self, view: memoryview, frames: Frames) -> Generator[Endpoint | None, None, int]:
        """Read the first frames one by one, as long as that takes less than examining all; return how many these are.

        That is so for parts of messages, for dispositions, and for a few frames without a whole message.
        """
        match, few = USUAL_DISPOSITION.fullmatch, frames.starts.size <= _FEW
        for row, (start, end) in enumerate(zip(frames.starts.tolist(), frames.ends.tolist(), strict=True)):
            if row % _BETWEEN_RESTS == _BETWEEN_RESTS - 1:
                yield None
            found = match(view, start, end) if self._sending else None
            if found is not None and self._accepted(found):
                continue
            if self._parts is not None and self._parts.on_same(view[start:end]):
                self.arrived[self._parts] = None
                continue
            code = performative_code(view[start:end])
            if self._parts is None if code == TRANSFER else not few and code != DISPOSITION:
                return row
            yield from self._one(view, start, end)
        return len(frames.starts)

    def _accepted(self, found: re.Match[bytes]) -> bool:
        """Take a usual disposition; return False if its session is not known here."""
        session = self._sessions.get(int.from_bytes(found[1], "big"))
        if session is None:
            return False
        self.arrived.update(dict.fromkeys(session.outgoing.on_accepted(*usual_range(found))))
        return True

    def _one(self, view: memoryview, start: int, end: int) -> Changed:
        """Read one frame; do nothing after the connection's end."""
        frame = view[start:end]
        code = performative_code(frame)
        if self.ended or (code in _OF_LINKS and self._one_taken(frame, code)):
            return
        changed = self._on_endpoint(frame, code)
        if changed is not None:
            yield changed
        if code in (DETACH, END):
            self._forget(frame, code)

    def _one_taken(self, frame: memoryview, code: int) -> bool:
        """Read one frame about messages; return False if its session or its link is not known here."""
        if code == TRANSFER and self._parts is not None and self._parts.on_same(frame):
            self.arrived[self._parts] = None
            return True
        channel = int.from_bytes(frame[6:8], "big")
        session = self._sessions.get(channel)
        if session is None:
            return False
        read = read_performative(bytes(frame))
        if code == DISPOSITION:
            self.arrived.update(dict.fromkeys(session.outgoing.on_disposition(read)))
            return True
        if code == FLOW:
            return self._flow_taken(session, channel, read)
        deliveries = self._receiving.get(_place(channel, read.number(0, 0)))
        if deliveries is not None:
            self._transferred(deliveries, read)
        return deliveries is not None

    def _flow_taken(self, session: IncomingSession, channel: int, flow: Performative) -> bool:
        """Read a flow; return False if it is about a link that is not attached."""
        handle = flow.number(4, None)
        place = -1 if handle is None else _place(channel, handle)
        link = self._receiving.get(place) or self._sending.get(place)
        if link is None and handle is not None:
            return False
        session.outgoing.on_flow(flow)
        if link is None:
            session.asked |= flow.field(9, bool, False)
        else:
            link.on_flow(flow)
            self.arrived[link] = None
        return True

    def _transferred(self, deliveries: IncomingDeliveries, transfer: Performative) -> None:
        self.arrived[deliveries] = None
        deliveries.on_transfer(transfer)
        self._parts = deliveries if deliveries.in_parts else None

    def _forget(self, frame: memoryview, code: int) -> None:
        """Forget what a frame has ended."""
        channel, self._parts = int.from_bytes(frame[6:8], "big"), None
        if code == DETACH:
            ended = [_place(channel, read_performative(bytes(frame)).number(0, 0))]
        else:
            session = self._sessions.pop(channel, None)
            if session is not None:
                session.end()
            ended = [place for place in (*self._receiving, *self._sending) if place >> 32 == channel]
        for place in ended:
            link = self._receiving.pop(place, None) or self._sending.pop(place, None)
            if link is not None:
                link.end()

    # --- in columns

    def _columns(self, block: _Block, first: int, stop: int) -> Changed:
        """Give usual transfers to their deliveries."""
        distinct = block.distinct
        if distinct is None or len(distinct) > 1:
            distinct = _distinct(block.places[first:stop])
        # Places of links that were detached meanwhile.
        others = [place for place in distinct if place not in self._receiving]
        if others:
            mine = ~np.isin(block.places[first:stop], others)
            edges = [first, *(first + 1 + np.flatnonzero(np.diff(mine))).tolist(), stop]
            for begin, end in itertools.pairwise(edges):
                if mine[begin - first]:
                    yield from self._columns(block, begin, end)
                else:
                    yield from self._one(block.view, *block.bounds(begin))
            return
        while first < stop and any(self._receiving[place].is_begun for place in distinct):
            # The last frame of a message in several frames may look like that of a whole message.
            self._one_of(block, first)
            first += 1
        if first == stop:
            return
        rows = slice(first, stop)
        if not self._count(block.places[rows], distinct, block.transfers.delivery_id[rows]):
            for row in range(first, stop):
                self._one_of(block, row)  # what came before the fault is taken
            return
        self._parts = None
        if len(distinct) == 1:
            self._give(distinct[0], block.messages(rows))
            return
        for place in distinct:
            chosen = first + np.flatnonzero(block.places[rows] == place)
            if len(chosen):
                self._give(place, block.messages(chosen))

    def _one_of(self, block: _Block, row: int) -> None:
        start, end = block.bounds(row)
        self._transferred(self._receiving[int(block.places[row])], read_performative(bytes(block.view[start:end])))

    def _count(self, places: Positions, distinct: list[int], ids: Positions) -> bool:
        """Count usual transfers in their sessions; return False, and count nothing, if they break a rule."""
        channels = {place >> 32 for place in distinct}
        together = [
            (self._sessions[channel], ids if len(channels) == 1 else ids[places >> 32 == channel])
            for channel in channels
        ]
        if not all([session.allows(each) for session, each in together]):
            return False
        for session, each in together:
            session.count(each)
        return True

    def _give(self, place: int, messages: Messages) -> None:
        deliveries = self._receiving[place]
        deliveries.on_whole(messages)
        self.arrived[deliveries] = None


class _Block(NamedTuple):
    """Frames that are examined together.

    Args:
        view: the bytes.
        frames: where each lies.
        transfers: the fields of the usual transfers among them.
        places: the places of these transfers' links; below 0 for other frames.
        distinct: these places, each once; None where they must be determined again.
    """

    view: memoryview
    frames: Frames
    transfers: Transfers
    places: Positions
    distinct: list[int] | None

    def bounds(self, row: int) -> tuple[int, int]:
        """Return where a frame lies."""
        return int(self.frames.starts[row]), int(self.frames.ends[row])

    def messages(self, rows: slice | Positions) -> Messages:
        """Return a copy of transfers of whole messages: a waiting message must not keep the memory of a whole read."""
        transfers = self.transfers
        starts, ends, ids = transfers.payload_start[rows], self.frames.ends[rows], transfers.delivery_id[rows]
        settled = transfers.settled[rows]
        if settled.any():
            ids = np.where(settled, SETTLED, ids)
        if isinstance(rows, slice):
            origin = int(starts[0])
            memory, starts, ends = np.array(self.view[origin : int(ends[-1])]), starts - origin, ends - origin
        else:
            bounds, memory = layout(copied(self.view, starts, ends))
            starts, ends = bounds[:-1], bounds[1:]
        return Messages(memory, starts, ends, ids, transfers.message_format[rows])


def _distinct(places: Positions) -> list[int]:
    """Return places, each once."""
    found: list[int] = (places[:1] if (places == places[0]).all() else np.unique(places)).tolist()
    return found


def _place(channel: Any, handle: Any) -> Any:
    """Return a channel and a handle as one number."""
    return channel << 32 | handle
