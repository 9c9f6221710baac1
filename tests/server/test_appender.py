"""Appends off the loop: whatever becomes of one, its sender is told, and the partition takes the next."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.log import NO_TIMESTAMP, LogConfig, Partition, ReferenceLog, StreamConfig
from spark_streams.server import ServerThread
from spark_streams.server.appender import Appender, Batch, Outcome
from spark_streams.server.rabbitmq.config import RabbitConfig
from tests.log.reading import all_values
from tests.real_rabbitmq.by_hand import METADATA_UPDATE, Peer, plain
from tests.server.rabbitmq.test_publish import sequence

WAIT_S = 60


def batch(value: bytes, done: Callable[[list[Outcome]], None], due: Callable[[], bool] | None = None) -> Batch:
    values = pa.array([value], pa.large_binary())
    return Batch(values, pa.nulls(1, pa.binary()), np.array([NO_TIMESTAMP]), done, due=due)


def raising(*_: object, **__: object) -> Any:
    raise RuntimeError("this is no error that anybody expects")


class Run:
    """An appender, its partition, and what senders were told."""

    def __init__(self, folder: Path, config: StreamConfig | None = None) -> None:
        self.told: dict[bytes, str] = {}
        self._folder, self._config = folder, config

    def play(self, steps: Callable[[Run], None], expected: set[bytes]) -> list[bytes]:
        """Append in ``steps``, wait until all ``expected`` were told, and return what is stored."""

        async def run() -> list[bytes]:
            loop = asyncio.get_running_loop()
            with ReferenceLog(self._folder) as log:
                self.partition = log.create_stream("s", 1, self._config).partitions["0"]
                self.appender = Appender(loop, off_loop=True)
                steps(self)
                deadline = loop.time() + WAIT_S
                while set(self.told) != expected and loop.time() < deadline:
                    await asyncio.sleep(0.001)
                assert set(self.told) == expected
                self.appender.close()
                return all_values(self.partition)

        return asyncio.run(run())

    def append(
        self, value: bytes, due: Callable[[], bool] | None = None, then: Callable[[], None] | None = None
    ) -> None:
        def done(outcomes: list[Outcome]) -> None:
            self.told[value] = outcomes[0].description if outcomes[0] is not None else "stored"
            if then is not None:
                then()

        self.appender.append(self.partition, batch(value, done, due))


def test_the_partition_goes_on_when_all_that_was_queued_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def steps(run: Run) -> None:
        run.append(b"first")
        run.append(b"second", lambda: False)
        run.append(b"third", lambda: False, then=lambda: run.append(b"fourth"))

    assert run.play(steps, {b"first", b"second", b"third", b"fourth"}) == [b"first", b"fourth"]
    assert run.told[b"second"] == "an earlier append failed"


def test_equal_batches_are_queued_beside_each_other(tmp_path: Path) -> None:
    run = Run(tmp_path)
    told: list[str] = []

    def steps(run: Run) -> None:
        run.append(b"first")
        for name in ("a", "b"):
            run.appender.append(run.partition, batch(b"same", lambda _, name=name: told.append(name), lambda: True))  # type: ignore[misc]
        run.append(b"last")

    assert run.play(steps, {b"first", b"last"}) == [b"first", b"same", b"same", b"last"]
    assert told == ["a", "b"]


def test_a_group_is_refused_whole_and_no_other_with_it(tmp_path: Path) -> None:
    """Those of several batches are appended together; a group with and without times cannot be in one stored batch."""
    outcomes: dict[str, list[str | None]] = {}

    def append(run: Run, name: str, times: list[int], groups: list[int] | None) -> None:
        def done(told: list[Outcome]) -> None:
            outcomes[name] = [None if each is None else each.description.partition(":")[0] for each in told]
            run.told[name.encode()] = "told"

        values = pa.array([f"{name}{n}".encode() for n in range(len(times))], pa.large_binary())
        sizes = None if groups is None else np.array(groups, np.int64)
        made = Batch(values, pa.nulls(len(times), pa.binary()), np.array(times, np.int64), done, groups=sizes)
        run.appender.append(run.partition, made)

    def steps(run: Run) -> None:
        append(run, "a", [1, 2, 3, NO_TIMESTAMP, 4, 5], [1, 1, 2, 2])
        append(run, "b", [6, 7], None)
        append(run, "c", [NO_TIMESTAMP, NO_TIMESTAMP, 8, NO_TIMESTAMP], [2, 2])

    run = Run(tmp_path, StreamConfig(timestamp_type="create"))
    stored = run.play(steps, {b"a", b"b", b"c"})
    why = "records of one group with and without a timestamp"
    assert outcomes == {"a": [None, None, why, why, None, None], "b": [None, None], "c": [None, None, why, why]}
    assert stored == [b"a0", b"a1", b"a4", b"a5", b"b0", b"b1", b"c0", b"c1"]


@pytest.mark.parametrize("what", ["its sender", "its due", "its append"])
def test_what_goes_wrong_with_one_batch_stops_no_other(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    original = Partition.append

    def append(self: Partition, values: Any, *arguments: Any, **named: Any) -> Any:
        if what == "its append" and values[0].as_py() == b"second":
            raising()
        return original(self, values, *arguments, **named)

    monkeypatch.setattr(Partition, "append", append)

    def steps(run: Run) -> None:
        run.append(b"first")
        due = raising if what == "its due" else None
        then = raising if what == "its sender" else None
        # Behind what is appended alone: batches that wait are joined.
        run.append(b"second", due, lambda: (run.append(b"third"), then() if then else None)[0])

    stored = run.play(steps, {b"first", b"second", b"third"})
    assert stored == ([b"first", b"second", b"third"] if what == "its sender" else [b"first", b"third"])
    assert (run.told[b"second"] == "stored") == (what == "its sender")
    assert "this is no error that anybody expects" in caplog.text


def slow_to_tell() -> tuple[threading.Event, threading.Event, Callable[..., Any]]:
    """A ``Partition.append`` that does not return when it has stored: set then, what it waits for, and itself."""
    stored, go_on = threading.Event(), threading.Event()
    append = Partition.append

    def slow(partition: Partition, *arguments: Any, **named: Any) -> Any:
        appended = append(partition, *arguments, **named)
        stored.set()
        go_on.wait(WAIT_S)
        return appended

    return stored, go_on, slow


def test_an_append_that_ends_when_its_stream_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by fuzzing: the publishers' last ids were looked for in the stream that was deleted."""
    stored, go_on, slow = slow_to_tell()
    with ReferenceLog(tmp_path, LogConfig(fsync="always")) as log:
        server = ServerThread(log, rabbit=RabbitConfig(port=0))
        with server, caplog.at_level(logging.WARNING):
            peer = Peer(server.rabbit_url).open()
            assert peer.create("s") == 1
            assert peer.declare(1, "s", "ref") == 1
            with monkeypatch.context() as patched:
                patched.setattr(Partition, "append", slow)
                peer.publish(1, [plain(1, b"x")])
                assert stored.wait(WAIT_S)
                log.delete_stream("s")
                while peer.read().key != METADATA_UPDATE:  # the door has noticed, and has forgotten what it knew
                    pass
                go_on.set()
            assert peer.create("s") == 1
            assert peer.declare(1, "s", "ref") == 1
            peer.publish(1, [plain(2, b"y")])
            # The first may be confirmed too: it was stored when the stream was there.
            while peer.confirmed(1) != [2]:
                pass
            peer.close()
        assert [value[-1:] for value in all_values(log.stream("s").partitions["0"])] == [b"y"]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in errors if not record.name.startswith("py4j")]  # of other tests' Spark


def test_nothing_is_begun_when_the_appender_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored, go_on, slow = slow_to_tell()
    monkeypatch.setattr(Partition, "append", slow)
    run = Run(tmp_path)

    async def closed() -> list[bytes]:
        with ReferenceLog(tmp_path) as log:
            run.partition = log.create_stream("s").partitions["0"]
            run.appender = Appender(asyncio.get_running_loop(), off_loop=True)
            run.append(b"first")
            run.append(b"second")
            assert stored.wait(WAIT_S)
            go_on.set()
            run.appender.close()
            for _ in range(3):  # whatever is still to be called on the loop is called
                await asyncio.sleep(0)
            return all_values(run.partition)

    assert asyncio.run(closed()) == [b"first"]
    assert "asyncio" not in {record.name for record in caplog.records}


def test_what_is_stored_while_the_server_stops_counts_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot without its ids must not be taken for complete: a retry would be stored a second time."""
    held, stored, go_on = threading.Event(), threading.Event(), threading.Event()
    append, close = Partition.append, Appender.close

    def slow(self: Partition, *arguments: Any, **named: Any) -> Any:
        appended = append(self, *arguments, **named)
        if held.is_set():
            stored.set()
            go_on.wait(WAIT_S)
        return appended

    def closing(self: Appender) -> None:
        go_on.set()
        close(self)

    monkeypatch.setattr(Partition, "append", slow)
    monkeypatch.setattr(Appender, "close", closing)
    with ReferenceLog(tmp_path, LogConfig(fsync="always")) as log:
        with ServerThread(log, rabbit=RabbitConfig(port=0)) as server:
            peer = Peer(server.rabbit_url).open()
            assert peer.create("s") == 1 and peer.declare(1, "s", "ref") == 1
            peer.publish(1, [plain(1, b"x")])
            peer.confirmed(1)
            held.set()
            peer.publish(1, [plain(2, b"y"), plain(3, b"z")])
            assert stored.wait(WAIT_S)
        peer.close()
    with ReferenceLog(tmp_path) as log, ServerThread(log, rabbit=RabbitConfig(port=0)) as server:
        assert len(all_values(log.stream("s").partitions["0"])) == 3
        peer = Peer(server.rabbit_url).open()
        assert sequence(peer, "ref", "s") == (1, 3)
        peer.close()
