"""A session's counts of our transfers: frames, delivery-ids, and which deliveries the peer has not settled.

Messages are written and settled in ranges, so there is one object for messages that were sent together, not for each.

Spec: AMQP 1.0 part 2 §2.5.6 (session flow control), §2.7.6 (disposition); part 3 §3.4 (delivery states).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.amqp import performatives as p
from spark_streams.wire.amqp.performatives import Performative, signed
from spark_streams.wire.amqp.values import Described, coded
from spark_streams.wire.columnar.byte_view import Positions

_SPARSE: Final = 32
"""Where at most one in so many deliveries that were sent together is unsettled, each is kept by itself."""
_WORDS: Final = ("accepted", "rejected", "released", "modified")
_OUTCOMES: Final = {key: _WORDS[code - p.ACCEPTED] for key, code in coded(p.ACCEPTED, *_WORDS).items()}


class Outcome(NamedTuple):
    """The outcome of deliveries.

    Args:
        name: ``accepted``, ``rejected``, ``released`` or ``modified``; empty for a settlement without an outcome.
        fields: the outcome's.
    """

    name: str
    fields: Sequence[Any] = ()

    @property
    def again(self) -> bool:
        """Whether they are to be sent again. Spec: part 3 §3.4.4, §3.4.5."""
        undeliverable = any(each is True for each in self.fields[1:2])
        return self.name == "released" or (self.name == "modified" and not undeliverable)

    @property
    def failed(self) -> bool:
        """Whether this counts as a failed delivery."""
        return self.name == "modified" and any(each is True for each in self.fields[:1])


ACCEPTED: Final = Outcome("accepted")


@dataclass(eq=False)
class Sent:
    """Deliveries of one link that were sent together, at least one of them unsettled.

    Args:
        link: the ``OutgoingDeliveries``.
        first: the number of the first of them on the session, not reduced to 32 bits.
        offsets: the events' offsets.
        origin: whatever the link's owner needs to know of them.
        open: bool[n], which of them are unsettled.
        left: how many are unsettled.
    """

    link: Any
    first: int
    offsets: Positions
    origin: Any
    open: NDArray[np.bool_]
    left: int

    @property
    def unsettled_offsets(self) -> Positions:
        """The offsets of the unsettled ones."""
        return self.offsets[self.open]


class OutgoingSession:
    """A session's counts of our transfers.

    Args:
        outcomes: whether unsettled deliveries are noted, so that links learn their outcomes.

    Attributes:
        channel: our channel; None before our begin, and once the session has ended.
        next_transfer: the number of the next transfer frame.
        next_id: the number of the next delivery, not reduced to 32 bits.
        window: how many more transfer frames the peer takes; its begin says the first number.
        heard: ranges of delivery-ids, both ends inclusive, that are settled here; the peer has to be told, as it keeps
            them until then.
        owed: links whose state the peer has requested, by drain or echo, and does not know yet.
    """

    def __init__(self, *, outcomes: bool = True) -> None:
        self.outcomes = outcomes
        self.channel: int | None = None
        self.next_transfer = 0
        self.next_id = 0
        self.window = 0
        self.heard: list[tuple[int, int]] = []
        self.owed: dict[Any, None] = {}
        self._sent: list[Sent] = []
        self._firsts: list[int] = []

    def on_flow(self, flow: Performative) -> None:
        """Read the window of the peer's flow.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        # The peer counts from what had reached it when it wrote this.
        self.window = max(0, flow.number(1, 0) - signed(self.next_transfer - flow.number(0, 0)))

    def on_accepted(self, first: int, last: int) -> Iterable[Any]:
        """Settle deliveries that the peer has accepted and settled, both inclusive; return their links."""
        return self.settle(first, last, ACCEPTED)

    def on_disposition(self, disposition: Performative) -> Iterable[Any]:
        """Read the peer's disposition of deliveries.

        Returns:
            The links of those that are settled by it.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if not disposition.field(0, bool, False):
            return ()  # the peer is the sender of these deliveries
        first = disposition.number(1, 0)
        last = disposition.number(2, first)
        settled = disposition.field(3, bool, False)
        state = disposition.field(4, Described, None)
        name = "" if state is None else _OUTCOMES.get(state.descriptor, "")
        if not name and not settled:
            return ()  # "received", which is no outcome yet (AMQP 1.0 part 3 §3.4.1)
        fields = state.value if state is not None and isinstance(state.value, list) else ()
        links = self.settle(first, last, Outcome(name, fields if name else ()))
        if (links or not self.outcomes) and not settled:
            self.heard.append((first, last))
        return links

    def settle(self, first: int, last: int, outcome: Outcome) -> Iterable[Any]:
        """Settle deliveries.

        Args:
            first: the first delivery-id, inclusive; deliveries that are settled or were never sent do not count.
            last: the last one, inclusive.
            outcome: their outcome.

        Returns:
            Their links.
        """
        stop = self.next_id + min(0, signed(last - self.next_id)) + 1
        begin = min(self.next_id + signed(first - self.next_id), stop - 1)
        links: dict[Any, None] = {}
        at = max(0, bisect_right(self._firsts, begin) - 1)
        while at < len(self._sent) and self._firsts[at] < stop:
            sent = self._sent[at]
            low, high = max(0, begin - sent.first), max(0, min(len(sent.open), stop - sent.first))
            rows = np.arange(low, high) if sent.left == len(sent.open) else low + np.flatnonzero(sent.open[low:high])
            kept = [sent]
            if len(rows):
                links[sent.link] = None
                kept = self._settled(sent, rows, outcome)
                self._sent[at : at + 1] = kept
                self._firsts[at : at + 1] = [each.first for each in kept]
            at += len(kept)
        return links

    def _settled(self, sent: Sent, rows: Positions, outcome: Outcome) -> list[Sent]:
        """Note that some deliveries are settled; return the rest of those that were sent with them."""
        link = sent.link
        sent.open[rows] = False
        sent.left -= len(rows)
        link.unsettled -= len(rows)
        link.settled(sent.origin, sent.offsets[rows], outcome)
        if not sent.left:
            return []
        if sent.left * _SPARSE > len(sent.open):
            return [sent]
        one = np.ones(1, np.bool_)
        return [
            Sent(link, sent.first + row, sent.offsets[row : row + 1].copy(), sent.origin, one.copy(), 1)
            for row in np.flatnonzero(sent.open).tolist()
        ]

    def add(self, sent: Sent) -> None:
        """Note deliveries that have been sent unsettled."""
        self._sent.append(sent)
        self._firsts.append(sent.first)

    def of(self, link: Any) -> list[Sent]:
        """Return the unsettled deliveries of a link, in their order."""
        return [sent for sent in self._sent if sent.link is link]

    def forget(self, link: Any) -> None:
        """Forget the unsettled deliveries of a link."""
        self._sent = [sent for sent in self._sent if sent.link is not link]
        self._firsts = [sent.first for sent in self._sent]
