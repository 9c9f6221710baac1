"""What a request costs does not grow with the number of streams that the log has, or that were asked about."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.server.rabbitmq.connection import RabbitConnection
from spark_streams.server.rabbitmq.topology import Topology
from spark_streams.server.turns import Turn, Worker
from tests.real_rabbitmq.by_hand import STREAM_STATS, text
from tests.server.rabbitmq.conftest import Door

STREAMS = 50


def test_streams_are_looked_at_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    whole = Topology._find

    def counted(topology: Topology, name: str) -> Any:
        nonlocal looked
        looked += 1
        return whole(topology, name)

    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        topology = Topology(log, 1_000, Worker("test"))
        names = [log.create_stream(f"s-{n}").name for n in range(STREAMS)]
        keys = {name: served.key for name in names if (served := topology.find(name)) is not None}
        assert topology.changed() == {}
        monkeypatch.setattr(Topology, "_find", counted)
        for _ in range(100):
            assert topology.changed() == {}
        assert looked == 0
        log.delete_stream(names[3])
        log.create_stream(names[3])
        log.delete_stream(names[4])
        assert topology.changed() == {name: keys[name] for name in names[3:5]}
        assert topology.changed() == {}
        assert looked == STREAMS
        with pytest.MonkeyPatch.context() as failing:
            failing.setattr("os.rename", refuse)
            with pytest.raises(OSError, match="no"):
                log.delete_stream(names[5])
        assert topology.changed() == {names[5]: keys[names[5]]}, "it is gone, although it could not be cleared away"


def refuse(*_: object) -> None:
    raise OSError("no")


def test_answers_to_requests_that_came_together_go_out_together(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many writes as reads, however many requests one read brings."""
    stream, peer = door.stream(), door.peer()
    reads, writes, data_received = 0, 0, RabbitConnection.data_received

    class Counting:
        """A transport whose writes are counted."""

        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def write(self, sent: bytes) -> None:
            nonlocal writes
            writes += 1
            self._transport.write(sent)

    def counted(connection: RabbitConnection, received: bytes) -> None:
        nonlocal reads
        reads += 1
        if not isinstance(connection._transport, Counting):
            connection._transport = Counting(connection._transport)  # type: ignore[assignment]
        data_received(connection, received)

    monkeypatch.setattr(RabbitConnection, "data_received", counted)
    monkeypatch.setattr(Turn, "over", property(lambda turn: False))  # or a slow machine has others in between
    one = [struct.pack(">HHI", STREAM_STATS, 1, number) + text(stream) for number in range(1_000, 1_100)]
    peer.socket.sendall(b"".join(struct.pack(">I", len(frame)) + frame for frame in one))
    answers = [peer.read() for _ in one]
    assert [answer.correlation for answer in answers] == list(range(1_000, 1_100)), "in the order of the requests"
    assert 0 < writes <= reads < len(one)
