"""Whether events of a range are gone, and what is done about it.

Detection and policy are apart: ``gone_before`` and ``gone_until`` compare offsets, ``LossPolicy`` raises or warns.
"""

from __future__ import annotations

import logging

from spark_streams.client.model import Bounds, RangeRead
from spark_streams.client.retry import Attempts
from spark_streams.errors import NotFound, PositionLost, SparkStreamsError
from spark_streams.position import After, At, Earliest

__all__ = ["LossPolicy", "gone_before", "gone_until"]

_log = logging.getLogger(__name__)


def gone_before(start: Earliest | At | After, bounds: Bounds) -> str | None:
    """Return what is there instead, when retention has removed events from ``start`` on; None when it has not.

    Where the peer does not tell the newest removed offset, a start below the earliest retained event counts as lost
    (A-23): offsets are opaque, so that nothing was between them cannot be known.
    """
    if isinstance(start, Earliest):
        return None
    if bounds.tells_truncated or bounds.truncated is not None:
        removed = bounds.truncated
        lost = removed is not None and (removed > start.offset or (isinstance(start, At) and removed == start.offset))
        return _words(bounds) if lost else None
    return _words(bounds) if bounds.earliest is not None and start.offset < bounds.earliest else None


def gone_until(end: str, bounds: Bounds) -> str | None:
    """Return what is there instead, when the event at ``end`` is no longer, or not yet, in the log; else None."""
    if bounds.truncated is not None and bounds.truncated >= end:
        return _words(bounds)
    if bounds.latest is None or bounds.latest < end or (bounds.earliest is not None and bounds.earliest > end):
        return _words(bounds)
    return None


def _words(bounds: Bounds) -> str:
    if bounds.earliest is None:
        held = "the partition holds no events"
    else:
        held = f"the partition holds events from '{bounds.earliest}' to '{bounds.latest}'"
    return held + (f", '{bounds.truncated}' and older were removed" if bounds.truncated is not None else "")


class LossPolicy:
    """What the user said about lost events (option ``failOnDataLoss``).

    Args:
        read: the range.
    """

    def __init__(self, read: RangeRead) -> None:
        self._read = read

    def lost(self, asked: str, available: str) -> None:
        """Raise, or log a warning and return.

        Args:
            asked: where reading was to go on, as in ``after '…'``.
            available: what there is instead.

        Raises:
            PositionLost: when losing events is an error.
        """
        fault = PositionLost(self._read.stream, self._read.partition, asked, available)
        if self._read.fail_on_data_loss:
            raise fault
        self._warn(fault)

    def tries_again(self, attempts: Attempts, fault: SparkStreamsError) -> bool:
        """Pause after a failure, and return whether to try again.

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
            if self._read.fail_on_data_loss:
                raise
            self._warn(fault)
            return False
        return True

    def _warn(self, fault: SparkStreamsError) -> None:
        context = {"stream": self._read.stream, "partition": self._read.partition}
        _log.warning("%s (failOnDataLoss is false: going on with what is left)", fault, extra={"context": context})
