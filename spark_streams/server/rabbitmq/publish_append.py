"""Builds one append of published messages: the entries of several Publish frames, and the notes of each batch.

A batch has two kinds of notes: the last publishing ids of its publisher references, and its filter values
(``filter_values.py``). Ids are stored in the same batch as their messages, so the log never has one without the other.

Spec: docs/specifications.md, S-53, S-103 to S-105.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.log.format.record_batch import Header
from spark_streams.log.publisher_sequences import SequenceKind
from spark_streams.server.rabbitmq.filter_values import ValueColumn, value_notes
from spark_streams.server.rabbitmq.stored_form import Stored
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.wire.columnar.byte_view import Mask

PUBLISHERS_NOTE: Final = b"rabbitmq-publishers"
PUBLISHERS: Final = SequenceKind(PUBLISHERS_NOTE, "rabbitmq-sequences")

Ids = NDArray[np.uint64]


def trailer_bytes(note: bytes) -> int:
    """Return the size that a chunk's trailer would have at a broker, which stores the note's content there (S-53)."""
    return sum(10 + len(reference.encode()) for reference in json.loads(note))


@dataclass
class Publisher:
    """An open publisher of a connection.

    Args:
        id: its number on the connection.
        reference: its name in the stream, for deduplication; empty for none.
        served: the stream.
        failed: whether an append failed: later entries are refused until the publisher is declared again.
    """

    id: int
    reference: str
    served: Served
    failed: bool = False


@dataclass(frozen=True)
class PublishedRun:
    """What one Publish frame adds to an append.

    Args:
        publisher: the publisher of the entries.
        ids: uint64[n], the publishing ids of all entries, at least one.
        counts: int64[n], how many messages each entry has.
        kept: bool[n], which entries are stored, perhaps none; the others are duplicates.
        stored: the stored form of the kept entries.
        failures: how many appends of the reference had failed when the frame came.
    """

    publisher: Publisher
    ids: Ids
    counts: NDArray[np.int64]
    kept: Mask
    stored: Stored
    failures: int


@dataclass
class PublishAppend:
    """The entries that are appended to one stream together.

    Args:
        served: the stream.
        runs: one run for each Publish frame, in the order in which they came.
        records: how many messages the runs have.
        last: reference to its highest publishing id among the runs.
    """

    served: Served
    runs: list[PublishedRun] = field(default_factory=list)
    records: int = 0
    last: dict[str, int] = field(default_factory=dict)

    def add(self, run: PublishedRun) -> None:
        """Add a run."""
        self.runs.append(run)
        self.records += len(run.stored.values)
        if run.publisher.reference:
            highest = int(run.ids.max())
            self.last[run.publisher.reference] = max(highest, self.last.get(run.publisher.reference, highest))

    def entries(self) -> int:
        """Return the number of entries, duplicates included."""
        return sum(len(run.ids) for run in self.runs)

    def groups(self) -> NDArray[np.int64] | None:
        """Return the records of each stored entry; None when each has one.

        The log must never have half a sub-entry batch, because a retry would repeat that half.
        """
        counts = np.concatenate([run.counts[run.kept] for run in self.runs])
        return counts if len(counts) and counts.max() > 1 else None

    def last_ids(self) -> dict[str, int]:
        """Return the last id of each reference among the entries that are stored."""
        out: dict[str, int] = {}
        for run in self.runs:
            if run.publisher.reference and run.kept.any():
                out[run.publisher.reference] = int(run.ids[run.kept].max())
        return out

    def notes(self, start: int, stop: int) -> tuple[Header, ...]:
        """Return the notes of a batch: the last id of each reference whose records end in it, and its filter values.

        A large append is stored as several batches, and the first ones stay when the process is killed in the middle:
        none of them may have an id whose records are not stored.

        Args:
            start: the batch's first record, counted from the append's first one; inclusive.
            stop: exclusive.
        """
        sequences: dict[str, int] = {}
        values: list[tuple[ValueColumn | None, int, int]] = []
        row = 0
        for run in self.runs:
            ends = row + np.cumsum(run.counts[run.kept])
            first, row = row, int(ends[-1]) if len(ends) else row
            if row <= start or first >= stop:
                continue
            values.append((run.stored.filters, max(start - first, 0), min(stop, row) - first))
            whole = int(np.searchsorted(ends, stop, side="right"))
            if run.publisher.reference and whole and ends[whole - 1] > start:
                sequences[run.publisher.reference] = int(run.ids[run.kept][whole - 1])
        notes = (PUBLISHERS.note_of(sequences),) if sequences else ()
        return notes + value_notes(values, self.served.filter_bytes)
