"""Counts of events between two offsets, and the offset that is n events further: by arithmetic, or by walking.

``Arithmetic`` is for offsets that are numbers, written as decimal digits of a fixed width: it sends no request. It
counts each offset as an event. Some offsets have none (a broker's own records), so a count may be too high by those,
and is never too low. ``Walking`` is for opaque offsets: it asks the peer for counts, or for one offset after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from spark_streams.client.log_client import Bounds, LogClient, OffsetWalk, OpaqueLogClient
from spark_streams.offsets import first_wanted
from spark_streams.position import After, At, Position

WALK_BLOCK: Final = 4096
"""Offsets that a walk takes from a client at once, and so holds in memory."""
MAX_SAMPLES: Final = 4096
"""Most offsets that ``sample`` remembers of a range whose number of events the peer does not tell."""


class CountedWalk:
    """A walk over one partition that stays open between triggers, and keeps offsets past a bound for the next call.

    Args:
        link: a walk of the client that begins there.
        position: the position at which the walk begins.
    """

    def __init__(self, link: OffsetWalk, position: Position) -> None:
        self._link = link
        self._ahead: deque[str] = deque()
        self.position = position
        """The position from which the walk continues."""

    def advance(self, events: int, bound: str) -> tuple[int, str | None]:
        """Advance by ``events``, at most to offset ``bound`` (inclusive).

        Returns:
            The number of events walked and the offset of the last one, None without any. Fewer than ``events`` means
            that the walk reached the bound, or the current end of the partition.
        """
        walked, last = 0, None
        while walked < events:
            if not self._ahead:
                self._ahead.extend(self._link.take(min(WALK_BLOCK, events - walked)))
                if not self._ahead:
                    break
            if self._ahead[0] > bound:
                break
            last = self._ahead.popleft()
            walked += 1
        if last is not None:
            self.position = After(last)
        return walked, last

    def close(self) -> None:
        """Release the link."""
        self._link.close()


def split_points(walk: Ahead, bound: str, sizes: Sequence[int]) -> list[str]:
    """Return the offset of the last event of each part except the last part.

    Args:
        walk: a walk at the start of the range.
        bound: offset of the range's last event.
        sizes: number of events of each part.
    """
    points = []
    for size in sizes[:-1]:
        walked, last = walk.advance(size, bound)
        if last is None or last == bound:
            break
        points.append(last)
        if walked < size:
            break
    return points


def sample(walk: Ahead, bound: str) -> tuple[int, list[str]]:
    """Walk a whole range of unknown size and remember offsets at equal distances.

    Returns:
        The number of events, and at most ``MAX_SAMPLES`` of their offsets, in order and at equal distances.
    """
    count, step, samples = 0, 1, list[str]()
    while True:
        walked, last = walk.advance(step, bound)
        count += walked
        if walked < step or last is None:
            return count, samples
        samples.append(last)
        if len(samples) >= MAX_SAMPLES:
            samples, step = samples[1::2], step * 2


def events_between(start: Position, end: str, earliest: str | None) -> int:
    """Return the number of offsets that a range still has.

    Args:
        start: the start of the range: ``EARLIEST``, ``At`` (inclusive) or ``After`` (exclusive).
        end: its last offset, inclusive.
        earliest: the oldest retained offset, None when there is none; lower offsets do not count.
    """
    first = _first(start, earliest)
    return 0 if first is None else max(0, int(end) - first + 1)


class NumericWalk:
    """A walk over offsets that are numbers; it has the interface of ``CountedWalk`` and needs no link.

    Args:
        position: the position at which the walk begins.
        earliest: returns the oldest offset that is retained now, None when there is none; a walk from a lower position
            begins there.
    """

    def __init__(self, position: Position, earliest: Callable[[], str | None]) -> None:
        self._earliest = earliest
        self.position = position
        """The position from which the walk continues."""

    def advance(self, events: int, bound: str) -> tuple[int, str | None]:
        """Advance by ``events`` offsets, at most to offset ``bound`` (inclusive).

        Returns:
            The number of offsets walked and the last of them, None without any.
        """
        first = _first(self.position, self._earliest())
        if first is None:
            return 0, None
        last = min(first + events - 1, int(bound))
        if last < first:
            return 0, None
        offset = str(last).zfill(len(bound))
        self.position = After(offset)
        return last - first + 1, offset

    def close(self) -> None:
        """Do nothing: there is no link."""


Ahead = CountedWalk | NumericWalk
"""A walk over offsets of either kind, as limits and splits need it."""


class Arithmetic:
    """Counts offsets that are numbers.

    Args:
        partitions: returns the bounds of each partition.
    """

    def __init__(self, partitions: Callable[[], Mapping[str, Bounds]]) -> None:
        self._partitions = partitions

    def count(self, spans: Mapping[str, tuple[Position, str]]) -> dict[str, int | None]:
        """Return the number of events of each span.

        Args:
            spans: partition to the start of its span and the offset of the span's last event.

        Returns:
            A number for each partition, exact unless retention removes events meanwhile; None where the peer does not
            tell.
        """
        return {p: events_between(start, end, self._earliest(p)) for p, (start, end) in spans.items()}

    def remaining(self, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return the number of events from each position on, None where the peer does not tell."""
        there = self._partitions()
        return {p: there[p].count_from(start) if p in there else 0 for p, start in positions.items()}

    def walk(self, partition: str, start: Position) -> NumericWalk:
        """Return a new walk over the offsets of a partition; the caller closes it."""
        return NumericWalk(start, lambda: self._earliest(partition))

    def is_next(self, position: Position, bounds: Bounds) -> bool:
        """Return whether a position is certainly ``At`` the offset that a partition's next event will get."""
        newest = bounds.latest if bounds.latest is not None else bounds.truncated
        return isinstance(position, At) and int(position.offset) == (0 if newest is None else int(newest) + 1)

    def _earliest(self, partition: str) -> str | None:
        bounds = self._partitions().get(partition)
        return None if bounds is None else bounds.earliest


class Walking:
    """Counts by asking the peer, and walks over opaque offsets.

    Args:
        stream: the log's name.
        ask: asks a client of the log, an ``OpaqueLogClient``.
    """

    def __init__(self, stream: str, ask: Callable[[Callable[[LogClient], Any]], Any]) -> None:
        self._stream = stream
        self._ask = ask

    def count(self, spans: Mapping[str, tuple[Position, str]]) -> dict[str, int | None]:
        """See ``Arithmetic``."""
        if not spans:
            return {}
        after_start = self.remaining({p: start for p, (start, _) in spans.items()})
        after_end = self.remaining({p: After(end) for p, (_, end) in spans.items()})
        return {
            p: None if first is None or (last := after_end[p]) is None else max(0, first - last)
            for p, first in after_start.items()
        }

    def remaining(self, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """See ``Arithmetic``."""
        counts = self._ask(lambda client: client.remaining(self._stream, positions))
        return {partition: counts.get(partition) for partition in positions}

    def walk(self, partition: str, start: Position) -> CountedWalk:
        """See ``Arithmetic``."""
        link = self._ask(lambda client: cast(OpaqueLogClient, client).offsets(self._stream, partition, start, None))
        return CountedWalk(link, start)

    def is_next(self, position: Position, bounds: Bounds) -> bool:
        """See ``Arithmetic``; False, as the next of opaque offsets is unknown."""
        return False


Counting = Arithmetic | Walking
"""Counts the events of a log; both have the same methods, which ``Arithmetic`` describes."""


def _first(start: Position, earliest: str | None) -> int | None:
    return None if earliest is None else max(first_wanted(start) or 0, int(earliest))
