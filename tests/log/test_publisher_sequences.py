"""The last numbers of publishers: which are forgotten when there are too many."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from spark_streams.log import ReferenceLog
from spark_streams.log.publisher_sequences import PublisherSequences, SequenceKind, Sequences
from spark_streams.wire.amqp.columns.encode import encode_columns

KIND = SequenceKind(b"note", "sequences")
EVENT = encode_columns({"value": pa.array([b"x"])})


def stored(log: ReferenceLog, line: PublisherSequences, sequences: Mapping[str, int], user: str) -> None:
    line.begin(sequences)
    log.stream("orders").partitions["0"].append(EVENT, notes=(KIND.note_of(sequences),))
    line.advance(sequences, user)


def known(line: PublisherSequences, *references: str) -> list[str]:
    return [reference for reference in references if line.last(reference) is not None]


def test_the_oldest_of_who_has_most_is_forgotten_also_after_a_restart(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        stream = log.create_stream("orders")
        sequences = Sequences(log, 4, KIND)
        line = sequences.of(stream, stream.partitions["0"])
        stored(log, line, {"ann-1": 1, "ann-2": 2}, "ann")
        for number in range(3):
            stored(log, line, {f"bob-{number}": number}, "bob")
        assert known(line, "ann-1", "ann-2", "bob-0", "bob-1", "bob-2") == ["ann-1", "ann-2", "bob-1", "bob-2"]
        stored(log, line, {"bob-3": 3}, "bob")
        sequences.close()
    with ReferenceLog(tmp_path / "log") as log:
        stream = log.stream("orders")
        line = Sequences(log, 4, KIND).of(stream, stream.partitions["0"])
        for number in range(4, 9):
            stored(log, line, {f"bob-{number}": number}, "bob")
        assert known(line, "ann-1", "ann-2", *(f"bob-{n}" for n in range(9))) == ["ann-1", "ann-2", "bob-7", "bob-8"]


def test_what_was_written_before_there_were_users_is_one_users_until_it_is_used_again(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("orders").partitions["0"]
        for reference in ("a", "b", "c"):
            partition.append(EVENT, notes=(KIND.note_of({reference: 1}),))
    with ReferenceLog(tmp_path / "log") as log:
        stream = log.stream("orders")
        line = Sequences(log, 3, KIND).of(stream, stream.partitions["0"])
        stored(log, line, {"a": 2}, "ann")
        stored(log, line, {"bob-1": 1}, "bob")
        assert known(line, "a", "b", "c", "bob-1") == ["a", "c", "bob-1"], "b was the oldest of nobody's"
