"""Finds out what a log has lost, and raises or warns: drivers, readers and feeds use it.

Detection and policy are apart. ``instead_of`` compares a position with what a partition retains; ``LossPolicy`` raises
or warns. ADR 34 has the decisions, ``tests/client/test_data_loss.py`` their table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_streams.client.log_client import Bounds, StreamDescription
from spark_streams.client.retry import Attempts
from spark_streams.errors import NotFound, PositionLost, SparkStreamsError
from spark_streams.position import EARLIEST, After, At, Earliest, Position
from spark_streams.redaction import told

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
        """Redact the offsets, which come from a peer, as they go into log lines and into Spark's progress."""
        object.__setattr__(self, "asked", told(self.asked))
        object.__setattr__(self, "available", told(self.available))


class LossPolicy:
    """What is done about lost events: option ``failOnDataLoss``.

    Args:
        stream: the log's name.
        fail: True raises; False logs a warning, once for each loss, and returns.
    """

    def __init__(self, stream: str, fail: bool) -> None:
        self._stream = stream
        self._fail = fail
        self._told: set[tuple[str | None, str]] = set()
        self.losses: list[DataLoss] = []
        """Those that were warned of, in this order; who tells them on takes them out."""

    def report(self, partition: str | None, asked: str, available: str, fault: SparkStreamsError | None = None) -> None:
        """Raise, or warn and return.

        Args:
            partition: its identifier, or None when the whole stream is meant.
            asked: where reading was to go on, as in ``after '…'``.
            available: what there is instead.
            fault: the error to raise; None for ``PositionLost``.

        Raises:
            SparkStreamsError: ``fault``, if losses are to fail the query.
        """
        if self._fail:
            raise PositionLost(self._stream, partition, asked, available) if fault is None else fault
        if (partition, asked) in self._told:
            return
        self._told.add((partition, asked))
        loss = DataLoss(partition, asked, available)
        self.losses.append(loss)
        _log.warning(
            "stream '%s'%s: reading was to go on %s, but %s. Events may have been lost; failOnDataLoss is false: going "
            "on with what is left",
            self._stream,
            "" if partition is None else f" partition '{partition}'",
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
            advice = "set option 'failOnDataLoss' to 'false' to start without it"
            context = f"stream '{self._stream}' has a partition '{partition}' that is not there"
            self.report(partition, place(None), f"the partition is not there: {said}", NotFound(said, advice, context))

    def tries_again(self, partition: str, attempts: Attempts, fault: SparkStreamsError) -> bool:
        """Pause after a failure to read a partition, and return whether to try again.

        The stream was there when the range was planned. Where it is not any more it is waited for, as it may be being
        created again; False when it did not come back, and losing events is no error.

        Raises:
            SparkStreamsError: ``fault``, when trying again cannot help, or did not.
        """
        if not isinstance(fault, NotFound):
            attempts.after(fault)
            return True
        fault.retriable = True
        try:
            attempts.after(fault)
        except NotFound:
            self.report(partition, "where it was", str(fault), fault)
            return False
        return True


def place(position: Position | None) -> str:
    """Return where reading was to go on, in words; None for a partition that has no position yet."""
    return "from its beginning" if position in (None, EARLIEST) else str(position)


def beginning(bounds: Bounds) -> Earliest | At | After:
    """Return the position of all that a partition retains; precise enough to notice later what was removed since.

    Returns:
        ``At`` the earliest event; of an empty partition ``After`` the newest one that was removed, or ``EARLIEST``
        when none is known to have been there.
    """
    return ending(bounds) if bounds.earliest is None else At(bounds.earliest)


def ending(bounds: Bounds) -> Earliest | After:
    """Return the position after all that a partition has: ``After`` an event, or ``EARLIEST`` when none is known."""
    newest = _newest(bounds)
    return EARLIEST if newest is None else After(newest)


def instead_of(position: Position, bounds: Bounds) -> str | None:
    """Return what is there instead of the events from a position on; None where none of them is known to be gone.

    Args:
        position: where reading was to go on, as it was written down earlier; ``EARLIEST`` is the position of a
            partition that had not had an event. A time, an expression and ``LATEST`` are questions to the log as it
            is: nothing is gone there.
        bounds: what the partition retains now, as told by a peer that is not behind (ADR 27).
    """
    if is_past_end(position, bounds):
        return f"{_held(bounds)}: the log was created again, restored from an older copy, or has lost its newest events"
    return _held(bounds) if _is_removed(position, bounds) else None


def is_past_end(position: Position, bounds: Bounds) -> bool:
    """Return whether the log ends before a position, which a log that only grows never does."""
    if not isinstance(position, (At, After)):
        return False
    newest = _newest(bounds)
    return bounds.tells_truncated if newest is None else newest < position.offset


def _is_removed(position: Position, bounds: Bounds) -> bool:
    """Return whether events from a position on were removed, or may have been.

    A peer that does not tell what it removed is judged by its earliest event: one past the position may mean a loss,
    and is taken for one (A-23), as what was between two opaque offsets cannot be known.
    """
    removed, earliest = bounds.truncated, bounds.earliest
    if isinstance(position, Earliest):
        return bounds.tells_truncated and removed is not None
    if not isinstance(position, (At, After)):
        return False
    if bounds.tells_truncated:
        included = isinstance(position, At)
        return removed is not None and (removed > position.offset or (included and removed == position.offset))
    # After an event that is gone nothing may have come; At names an event that has to be there.
    return isinstance(position, At) if earliest is None else earliest > position.offset


def _newest(bounds: Bounds) -> str | None:
    """Return the offset of the newest event that is known to have been there, retained or not."""
    return bounds.latest if bounds.latest is not None else bounds.truncated


def _held(bounds: Bounds) -> str:
    if bounds.earliest is None and bounds.truncated is None and bounds.tells_truncated:
        return "the partition has never had an event"
    if bounds.earliest is None:
        held = "the partition holds no events"
    else:
        held = f"the partition holds events from '{bounds.earliest}' to '{bounds.latest}'"
    return held + (f", '{bounds.truncated}' and older were removed" if bounds.truncated is not None else "")
