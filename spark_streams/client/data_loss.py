"""Detects lost events, and raises or warns; drivers, readers and feeds use it.

Detection and policy are separate. ``instead_of`` compares a position with what a partition retains; ``LossPolicy``
raises or warns. ADR 34 has the decisions, ``tests/client/test_data_loss.py`` their table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_streams.client.log_client import Bounds, StreamDescription
from spark_streams.client.retry import Attempts
from spark_streams.errors import NotFound, PositionLost, SparkStreamsError
from spark_streams.position import EARLIEST, After, At, Earliest, Position
from spark_streams.redaction import safe_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataLoss:
    """A loss of events that a query had not read yet.

    Args:
        partition: its identifier, or None for the whole stream.
        asked: the position where reading was to continue.
        available: what the partition has instead.
    """

    partition: str | None
    asked: str
    available: str

    def __post_init__(self) -> None:
        """Redact the offsets: they come from a peer, and log lines and Spark's progress show them."""
        object.__setattr__(self, "asked", safe_text(self.asked))
        object.__setattr__(self, "available", safe_text(self.available))


class LossPolicy:
    """Fails or warns when events are lost: option ``failOnDataLoss``.

    Args:
        stream: the log's name.
        fail: True raises; False logs a warning, once for each loss, and returns.
        label: who reads what, for the warning; None for the stream's name alone.
    """

    def __init__(self, stream: str, fail: bool, label: str | None = None) -> None:
        self._stream = stream
        self._fail = fail
        self._label = label or f"stream '{stream}'"
        self._reported: set[tuple[str | None, str]] = set()
        self.losses: list[DataLoss] = []
        """The losses that were logged, in this order; the caller that reports them removes them."""

    def report(self, partition: str | None, asked: str, available: str, fault: SparkStreamsError | None = None) -> None:
        """Raise, or warn and return.

        Args:
            partition: its identifier, or None for the whole stream.
            asked: the position where reading was to continue, as in ``after '…'``.
            available: what there is instead.
            fault: the error to raise; None for ``PositionLost``.

        Raises:
            SparkStreamsError: ``fault``, or ``PositionLost``, when losses fail the query.
        """
        if self._fail:
            raise PositionLost(self._stream, partition, asked, available) if fault is None else fault
        if (partition, asked) in self._reported:
            return
        self._reported.add((partition, asked))
        loss = DataLoss(partition, asked, available)
        self.losses.append(loss)
        _log.warning(
            "%s%s: reading was to go on %s, but %s. Events may have been lost; failOnDataLoss is false: going "
            "on with what is left",
            self._label,
            "" if partition is None else f" partition '{partition}'",
            loss.asked,
            loss.available,
            extra={"context": {"stream": self._stream, "partition": partition}},
        )

    def require_available(self, description: StreamDescription) -> None:
        """Check that all partitions with which a query starts exist.

        Raises:
            NotFound: a partition does not exist, and losses fail the query.
        """
        for partition, why in description.unavailable.items():
            advice = "set option 'failOnDataLoss' to 'false' to start without it"
            context = f"stream '{self._stream}' has a partition '{partition}' that is not there"
            self.report(partition, place(None), f"the partition is not there: {why}", NotFound(why, advice, context))

    def tries_again(self, partition: str, attempts: Attempts, fault: SparkStreamsError) -> bool:
        """Pause after a failure to read a partition, and return whether to try again.

        The stream existed when the range was planned. If it does not exist now, the caller waits for it, as somebody
        may be creating it again.

        Returns:
            False when the stream did not come back, and losses do not fail the query.

        Raises:
            SparkStreamsError: ``fault``, when trying again cannot help, or did not.
        """
        if isinstance(fault, NotFound):
            fault.retriable = True
        try:
            attempts.after(fault)
        except NotFound:
            self.report(partition, "where it was", str(fault), fault)
            return False
        return True


def place(position: Position | None) -> str:
    """Return, as text, a position where reading was to continue; ``position`` is None for a partition without one."""
    return "from its beginning" if position in (None, EARLIEST) else str(position)


def beginning(bounds: Bounds) -> Earliest | At | After:
    """Return the position of the first retained event; it is precise enough to detect later removals.

    Returns:
        ``At`` the earliest event; for an empty partition ``After`` the newest removed one, or ``EARLIEST`` when no
        event is known to have existed.
    """
    return ending(bounds) if bounds.earliest is None else At(bounds.earliest)


def ending(bounds: Bounds) -> Earliest | After:
    """Return the position after the partition's newest event: ``After`` it, or ``EARLIEST`` when none is known."""
    newest = _newest(bounds)
    return EARLIEST if newest is None else After(newest)


def instead_of(position: Position, bounds: Bounds) -> str | None:
    """Return what a partition has instead of the events from a position on; None when none of them is known lost.

    Args:
        position: the stored position where reading was to continue; ``EARLIEST`` is the position of a partition that
            had no event yet. A time, an expression and ``LATEST`` ask about the log's present state: nothing is lost
            there.
        bounds: what the partition retains now, as a peer answers that does not lag behind others (ADR 27).
    """
    if is_past_end(position, bounds):
        return f"{_held(bounds)}: the log was created again, restored from an older copy, or has lost its newest events"
    return _held(bounds) if _is_removed(position, bounds) else None


def is_past_end(position: Position, bounds: Bounds) -> bool:
    """Return whether the log ends before a position; a log that only grows never does."""
    if not isinstance(position, (At, After)):
        return False
    newest = _newest(bounds)
    return bounds.tells_truncated if newest is None else newest < position.offset


def _is_removed(position: Position, bounds: Bounds) -> bool:
    """Return whether events from a position on were removed, or may have been.

    A peer may not report what it removed. Then an earliest event past the position counts as a loss (A-23), as nobody
    knows what was between two opaque offsets.
    """
    removed, earliest = bounds.truncated, bounds.earliest
    if isinstance(position, Earliest):
        return bounds.tells_truncated and removed is not None
    if not isinstance(position, (At, After)):
        return False
    if bounds.tells_truncated:
        included = isinstance(position, At)
        return removed is not None and (removed > position.offset or (included and removed == position.offset))
    # After a removed event there may have been none; At names an event that has to exist.
    return isinstance(position, At) if earliest is None else earliest > position.offset


def _newest(bounds: Bounds) -> str | None:
    """Return the offset of the newest event that is known to have existed, retained or removed."""
    return bounds.latest if bounds.latest is not None else bounds.truncated


def _held(bounds: Bounds) -> str:
    if bounds.earliest is None and bounds.truncated is None and bounds.tells_truncated:
        return "the partition has never had an event"
    if bounds.earliest is None:
        held = "the partition holds no events"
    else:
        held = f"the partition holds events from '{bounds.earliest}' to '{bounds.latest}'"
    return held + (f", '{bounds.truncated}' and older were removed" if bounds.truncated is not None else "")
