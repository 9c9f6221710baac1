"""Handles one connection's publishers: deduplicates entries by reference and publishing id, appends and confirms them.

The entries of one read of the socket, or as many as fit into a turn, are collected and appended together, one append
for each stream: one stored batch, which consumers get as one chunk (``publish_append.py``). A frame that is large, or
inflates to many bytes, is read in parts in the worker thread and appended in parts: one part of all connections at a
time, so that memory is bounded (``publish_parts.py``).

Delivery guarantee: a sub-entry batch is in the log whole or not at all.
A publishing id is confirmed once its message is in the log (``Partition.append``: it survives
kill -9; with fsync policy ``always`` a power cut too), or when the log already had an id of the same reference that
is not lower. References' ids are stored in the same batch as the messages. When an append fails, its publishers fail:
all their entries under way are refused too, so that no message is stored after a gap that a retry could no longer fill.

Deduplication: ``log/publisher_sequences.py`` keeps the last publishing ids of this door's publishers.

Spec: Streams Protocol Reference, DeclarePublisher to DeletePublisher, QueryPublisherSequence; docs/specifications.md,
S-101 to S-107.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Final

import numpy as np

from spark_streams.log import Partition
from spark_streams.log.format.batching import LARGE_ROWS
from spark_streams.log.publisher_sequences import PublisherSequences
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.appender import Batch, Outcome, RefusalReason
from spark_streams.server.rabbitmq.publish_append import Ids, PublishAppend, PublishedRun, Publisher
from spark_streams.server.rabbitmq.publish_parts import PublishPart, parts_of, some_of, stored_of
from spark_streams.server.rabbitmq.session import CommandRefused, Session
from spark_streams.server.rabbitmq.stored_form import Stored, joined
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.wire.amqp.decode import finished
from spark_streams.wire.columnar.byte_view import Mask, Positions
from spark_streams.wire.rabbitmq.frames import Frame, ResponseCode
from spark_streams.wire.rabbitmq.publish_decode import (
    MAX_REFERENCE_BYTES,
    DeclarePublisher,
    DeletePublisher,
    Published,
    QueryPublisherSequence,
    decode_publish,
    encode_confirm,
    encode_publish_error,
)

SMALL_BYTES: Final = 16 << 10
"""Frames up to so many bytes, inflated too, are handled on the loop, in some milliseconds at most."""
TOGETHER_BYTES: Final = 1 << 20
"""Bytes of frames to read in the worker thread and append at a time."""


class Publishers:
    """The publishers of one connection.

    Args:
        session: the connection.

    Attributes:
        open: the open ones, by their numbers on the connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._collected: dict[str, PublishAppend] = {}
        self.open: dict[int, Publisher] = {}
        self._closed = False

    # --- commands

    def declare(self, request: DeclarePublisher) -> None:
        """Open a publisher and answer.

        Raises:
            CommandRefused: the user may not, or its number or reference cannot be used, or the stream takes no entries.
        """
        self._session.require("write", request.stream)
        if len(request.reference.encode()) > MAX_REFERENCE_BYTES or request.publisher_id in self.open:
            raise CommandRefused(ResponseCode.PRECONDITION_FAILED)
        served = self._session.find("write", request.stream)
        taken = {(p.served.name, p.reference) for p in self.open.values() if p.reference}
        if served.partition.closed or (served.name, request.reference) in taken:
            raise CommandRefused(ResponseCode.PRECONDITION_FAILED)
        self.open[request.publisher_id] = Publisher(request.publisher_id, request.reference, served)
        self._session.node.chunks(served)  # from now on it encodes the chunks of large appends
        self._session.answer(request)

    def delete(self, request: DeletePublisher) -> None:
        """Close a publisher and answer.

        Raises:
            CommandRefused: there is none of this number.
        """
        if self.open.pop(request.publisher_id, None) is None:
            raise CommandRefused(ResponseCode.PUBLISHER_DOES_NOT_EXIST)
        self._session.answer(request)

    def query_sequence(self, request: QueryPublisherSequence) -> None:
        """Answer with the last publishing id of a reference; 0 when there is none.

        Raises:
            CommandRefused: the user may not read the stream, or it does not exist.
        """
        served = self._session.find("read", request.stream)
        try:
            sequence = self._sequences_of(served).last(request.reference) or 0
        except PartitionClosed as gone:  # another door has just deleted the stream
            raise CommandRefused(ResponseCode.STREAM_DOES_NOT_EXIST) from gone
        self._session.answer(request, sequence=sequence)

    def drop(self, streams: Collection[str]) -> set[str]:
        """Close the publishers of streams that are gone; return those that had any."""
        gone = [number for number, publisher in self.open.items() if publisher.served.name in streams]
        used = {self.open.pop(number).served.name for number in gone}
        for stream in used:
            self._collected.pop(stream, None)
        return used

    def close(self) -> None:
        """Close all publishers, because the connection has ended; whole frames that it sent are still stored."""
        self.received_all()
        self._closed = True
        self.open.clear()

    # --- messages

    def publish(
        self, frame: Frame, next_like: Callable[[Frame], Frame | None]
    ) -> Coroutine[object, object, None] | None:
        """Read a Publish frame; ``received_all`` stores it.

        Args:
            frame: the frame.
            next_like: returns the frame after one, if it has come already and is a Publish frame of the same version.

        Returns:
            For a large frame a coroutine that stores it, with the frames after it; else None.

        Raises:
            RemoteProtocolError: the frame cannot be read.
        """
        if frame.size <= SMALL_BYTES:
            published = decode_publish(
                frame.buffer, frame.start, frame.end, frame.version, max_inflated_bytes=SMALL_BYTES
            )
            if published.bad_from is None:
                publisher = self._publisher_of(published)
                if publisher is not None:
                    self._collect(publisher, published, finished(stored_of(published)))
                return None
        frames, size, behind = [frame], frame.size, frame
        while size < TOGETHER_BYTES and (more := next_like(behind)) is not None:
            frames.append(more)
            size, behind = size + more.size, more
        return self._publish_large(frames)

    async def _publish_large(self, frames: list[Frame]) -> None:
        node, over, inflates = self._session.node, False, False
        parts = parts_of(frames, node.config.max_sub_batch_bytes)
        while not over:
            async with node.publish_lock if inflates else nullcontext():
                some, over, fault, inflates = await node.worker.run(some_of(parts, inflates))
                partitions = self._take_parts(some)
                if any(part.inflated for part in some):
                    for partition in partitions:
                        appended = asyncio.Event()  # or refused: set when the append has ended
                        node.appender.after(partition, appended.set)
                        await appended.wait()
            if fault is not None:
                raise fault

    def _take_parts(self, parts: list[PublishPart]) -> set[Partition]:
        """Store parts together; return the partitions that they are stored in."""
        partitions = set()
        for published, stored, _ in parts:
            publisher = self._publisher_of(published)
            if publisher is not None:
                # Only now it is decided which ids are new: with an await in between, two tasks could accept one id.
                self._collect(publisher, published, stored)
                partitions.add(publisher.served.partition)
        self.received_all()
        return partitions

    def _publisher_of(self, published: Published) -> Publisher | None:
        """Return the publisher of the good entries, None when there is nothing to store; refuse the other entries."""
        number, ids = published.publisher_id, published.ids
        publisher = self.open.get(number)
        good, code, reason = 0, ResponseCode.PUBLISHER_DOES_NOT_EXIST, RefusalReason.INVALID
        if publisher is not None and publisher.failed:
            code, reason = _code_of_failure(publisher.served), RefusalReason.FAILED
        elif publisher is not None:
            good = len(ids) if published.bad_from is None else published.bad_from
            code = ResponseCode.PRECONDITION_FAILED
        self._count_refused(reason, published.counts[good:])
        self._refuse(number, ids[good:], code)
        return publisher if good else None

    def _collect(self, publisher: Publisher, published: Published, stored: Stored) -> None:
        """Collect the good entries; ``stored`` is their stored form."""
        entries = len(published.ids) if published.bad_from is None else published.bad_from
        ids, counts = published.ids[:entries], published.counts[:entries]
        collected = self._collected.get(publisher.served.name)
        if collected is not None and collected.records + len(published.starts) > LARGE_ROWS:
            self.received_all()  # together they would be appended in a thread, as if they were one large frame
        try:
            kept = self._new(publisher, ids)
            failures = self._sequences_of(publisher.served).failures(publisher.reference)
        except PartitionClosed:  # another door has just deleted the stream
            self._count_refused(RefusalReason.FAILED, counts)
            self._refuse(publisher.id, ids, ResponseCode.STREAM_NOT_AVAILABLE)
            return
        if not kept.all():
            stored = stored.only(np.repeat(kept, counts))
        run = PublishedRun(publisher, ids, counts, kept, stored, failures)
        self._collected.setdefault(publisher.served.name, PublishAppend(publisher.served)).add(run)

    def _new(self, publisher: Publisher, ids: Ids) -> Mask:
        """Return which entries the log does not have yet: those whose id is above all earlier ids (S-103)."""
        if not publisher.reference:
            return np.ones(len(ids), np.bool_)
        served = publisher.served
        last = self._sequences_of(served).expected(publisher.reference)
        collected = self._collected.get(served.name)
        before_it = collected.last.get(publisher.reference) if collected is not None else None
        if before_it is not None:
            last = before_it if last is None else max(last, before_it)
        before = np.empty(len(ids), np.uint64)
        before[0] = 0 if last is None else last
        before[1:] = ids[:-1]
        np.maximum.accumulate(before, out=before)
        new: Mask = ids > before
        if last is None:
            new[0] = True
        return new

    def received_all(self) -> None:
        """Append the entries of the frames that have just come, and confirm them."""
        collected, self._collected = self._collected, {}
        for each in collected.values():
            self._append(each)

    def _append(self, collected: PublishAppend) -> None:
        node, served = self._session.node, collected.served
        # The sequences are read now: when the append ends, the stream may be gone, and nothing left to read them from.
        sequences = self._sequences_of(served)
        whole = joined([run.stored for run in collected.runs])
        count, size = len(whole.values), whole.values.nbytes
        if not count:
            # Only duplicates: they are confirmed once the entries that they repeat are stored.
            node.appender.after(served.partition, partial(self._appended, collected, sequences, 0, []))
            return
        sequences.begin(collected.last_ids())
        batch = Batch(
            whole.values,
            whole.keys,
            whole.timestamps,
            partial(self._appended, collected, sequences, size),
            collected.notes,
            partial(self._due, collected, sequences),
            collected.groups(),
        )
        self._session.unconfirmed.add(collected.entries(), size)
        node.appender.append(served.partition, batch)

    def _sequences_of(self, served: Served) -> PublisherSequences:
        return self._session.node.sequences.of(served.stream, served.partition)

    def _due(self, collected: PublishAppend, sequences: PublisherSequences) -> bool:
        """Return whether no earlier append of its references failed meanwhile: a retry could never fill the gap."""
        sequences.snapshot_if_due()
        references = [(run.publisher.reference, run.failures) for run in collected.runs if run.publisher.reference]
        return all(sequences.failures(reference) == failures for reference, failures in references)

    def _appended(
        self, collected: PublishAppend, sequences: PublisherSequences, size: int, outcomes: list[Outcome]
    ) -> None:
        """Confirm the entries that are stored, and refuse the others.

        Args:
            collected: the append.
            sequences: the ids of its references.
            size: its bytes.
            outcomes: one for each message, None for a stored one; empty when there were only duplicates.
        """
        if outcomes:
            self._session.unconfirmed.add(-collected.entries(), -size)
        last_ids = collected.last_ids()
        failed = outcomes.count(None) < len(outcomes)  # as many as messages: no loop over them
        if failed:
            sequences.fail(last_ids)
        elif last_ids:
            sequences.advance(last_ids, self._session.user)
        confirms: dict[int, list[Ids]] = {}
        for run in collected.runs:
            reference = run.publisher.reference
            if failed or (reference and sequences.failures(reference) != run.failures):
                run.publisher.failed = True
                self._refuse(run.publisher.id, run.ids, _code_of_failure(collected.served))
            else:
                confirms.setdefault(run.publisher.id, []).append(run.ids)
        for publisher_id, ids in confirms.items():
            if not self._closed:
                self._session.send(encode_confirm(publisher_id, np.concatenate(ids) if len(ids) > 1 else ids[0]))

    def _count_refused(self, reason: RefusalReason, counts: Positions) -> None:
        if len(counts):  # nobody knows how many records a bad sub-batch has: at least one
            self._session.node.counters.refused_events[reason.label] += int(np.maximum(counts, 1).sum())

    def _refuse(self, publisher_id: int, ids: Ids, code: ResponseCode) -> None:
        if len(ids) and not self._closed:
            self._session.send(encode_publish_error(publisher_id, ids, np.full(len(ids), code, np.uint16)))


def _code_of_failure(served: Served) -> ResponseCode:
    """Return the code for the entries of an append that failed."""
    if served.partition.closed:
        return ResponseCode.PRECONDITION_FAILED
    # The deletion of the stream, in the worker thread or at another door, is about to be reported to the peer too.
    return ResponseCode.STREAM_NOT_AVAILABLE if served.partition.gone else ResponseCode.INTERNAL_ERROR
