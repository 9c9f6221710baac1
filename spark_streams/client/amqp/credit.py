"""Controls the flow of deliveries to a reader: how much credit its link has, and when the client drains it.

Credit begins small, and grows while the reader consumes rows. A small range of a long log must not make the peer send
thousands of events beyond it, a large one must not wait for round trips. Large messages get less credit, so that the
bytes under way stay bounded; the session's window (``connection.SESSION_BYTES``) bounds them too, as the average
does not show every large message.

A peer that has nothing to send is silent, and so is a dead one. A drain distinguishes them, as the peer has to answer
it (AMQP 1.0 part 2 §2.6.7): after a short silence the reader checks whether its range is complete, after a longer one
it drains the link, and in the end it gives up.
"""

from __future__ import annotations

import time
from typing import Final

from spark_streams.client.amqp.links import Link
from spark_streams.client.retry import Deadline

MIN_CREDIT: Final = 8
FIRST_CREDIT: Final = 256
MAX_CREDIT: Final = 4_096
"""Deliveries under way at most: 0.4 MB of 100-byte events; a session's window holds as many frames."""

MAX_CREDIT_BYTES: Final = 32 << 20
"""Bytes of all deliveries under way at most, by the average size so far."""


class CreditWindow:
    """Grants the credit of one receiving link: how many deliveries may be under way.

    Args:
        link: the link, without credit.
        most: deliveries under way at most.
    """

    def __init__(self, link: Link, most: int = MAX_CREDIT) -> None:
        self._deliveries = link.deliveries
        self._most = most
        self._target = min(FIRST_CREDIT, most)
        self._rows = self._bytes = 0
        self._deliveries.flow(self._target)

    def consumed(self, rows: int, size: int) -> None:
        """Count ``rows`` consumed messages, which have ``size`` bytes together."""
        self._rows += rows
        self._bytes += size

    def top_up(self) -> None:
        """Fill the window again once half of it is used up."""
        left = self._deliveries.granted
        if left > self._target // 2:
            return
        affordable = MAX_CREDIT_BYTES * max(1, self._rows) // max(1, self._bytes)
        self._target = min(self._most, max(MIN_CREDIT, min(2 * self._target, affordable)))
        if self._target > left:
            self._deliveries.flow(self._target - left)


CHECK_END_AFTER_S: Final = 0.005
"""Seconds of silence after which the reader checks the last offset: the range may be complete."""
DRAIN_AFTER_S: Final = 0.25
"""Seconds of silence after which the client drains the link."""
NARROWED_DRAIN_AFTER_S: Final = 0.02
"""The same where the peer leaves out events, or offsets have holes: only the answer to the drain shows the end then."""


LOOK_AFTER_S: Final = 2.0
"""Seconds of silence after which the reader checks whether its events are gone, where the peer answers no drain."""
LOOKS_OF_SILENCE: Final = 15
"""Checks in a row, after a first one, that need the same answer before the silence means that there are no more events
(H-7): 30 s. Microsoft's client for Java reacts to no shorter silence (``SILENT_MINIMUM``), and a hub
that stalls for 20 s has not ended."""


class DrainTimer:
    """Measures how long the peer has been silent, decides what is due, and drains the link if the peer answers drains.

    Args:
        link: the link.

    Attributes:
        draining: whether the client has requested a drain that the peer has not answered.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._deadline = Deadline(link.connection.timeout_ms)
        holes = link.narrowed or link.connection.dialect.numeric_offsets
        self._drain_after_s = NARROWED_DRAIN_AFTER_S if holes else DRAIN_AFTER_S
        self._drains = link.connection.dialect.drains
        self.draining = False
        self._told: object = None
        self.received()

    def received(self) -> None:
        """Note that deliveries came, and start all times again."""
        self._since = self._looked = time.monotonic()
        self._looks, self._told = 0, None
        self._end_checked = False
        self._deadline.restart()

    def extend(self) -> None:
        """Start the peer's timeout again, as it has answered on another link; the measured silence continues."""
        self._deadline.restart()

    def end_check_due(self) -> bool:
        """Return whether to check the last offset now: true once in a silence."""
        if self._end_checked or time.monotonic() - self._since < CHECK_END_AFTER_S:
            return False
        self._end_checked = True
        return True

    def drain_if_due(self) -> bool:
        """Drain the link if that is due; return whether it was."""
        if not self._drains:
            return False
        self.draining = time.monotonic() - self._since >= self._drain_after_s
        if self.draining:
            self._link.deliveries.drain = True
        return self.draining

    def look_due(self) -> bool:
        """Return whether to check now if events are gone: every ``LOOK_AFTER_S`` where the peer answers no drain."""
        now = time.monotonic()
        if self._drains or now - self._looked < LOOK_AFTER_S:
            return False
        self._looked = now
        return True

    def has_no_more(self, told: object) -> bool:
        """Note the answer to a check; return whether all checks of a long enough silence had the same answer.

        Only checks with an answer count: while the peer as a whole stalls, its silence proves nothing. An answer shows
        that the peer lives: its timeout starts again, unless the answers differ.
        """
        same = told == self._told and self._link.deliveries.granted > 0
        self._looks, self._told = self._looks + 1 if same else 0, told
        if same:
            self._deadline.restart()
        return self._looks >= LOOKS_OF_SILENCE

    def answered_empty(self) -> bool:
        """Return whether the peer's answer to the drain says that it has no more.

        Where deliveries used up the credit instead, switch the drain off and start all times again.
        """
        if self._link.deliveries.take_returned():
            return True
        self.look_again()  # deliveries used all credit, so there may be more events
        return False

    def look_again(self) -> None:
        """Note that the peer's answer was not final: it gets credit again, and later another drain."""
        self._link.deliveries.drain = False
        self.draining = False
        self.received()

    def timeout_s(self, has_rows: bool) -> float:
        """Return how many seconds to wait now.

        Args:
            has_rows: whether there is an offset to check.

        Raises:
            DeadlineExceeded: the peer was silent for too long.
        """
        left = self._deadline.left_s(f"{self._link.what}: no events, and no answer to drain")
        if self.draining:
            return left
        now = time.monotonic()
        if has_rows and not self._end_checked:
            due = self._since + CHECK_END_AFTER_S
        else:
            due = self._since + self._drain_after_s if self._drains else self._looked + LOOK_AFTER_S
        return min(left, max(0.0, due - now))
