"""A partition that several use at once: appends, reads, retention and closing; who listens to what is appended."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.errors import LogError
from spark_streams.log import LogConfig, Partition, ReferenceLog, StreamConfig
from spark_streams.log.storage import segment as segment_module
from spark_streams.log.storage.readable_partition import PartitionClosed
from tests.log.reading import all_values


def test_a_closed_partition_says_so_and_touches_no_other_file(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"x"])
        log.delete_stream("s")
        other = log.create_stream("s").partitions["0"]
        uses: list[Callable[[], object]] = [
            lambda: partition.append([b"y"]),
            lambda: partition.read(0),
            lambda: partition.offset_for_time(0),
        ]
        for use in uses:
            with pytest.raises(PartitionClosed, match="stream 's' is closed"):
                use()
        partition.sync()
        assert partition.enforce_retention() == 0
        partition.close()
        assert other.next_offset == 0
    for change in (lambda: log.create_stream("t"), lambda: log.delete_stream("s"), lambda: log.add_partitions("s", 1)):
        with pytest.raises(LogError, match="closed"):
            change()


def test_close_and_delete_while_appends_and_reads_run(tmp_path: Path) -> None:
    log = ReferenceLog(tmp_path, LogConfig(fsync="never", stream=StreamConfig(segment_max_bytes=2_000)))
    kept = log.create_stream("s").partitions["0"]
    doomed = log.create_stream("doomed").partitions["0"]
    acknowledged: list[int] = []
    odd: list[BaseException] = []

    def append(partition: Partition, note: Callable[[int], None]) -> None:
        try:
            while True:
                note(partition.append([b"%s" % partition.stream.encode()]).last_offset)
        except PartitionClosed:
            return
        except BaseException as fault:
            odd.append(fault)

    def read(partition: Partition) -> None:
        try:
            while True:
                all_values(partition)
                partition.offset_for_time(0)
        except PartitionClosed:
            return
        except BaseException as fault:
            odd.append(fault)

    threads = [threading.Thread(target=append, args=(kept, acknowledged.append)) for _ in range(2)]
    threads += [
        threading.Thread(target=append, args=(doomed, lambda _: None)),
        threading.Thread(target=read, args=(kept,)),
    ]
    threads.append(threading.Thread(target=read, args=(doomed,)))
    for thread in threads:
        thread.start()
    while len(acknowledged) < 300:
        threading.Event().wait(0.01)
    log.delete_stream("doomed")
    while len(acknowledged) < 600:
        threading.Event().wait(0.01)
    log.close()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not odd
    assert sorted(acknowledged) == list(range(len(acknowledged)))
    with ReferenceLog(tmp_path) as log:
        assert all_values(log.stream("s").partitions["0"]) == [b"s"] * len(acknowledged)


@pytest.fixture
def threads_that_alternate() -> Iterator[None]:
    """Have the interpreter switch threads fifty times as often: more interleavings in less time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 50)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_that_alternate")
def test_readers_beside_appends_rolls_and_retention(tmp_path: Path) -> None:
    config = StreamConfig(
        timestamp_type="create", segment_max_bytes=3_000, retention_max_bytes=9_000, index_interval_bytes=100
    )
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        done = threading.Event()
        odd: list[BaseException] = []
        looked = [0]

        def follow() -> None:
            try:
                offset = 0
                while not done.is_set():
                    records = partition.read(offset, 500)
                    if records is None:
                        continue
                    assert int(records.offsets[0]) >= offset
                    for row in range(len(records)):
                        assert records.value(row) == b"%d" % records.offsets[row] == b"%d" % records.timestamps[row]
                    offset = int(records.offsets[-1]) + 1
            except BaseException as fault:
                odd.append(fault)

        def look_up() -> None:
            try:
                while not done.is_set():
                    first, following = partition.first_offset, partition.next_offset
                    if following:
                        found = partition.offset_for_time(following - 1)
                        assert found is not None and found[0] == found[1] >= following - 1
                        # Retention may have been faster.
                        assert found[0] == following - 1 or partition.first_offset >= following
                        looked[0] += 1
                        low = partition.offset_for_time(0)
                        assert low is not None
                        assert low[0] >= first
            except BaseException as fault:
                odd.append(fault)

        threads = [threading.Thread(target=target) for target in (follow, look_up)]
        for thread in threads:
            thread.start()
        n = 0
        while n < 2_000 and not odd:
            partition.append([b"%d" % i for i in range(n, n + 2)], timestamps=[n, n + 1])
            n += 2
            if n % 100 == 0:
                log.enforce_retention()
        guard = time.monotonic() + 120
        while not looked[0] and not odd and time.monotonic() < guard:
            time.sleep(0.01)
        done.set()
        for thread in threads:
            thread.join(120)
        assert not odd
        assert looked[0] > 0
        assert partition.first_offset > 0


def test_a_reader_at_each_step_of_an_append(tmp_path: Path) -> None:
    """It never sees records that lie beyond ``next_offset``, whose end it could not read on from."""
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"first"])
        looked = 0

        def look(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal looked
            looked += 1
            records = partition.read(0)
            assert records is not None
            assert partition.read(len(records)) is None
            assert len(records) == partition.next_offset
            return look

        take = segment_module.Segment.take.__code__
        sys.settrace(lambda frame, event, argument: look if frame.f_code is take else None)
        try:
            partition.append([b"second", b"third"])
        finally:
            sys.settrace(None)
        assert looked > 2


def test_a_listener_that_fails_fails_no_append(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        seen: list[int] = []

        def fail() -> None:
            raise RuntimeError("the loop is closed")

        def append_once_more() -> None:
            seen.append(partition.next_offset)
            if len(seen) == 1:
                partition.append([b"from a listener"])

        partition.add_listener(fail)
        partition.add_listener(append_once_more)
        assert partition.append([b"x"]).last_offset == 0
        assert seen == [1, 2]


def test_observers_are_told_what_was_appended_in_columns(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        seen: list[Any] = []

        def fail(*_: Any) -> None:
            raise RuntimeError("not the append's business")

        def observe(values: pa.LargeBinaryArray, batches: Any) -> None:
            seen.append((len(values), [(h.base_offset, h.next_offset) for h, _ in batches], partition.next_offset))
            assert all(h.size == len(encoded) for h, encoded in batches)

        partition.add_observer(fail)
        partition.add_observer(observe)
        partition.append([b"no columns"])
        partition.append(pa.array([b"x", b"y"], pa.large_binary()))
        partition.append(pa.array([b"x" * 700_000] * 3, pa.large_binary()))
        assert seen == [(2, [(1, 3)], 3), (3, [(3, 4), (4, 5), (5, 6)], 6)]
        partition.remove_observer(observe)
        partition.append(pa.array([b"x"], pa.large_binary()))
        assert len(seen) == 2
