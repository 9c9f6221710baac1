"""Detecting that events are gone, apart from what is done about it.

Offsets are compared only. ``missing`` says whether events between a position and what is retained were removed,
``beyond`` whether the log ends before the position, which a log that only grows never does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_streams.client.model import Bounds, StreamDescription
from spark_streams.errors import NotFound, PositionLost
from spark_streams.position import EARLIEST, After, At, Earliest, Position
from spark_streams.redaction import told

__all__ = ["DataLoss", "LossPolicy", "beginning", "beyond", "ending", "missing"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataLoss:
    """Events that were to be read and are gone.

    Args:
        partition: its identifier, or None when the whole stream is meant.
        asked: where reading was to go on.
        available: what is there instead.
    """

    partition: str | None
    asked: str
    available: str

    def __post_init__(self) -> None:
        """Look through the offsets, which are a peer's words, as they go into log lines and into Spark's progress."""
        object.__setattr__(self, "asked", told(self.asked))
        object.__setattr__(self, "available", told(self.available))


class LossPolicy:
    """What to do about lost events: option ``failOnDataLoss``.

    Args:
        stream: the log's name.
        fail: True raises ``PositionLost``; False logs a warning, once for each loss, and returns.
    """

    def __init__(self, stream: str, fail: bool) -> None:
        self._stream = stream
        self._fail = fail
        self._told: set[tuple[str | None, str]] = set()
        self.losses: list[DataLoss] = []
        """Those that were warned of, in this order; who tells them on takes them out."""

    def report(self, partition: str | None, asked: str, available: str) -> None:
        """Report that reading was to go on ``asked`` and that ``available``.

        Raises:
            PositionLost: if losses are to fail the query.
        """
        fault = PositionLost(self._stream, partition, asked, available)
        if self._fail:
            raise fault
        if (partition, asked) not in self._told:
            self._told.add((partition, asked))
            loss = DataLoss(partition, asked, available)
            self.losses.append(loss)
            where = f"stream '{self._stream}'" + ("" if partition is None else f" partition '{partition}'")
            _log.warning(
                "%s: reading was to go on %s, but %s; going on with what is left",
                where,
                loss.asked,
                loss.available,
                extra={"context": {"stream": self._stream, "partition": partition}},
            )

    def require_available(self, description: StreamDescription) -> None:
        """Check that all partitions are there that a query is to start with.

        Raises:
            NotFound: one is not, and losses are to fail the query.
        """
        for partition, said in description.unavailable.items():
            if self._fail:
                advice = "set option 'failOnDataLoss' to 'false' to start without it"
                raise NotFound(said, advice, f"stream '{self._stream}' has a partition '{partition}' that is not there")
            self._told.add((partition, str(EARLIEST)))
            self.losses.append(DataLoss(partition, str(EARLIEST), f"the partition is not there: {said}"))
            _log.warning(
                "stream '%s' has a partition '%s' that is not there (%s); starting without it",
                self._stream,
                partition,
                said,
            )


def beginning(bounds: Bounds) -> Earliest | At | After:
    """Return the position of all that a partition retains; precise enough to notice later what was removed since.

    Returns:
        ``At`` the earliest event; of an empty partition ``After`` the newest one that was removed, or ``EARLIEST``
        when none is known to have been there.
    """
    if bounds.earliest is not None:
        return At(bounds.earliest)
    return After(bounds.truncated) if bounds.truncated is not None else EARLIEST


def ending(bounds: Bounds) -> Earliest | After:
    """Return the position after all that a partition has: ``After`` an event, or ``EARLIEST`` when none is known."""
    newest = bounds.latest if bounds.latest is not None else bounds.truncated
    return EARLIEST if newest is None else After(newest)


def missing(position: Position, bounds: Bounds) -> str | None:
    """Say what is there instead, if events after ``position`` were removed; None if nothing is known to be missing.

    A peer that does not tell what it removed is judged by its earliest event: one past the position may mean a loss,
    and is taken for one.
    """
    if bounds.tells_truncated:
        removed = bounds.truncated
        if removed is None:
            return None
        if position == EARLIEST or (isinstance(position, After) and removed > position.offset):
            return f"the log has removed its events up to '{removed}'"
        if isinstance(position, At) and removed >= position.offset:
            return f"the log has removed its events up to '{removed}'"
        return None
    if isinstance(position, At) and bounds.earliest is None:
        return "the partition is empty"
    if isinstance(position, (At, After)) and bounds.earliest is not None and bounds.earliest > position.offset:
        return f"the earliest event there is has offset '{bounds.earliest}'"
    return None


def beyond(position: Position, bounds: Bounds) -> str | None:
    """Say where the log ends, if that is before ``position``; None if it is not, or not known."""
    if not isinstance(position, (At, After)):
        return None
    newest = bounds.latest if bounds.latest is not None else bounds.truncated
    if newest is None:
        return "the partition has never had an event" if bounds.tells_truncated else None
    if newest >= position.offset:
        return None
    return (
        f"the newest event has offset '{newest}': the log was created again, restored from an older copy, or has lost "
        "its newest events"
    )
