"""Deduplication: the last sequence number of every publisher of a partition, for one door.

A publisher is known by its reference, a text of its own choice, and counts what it publishes. The numbers are stored as
a note of the record batches that they belong to, so records and numbers are there together or not at all, whatever ends
the process. A snapshot in the log's state store saves a start from reading the notes of the whole log. It is written
only after the log itself is on the disk, so that it never knows more than the log does.

Each kind of publisher has a kind of note and a namespace of its own: a snapshot says that there is nothing more to be
known below a place, which only whoever appends all of these notes can say.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from spark_streams.errors import CorruptLog, LogError
from spark_streams.log.reference_log import ReferenceLog
from spark_streams.log.storage.partition import Partition
from spark_streams.log.stream import Stream

__all__ = ["PublisherSequences", "SequenceKind", "Sequences"]

logger = logging.getLogger("spark_streams.log")

SNAPSHOT_BATCHES: Final = 5_000
"""A start reads the notes of at most about this many batches, some 10 µs each."""
_UNKNOWN: Final = ""


@dataclass(frozen=True)
class SequenceKind:
    """What tells the publishers of one door from those of another.

    Args:
        note: name of the note: its value is a JSON object, reference to the last sequence number in the batch.
        namespace: of the snapshots in the log's state store.
    """

    note: bytes
    namespace: str

    def note_of(self, sequences: Mapping[str, int]) -> tuple[bytes, bytes]:
        """Return the note for an append."""
        return self.note, json.dumps(sequences, separators=(",", ":")).encode()


class PublisherSequences:
    """The references of one partition.

    Args:
        log: its state store has the snapshot.
        stream: the stream.
        partition: the partition.
        max_references: how many are remembered. When there are more, the user who has most loses the one that wrote
            longest ago: who makes many loses its own, and nobody else's.
        kind: whose.
    """

    def __init__(
        self, log: ReferenceLog, stream: Stream, partition: Partition, max_references: int, kind: SequenceKind
    ) -> None:
        self._log = log
        self._kind = kind
        self._stream = stream
        self._partition = partition
        self._key = f"{stream.incarnation}/{partition.id}"
        self._max = max_references
        # Reference to its last id, the one that wrote last at the end: the order in which they are forgotten.
        self._last: dict[str, int] = {}
        # Who wrote first under a reference. After a kill -9 it is not known of those since the last snapshot, which
        # count as one user's until they are written under again.
        self._users: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._under_way: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._batches = 0
        self._forgotten = False
        self._load()
        self._segments = self._found_segments()

    def _load(self) -> None:
        start = 0
        stored = self._log.state.get(self._kind.namespace, self._key)
        if stored is not None:
            snapshot = json.loads(stored)
            if snapshot["next_offset"] > self._partition.next_offset:
                raise CorruptLog(
                    self._key,
                    snapshot["next_offset"],
                    f"the publishers' snapshot is ahead of the log, which ends at {self._partition.next_offset}",
                )
            start = snapshot["next_offset"]
            self._put(dict(snapshot["sequences"]), snapshot.get("users", {}))
        else:
            self._inherit()
        if start < self._partition.next_offset:
            for batch in self._partition.batches(start):
                for name, value in batch.notes:
                    if name == self._kind.note and batch.first_offset >= start:
                        self._put(json.loads(value or b"{}"))
                self._batches += 1

    def _inherit(self) -> None:
        """Begin with what is known of the partitions whose history this one has its share of."""
        for ancestor in reversed(self._partition.cursor_from):
            stored = self._log.state.get(self._kind.namespace, f"{self._stream.incarnation}/{ancestor}")
            if stored is not None:
                snapshot = json.loads(stored)
                self._put(dict(snapshot["sequences"]), snapshot.get("users", {}))
        self._put(self._stream.inherited(self._partition.id, self._kind.note))

    def _found_segments(self) -> tuple[int, int]:
        return self._partition.first_offset, self._partition.segment_count

    def last(self, reference: str) -> int | None:
        """Return the last sequence number of a reference, None when none is remembered."""
        return self._last.get(reference)

    def expected(self, reference: str) -> int | None:
        """Return the last sequence number of a reference, with what is being appended just now."""
        return self._under_way.get(reference, self._last.get(reference))

    def failures(self, reference: str) -> int:
        """Return how many appends of a reference have failed: what counted on one of them must not go on."""
        return self._failures.get(reference, 0)

    def begin(self, sequences: Mapping[str, int]) -> None:
        """Note what an append is about to store; ``advance`` or ``fail`` ends it."""
        self._under_way.update(sequences)

    def advance(self, sequences: Mapping[str, int], user: str) -> None:
        """Note what an append of a user has stored."""
        for reference, sequence in sequences.items():
            if self._under_way.get(reference) == sequence:
                del self._under_way[reference]
        self._put(sequences, dict.fromkeys(sequences, user))
        self._batches += 1
        if not self._under_way:
            self.all_told()

    def all_told(self) -> None:
        """Write a snapshot when one is due; the log has nothing now that ``advance`` was not told of.

        With an append under way the log may know more, which a start from the snapshot would never look for. Every new
        segment makes one due: retention removes old segments with the notes in them.
        """
        segments = self._found_segments()
        if self._batches >= SNAPSHOT_BATCHES or self._segments != segments:
            self._segments = segments
            self.snapshot()

    def fail(self, sequences: Mapping[str, int]) -> None:
        """Note that an append has failed: what it had under way is not in the log."""
        for reference in sequences:
            self._under_way.pop(reference, None)
            self._failures[reference] = self._failures.get(reference, 0) + 1

    def _put(self, sequences: Mapping[str, int], users: Mapping[str, str] = MappingProxyType({})) -> None:
        for reference, sequence in sequences.items():
            # Numbers of a publisher only rise; notes of a redistributed history tell older ones after the last.
            if reference in self._last:
                self._counts[self._users.get(reference, _UNKNOWN)] -= 1
            if reference in users:
                self._users.setdefault(reference, users[reference])
            self._counts[self._users.get(reference, _UNKNOWN)] += 1
            self._last[reference] = max(sequence, self._last.pop(reference, sequence))
        while len(self._last) > self._max:
            ((greedy, _),) = self._counts.most_common(1)
            oldest = next(each for each in self._last if self._users.get(each, _UNKNOWN) == greedy)
            del self._last[oldest]
            self._users.pop(oldest, None)
            self._counts[greedy] -= 1

    def close(self) -> None:
        """Write a snapshot, but for a line of which an append is under way: nobody tells any more how that ended."""
        if not self._under_way:
            self.snapshot()

    def snapshot(self) -> None:
        """Write down all sequence numbers, so that a start need not look for them before this point."""
        if not self._batches or self._forgotten:
            return
        next_offset = self._partition.next_offset
        content = {"next_offset": next_offset, "sequences": list(self._last.items()), "users": self._users}
        try:
            self._partition.sync()
            self._log.state.put(self._kind.namespace, self._key, json.dumps(content).encode())
        except (OSError, LogError) as fault:
            # A start then looks further back; the records themselves are not concerned.
            logger.warning("%s: no snapshot of the publishers: %s", self._key, fault)
            return
        self._batches = 0

    def forget(self) -> None:
        """Remove the snapshot: the stream is gone, and an append that is under way makes no other."""
        self._forgotten = True
        self._log.state.drop(self._kind.namespace, self._key)


class Sequences:
    """All partitions' references; a partition's are read when it is first asked for.

    Args:
        log: the log.
        max_references: how many are remembered of each partition.
        kind: whose.
    """

    def __init__(self, log: ReferenceLog, max_references: int, kind: SequenceKind) -> None:
        self._log = log
        self._kind = kind
        self._max = max_references
        self._lines: dict[tuple[str, str], PublisherSequences] = {}

    def of(self, stream: Stream, partition: Partition) -> PublisherSequences:
        """Return a partition's references.

        Raises:
            CorruptLog: the log or its snapshot fails a check.
        """
        key = (stream.incarnation, partition.id)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = PublisherSequences(self._log, stream, partition, self._max, self._kind)
        return line

    def forget(self, incarnation: str) -> None:
        """Drop a deleted stream's references."""
        for key in [k for k in self._lines if k[0] == incarnation]:
            self._lines.pop(key).forget()

    def close(self) -> None:
        """Write down what the next start would otherwise have to look for."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
