"""Deduplicates: keeps the last sequence number of every publisher of a partition, for one door.

A publisher chooses its reference, a text, and numbers its messages. The log stores the numbers as a note of the
record batches that they belong to, so records and numbers are stored together or not at all, whatever ends the process.
With a snapshot in the log's state store, a start need not read the notes of the whole log. A snapshot is written only
after the log itself is on the disk, so that it never knows more than the log does.

Each kind of publisher has its own kind of note and its own namespace: a snapshot claims that it covers all such notes
below an offset, and only the code that appends all of them can claim that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from spark_streams.errors import CorruptLog, LogError
from spark_streams.log.reference_log import ReferenceLog
from spark_streams.log.storage.files import logger
from spark_streams.log.storage.partition import Partition
from spark_streams.log.stream import Stream

SNAPSHOT_BATCHES: Final = 5_000
"""A start reads the notes of at most about this many batches, some 10 µs each."""
_UNKNOWN: Final = ""


@dataclass(frozen=True)
class SequenceKind:
    """The publishers of one door.

    Args:
        note: the note's name; its value is a JSON object, reference to the last sequence number in the batch.
        namespace: the namespace of the snapshots in the log's state store.
    """

    note: bytes
    namespace: str

    def note_of(self, sequences: Mapping[str, int]) -> tuple[bytes, bytes]:
        """Return the note for an append."""
        return self.note, json.dumps(sequences, separators=(",", ":")).encode()


@dataclass(eq=False)
class PublisherSequences:
    """The publishers of one partition, by reference, and their last sequence numbers.

    Args:
        log: its state store has the snapshot.
        stream: the stream.
        partition: the partition.
        max_references: how many references to remember. When there are more, the user with the most loses the one that
            wrote longest ago, so a user with many loses only its own.
        kind: the door's publishers.

    Raises:
        CorruptLog: the log or its snapshot fails a check.
    """

    log: ReferenceLog
    stream: Stream
    partition: Partition
    max_references: int
    kind: SequenceKind

    def __post_init__(self) -> None:
        self._key = f"{self.stream.incarnation}/{self.partition.id}"
        # Reference to its last sequence number, in the order of the last appends, in which references are forgotten.
        self._last: dict[str, int] = {}
        # Reference to the user who wrote first under it. After a kill -9, references newer than the last snapshot have
        # no user, and count as one user's until the next append under them.
        self._users: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._under_way: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._batches = 0
        self._forgotten = False
        self._load()
        self._segments = self._found_segments()

    def _load(self) -> None:
        start = self._restore(self._key)
        if start is None:
            start = 0
            # Begin with the numbers of the redistributed partitions whose history this one has a share of.
            for ancestor in reversed(self.partition.cursor_from):
                self._restore(f"{self.stream.incarnation}/{ancestor}")
            self._put(self.stream.inherited(self.partition.id, self.kind.note))
        if start > self.partition.next_offset:
            raise CorruptLog(
                self._key,
                start,
                f"the publishers' snapshot is ahead of the log, which ends at {self.partition.next_offset}",
            )
        if start < self.partition.next_offset:
            for batch in self.partition.batches(start):
                for name, value in batch.notes:
                    if name == self.kind.note and batch.first_offset >= start:
                        self._put(json.loads(value or b"{}"))
                self._batches += 1

    def _restore(self, key: str) -> int | None:
        """Take the numbers of a snapshot; return the first offset that it does not cover; None without a snapshot."""
        stored = self.log.state.get(self.kind.namespace, key)
        if stored is None:
            return None
        snapshot = json.loads(stored)
        self._put(dict(snapshot["sequences"]), snapshot["users"])
        return int(snapshot["next_offset"])

    def _found_segments(self) -> tuple[int, int]:
        return self.partition.first_offset, self.partition.segment_count

    def last(self, reference: str) -> int | None:
        """Return the last sequence number of a reference, None without one."""
        return self._last.get(reference)

    def expected(self, reference: str) -> int | None:
        """Return the last sequence number of a reference, appends under way included."""
        return self._under_way.get(reference, self._last.get(reference))

    def failures(self, reference: str) -> int:
        """Return how many appends of a reference have failed: a request that relied on one of them must not go on."""
        return self._failures.get(reference, 0)

    def begin(self, sequences: Mapping[str, int]) -> None:
        """Note the sequence numbers of an append that begins; ``advance`` or ``fail`` ends it."""
        self._under_way.update(sequences)

    def advance(self, sequences: Mapping[str, int], user: str) -> None:
        """Note the sequence numbers that an append of a user has stored."""
        for reference, sequence in sequences.items():
            if self._under_way.get(reference) == sequence:
                del self._under_way[reference]
        self._put(sequences, dict.fromkeys(sequences, user))
        self._batches += 1
        if not self._under_way:
            self.snapshot_if_due()

    def snapshot_if_due(self) -> None:
        """Write a snapshot when one is due; no append may be under way.

        During an append the log may know more than this object, and a start from the snapshot would never look for
        that. Every new segment makes a snapshot due, as retention removes old segments with the notes in them.
        """
        segments = self._found_segments()
        if self._batches >= SNAPSHOT_BATCHES or self._segments != segments:
            self._segments = segments
            self.snapshot()

    def fail(self, sequences: Mapping[str, int]) -> None:
        """Note that an append has failed: the log has none of its records."""
        for reference in sequences:
            self._under_way.pop(reference, None)
            self._failures[reference] = self._failures.get(reference, 0) + 1

    def _put(self, sequences: Mapping[str, int], users: Mapping[str, str] = MappingProxyType({})) -> None:
        for reference, sequence in sequences.items():
            # A publisher's numbers only rise; the notes of a redistributed history may have older ones after newer.
            if reference in self._last:
                self._counts[self._users.get(reference, _UNKNOWN)] -= 1
            if reference in users:
                self._users.setdefault(reference, users[reference])
            self._counts[self._users.get(reference, _UNKNOWN)] += 1
            self._last[reference] = max(sequence, self._last.pop(reference, sequence))
        while len(self._last) > self.max_references:
            ((greedy, _),) = self._counts.most_common(1)
            oldest = next(each for each in self._last if self._users.get(each, _UNKNOWN) == greedy)
            del self._last[oldest]
            self._users.pop(oldest, None)
            self._counts[greedy] -= 1

    def close(self) -> None:
        """Write a snapshot, unless an append is under way, whose outcome is not known."""
        if not self._under_way:
            self.snapshot()

    def snapshot(self) -> None:
        """Write all sequence numbers to the state store; a start then reads the notes from this offset on."""
        if not self._batches or self._forgotten:
            return
        next_offset = self.partition.next_offset
        content = {"next_offset": next_offset, "sequences": list(self._last.items()), "users": self._users}
        try:
            self.partition.sync()
            self.log.state.put(self.kind.namespace, self._key, json.dumps(content).encode())
        except (OSError, LogError) as fault:
            # A start then reads more notes; no record is lost.
            logger.warning("%s: no snapshot of the publishers: %s", self._key, fault)
            return
        self._batches = 0

    def forget(self) -> None:
        """Remove the snapshot, and write no further one: the stream was deleted."""
        self._forgotten = True
        self.log.state.drop(self.kind.namespace, self._key)


class Sequences:
    """The publishers of all partitions; those of a partition are read at their first use.

    Args:
        log: the log.
        max_references: how many references of each partition to remember.
        kind: the door's publishers.
    """

    def __init__(self, log: ReferenceLog, max_references: int, kind: SequenceKind) -> None:
        self._log = log
        self._kind = kind
        self._max = max_references
        self._partitions: dict[tuple[str, str], PublisherSequences] = {}

    def of(self, stream: Stream, partition: Partition) -> PublisherSequences:
        """Return the publishers of a partition.

        Raises:
            CorruptLog: the log or its snapshot fails a check.
        """
        key = (stream.incarnation, partition.id)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PublisherSequences(self._log, stream, partition, self._max, self._kind)
        return found

    def forget(self, incarnation: str) -> None:
        """Forget the publishers of a deleted stream."""
        for key in [k for k in self._partitions if k[0] == incarnation]:
            self._partitions.pop(key).forget()

    def close(self) -> None:
        """Write a snapshot of each partition's publishers, which saves the next start from reading notes."""
        for each in self._partitions.values():
            each.close()
        self._partitions.clear()
