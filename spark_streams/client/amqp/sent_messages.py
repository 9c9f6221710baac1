"""Tracks the outcomes of the messages that a publisher has sent on one link: accepted, refused, or none yet.

Spec: AMQP 1.0 part 3 §3.4 (delivery states).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.outgoing_session import Outcome
from spark_streams.wire.amqp.engine.session import ranges
from spark_streams.wire.amqp.values import Described
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges


class Refusal(NamedTuple):
    """An outcome other than accepted.

    Args:
        outcome: ``rejected``, ``released`` or ``modified``, or a text for a delivery that was settled without outcome.
        condition, description: of a rejection; empty for other outcomes.
    """

    outcome: str
    condition: str
    description: str


class SentMessages:
    """The messages of one sending link, the only one of its session; each has its number on the link.

    Args:
        link: the link.

    Attributes:
        done: how many messages, from the first one on and without a gap, the peer has accepted.
    """

    def __init__(self, link: Link) -> None:
        self.done = 0
        self._link, self._deliveries = link, link.outgoing
        self._deliveries.settled = self._settled
        self._accepted: set[int] = set()
        self._refused: dict[int, tuple[int, Refusal]] = {}
        """The first message of a range to the end of the range, exclusive, and the outcome of these messages."""

    # --- for the publisher

    @property
    def sent(self) -> int:
        """Messages that were given to ``send``."""
        return self._deliveries.sent

    @property
    def room(self) -> int:
        """How many messages may be sent now, if each takes one frame."""
        return self._deliveries.room

    @property
    def under_way(self) -> int:
        """Messages that were sent and are not among the ``done`` ones."""
        return self.sent - self.done

    @property
    def pending(self) -> bool:
        """Whether frames wait to be written, or for the session's window."""
        return self._link.pending

    @property
    def refusal(self) -> Refusal | None:
        """The outcome of the message after the ``done`` ones, if it was not accepted."""
        found = (each for first, (stop, each) in self._refused.items() if first <= self.done < stop)
        return next(found, None)

    @property
    def undecided(self) -> int:
        """Messages that were sent and have no outcome."""
        return self.under_way - len(self._accepted) - sum(stop - first for first, stop, _ in self.refusals)

    @property
    def refusals(self) -> list[tuple[int, int, Refusal]]:
        """Ranges of messages that were not accepted, the end exclusive, and their outcomes; in their order."""
        refused = ((max(first, self.done), stop, each) for first, (stop, each) in self._refused.items())
        return sorted((first, stop, each) for first, stop, each in refused if first < stop)

    @property
    def unaccepted(self) -> list[tuple[int, int, None]]:
        """Ranges of messages that were sent and not accepted, whether they have an outcome or not; in their order."""
        ends = sorted({self.done - 1, *self._accepted, self.sent})
        return [(before + 1, after, None) for before, after in pairwise(ends) if before + 1 < after]

    def give_up(self) -> None:
        """Count the messages that were not accepted as done: they are sent again under other numbers."""
        for first, stop, _ in self.refusals:
            self._accept(first, stop)
        self._refused.clear()

    def send(
        self,
        memory: NDArray[np.uint8],
        starts: Positions,
        ends: Positions,
        formats: NDArray[np.uint32] | None = None,
    ) -> None:
        """Send the first messages: as many as take one frame each, or one that takes several.

        Args:
            memory: holds the messages.
            starts: first byte of each message; at least one, and at most ``room`` messages.
            ends: where they end, exclusive.
            formats: the message-format of each; None for 0.
        """
        numbers = np.arange(self.sent, self.sent + len(starts))
        self._deliveries.send(Ranges(memory, starts, ends), offsets=numbers, formats=formats)

    # --- what the peer says

    def _settled(self, _: Any, numbers: Positions, outcome: Outcome) -> None:
        for first, last in ranges(numbers):
            if outcome.name == "accepted":
                self._accept(first, last + 1)
            else:
                self._refused[first] = last + 1, _refusal(outcome)

    def _accept(self, first: int, stop: int) -> None:
        if first > self.done:
            self._accepted.update(range(first, stop))  # out of order: ``done`` counts in the order of sending
            return
        if self._accepted:
            self._accepted.difference_update(range(self.done, stop))
        self.done = stop
        while self.done in self._accepted:
            self._accepted.remove(self.done)
            self.done += 1


def _refusal(outcome: Outcome) -> Refusal:
    error = outcome.fields[0] if outcome.name == "rejected" and outcome.fields else None
    if error is None:
        return Refusal(outcome.name or "settled without an outcome", "", "")
    fields = error.value if isinstance(error, Described) else None
    if not isinstance(fields, list) or not fields:
        raise RemoteProtocolError("the error of a rejected delivery is no AMQP error")
    description = fields[1] if len(fields) > 1 else None
    return Refusal(outcome.name, str(fields[0]), description if isinstance(description, str) else "")
