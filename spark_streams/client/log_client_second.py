"""What the readers need of a client: the seam that the protocols' clients and the tests' fake have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from spark_streams.client.log_client import Pushdown, RangeRead, StreamDescription
from spark_streams.endpoint import Node
from spark_streams.filters.tree import Expression
from spark_streams.position import Position

__all__ = ["LogClient", "OffsetWalk", "OpaqueLogClient"]


class OffsetWalk(Protocol):
    """A walk over the offsets of a partition; bodies are not decoded."""

    def take(self, n: int) -> list[str]:
        """Return the next ``n`` offsets, fewer when there are no more now."""

    def close(self) -> None:
        """Give the link back."""


class LogClient(Protocol):
    """One connection to a log, used by one thread."""

    @property
    def numeric_offsets(self) -> bool:
        """Whether offsets are numbers, written as decimal digits of a fixed width.

        Then ``remaining`` is never called: what it tells is computed. Else it is an ``OpaqueLogClient``.
        """

    @property
    def told(self) -> tuple[Node, ...]:
        """Nodes that the peer has named so far, where it may be found when no host of ``url`` answers; mostly none."""

    def __enter__(self) -> LogClient: ...

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def describe(self, stream: str, *, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions and their bounds.

        Args:
            stream: the stream's name.
            certain: partitions of which a node that is behind others must not tell.
        """

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return the number of events after each position, from it on for ``At``; None where the peer does not tell."""

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        """Return the offset of the first event, in log order, that is not earlier; None when there is none."""

    def first_matching(self, stream: str, partition: str, expression: Expression) -> str | None:
        """Return the offset of the first event, in log order, that an expression is true of; None when there is none.

        It is found with the peer's help as far as that goes; the answer is the same without any.
        """

    def pushdown(self, stream: str, expression: Expression) -> Pushdown:
        """Return what of a filter this peer would check, and what ``fetch`` would check itself; nothing is read."""

    def witnesses(self, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return what tells what is at an offset of a partition from whatever else may be there.

        Two answers for one partition and offset that differ mean that the log was deleted and created again in between,
        or restored from an older copy and written on; equal ones mean nearly always that it was not.

        Args:
            stream: the stream's name.
            offsets: partition to the offset, inclusive, of an event or of anything else that uses one up.

        Returns:
            A text for each partition; None or left out where there is nothing at the offset (any more). Empty where
            the peer has nothing of the kind.
        """

    def fetch(self, read: RangeRead, *, max_rows: int = ..., max_bytes: int = ...) -> Iterator[pa.RecordBatch]:
        """Return the rows of a range that match ``read.filter``, columns in the order of ``read.columns``.

        The end of the range is found, and lost events are noticed, as if there were no filter.
        """


class OpaqueLogClient(LogClient, Protocol):
    """One connection to a log whose offsets say nothing but their order."""

    def offsets(self, stream: str, partition: str, start: Position, end: str | None) -> OffsetWalk:
        """Walk from ``start`` to ``end`` (inclusive; None for without end)."""
