"""Super streams of many partitions: they are asked about together, and an error names the stream that has it."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_streams.client import RabbitClient
from spark_streams.client.rabbitmq.connection import REQUESTS_AHEAD, Connection
from spark_streams.client.rabbitmq.probes import PROBES_AT_ONCE
from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
from spark_streams.errors import NotFound, Refused
from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from tests.client.rabbitmq.brokers import OLD, amqp, text
from tests.client.rabbitmq.scripted import Scripted, Wire, stats
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import array

GUARD_MS = 300_000
"""Nothing here may depend on how fast the machine is."""


class Withheld:
    """A broker that answers nothing before it has many requests, and then the last one first.

    Args:
        streams: the partitions of every super stream.
        codes: stream to the code of its answer, where that is not OK.
    """

    def __init__(self, streams: list[str], codes: dict[str, int] | None = None) -> None:
        self._streams = streams
        self._codes = codes or {}
        self._came = 0
        self._unanswered: list[tuple[int, str]] = []
        self.handlers = {key.PARTITIONS: self._partitions, key.STREAM_STATS: self._stats}

    def _partitions(self, wire: Wire, number: int, _: bytes) -> None:
        wire.answer(key.PARTITIONS, number, 1, array([key.text(stream) for stream in self._streams]))

    def _stats(self, wire: Wire, number: int, body: bytes) -> None:
        self._came += 1
        self._unanswered.append((number, body[2:].decode()))
        if len(self._unanswered) <= REQUESTS_AHEAD // 2 and self._came % len(self._streams):
            return
        for each, stream in reversed(self._unanswered):
            last = self._streams.index(stream)
            said = stats(first_chunk_id=0, last_chunk_id=0, committed_chunk_id=0, committed_offset=last)
            wire.answer(key.STREAM_STATS, each, self._codes.get(stream, 1), said)
        self._unanswered.clear()


def named(count: int) -> list[str]:
    return [f"s-{n:04}" for n in range(count)]


def test_many_requests_are_under_way_at_a_time_and_each_gets_its_own_answer() -> None:
    names = named(1_000)
    with Scripted(Withheld(names).handlers) as broker, client_of(broker) as client:
        found = client.describe("s").partitions
        assert list(found) == names
        assert [bounds.latest for bounds in found.values()] == [text(n) for n in range(1_000)]
        assert Counter(kind for kind, _ in broker.seen)[key.STREAM_STATS] == 1_000


@pytest.mark.usefixtures("hasty")
def test_the_error_of_one_of_many_names_it() -> None:
    names = named(300)
    refusing = Scripted(Withheld(names, {names[123]: 16}).handlers)
    said = f"stream '{names[123]}': stats.*access-refused"
    with refusing as broker, client_of(broker) as client, pytest.raises(Refused, match=said):
        client.describe("s")
    with Scripted(Withheld(names, {names[7]: 2}).handlers) as broker, client_of(broker) as client:
        described = client.describe("s")
        assert list(described.unavailable) == [names[7]] and len(described.partitions) == 299
    lone = Scripted(Withheld(names[:1], {names[0]: 2}).handlers)
    with lone as broker, client_of(broker) as client, pytest.raises(NotFound, match=names[0]):
        client.describe("s")


def client_of(broker: Scripted) -> RabbitClient:
    return RabbitClient(broker.endpoint, super_stream=True, timeout_ms=GUARD_MS)


def test_no_more_requests_are_under_way_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker of this test answers one request whenever the client waits, and never more."""
    from spark_streams.wire.rabbitmq.stream_commands import StreamStats, StreamStatsAnswer

    unanswered: list[int] = []
    most = 0

    def send(connection: Connection, frames: bytes) -> None:
        nonlocal most
        at = 0
        while at < len(frames):
            size, _, _, number = struct.unpack_from(">IHHI", frames, at)
            unanswered.append(number)
            at += 4 + size
        most = max(most, len(unanswered))

    def turn(connection: Connection, timeout_s: float = 0.0) -> None:
        number = unanswered.pop(0)
        connection._answers[number] = StreamStatsAnswer(number, values={"n": number})

    with Scripted() as broker, RabbitClient(broker.endpoint, timeout_ms=GUARD_MS) as client:
        connection = client._cluster.any()
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "send", send)
            patched.setattr(Connection, "turn", turn)
            asked = [(StreamStats(name), name) for name in named(3 * REQUESTS_AHEAD)]
            answers = connection.ask_all(iter(asked), StreamStatsAnswer)
    first = answers[0].values["n"]
    assert [answer.values["n"] for answer in answers] == list(range(first, first + len(asked)))
    assert most == REQUESTS_AHEAD


# --- brokers that tell less


PARTITIONS = 3 * PROBES_AT_ONCE + 5


@pytest.fixture(params=["new", "until 4.2", "3.10"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A door with a stream of ``PARTITIONS`` partitions; partition n has n events."""
    told: dict[str, Any] = {"new": {}, "until 4.2": {"committed_offset": False}, "3.10": OLD}[request.param]
    config = LogConfig(fsync="never")
    with ReferenceLog(tmp_path / "log", config) as log:
        for n, partition in enumerate(log.create_stream("s", PARTITIONS).partitions.values()):
            if n:
                partition.append([amqp(b"x")] * n)
        with ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0, **told)) as server:
            yield server.rabbit_url


def test_every_broker_tells_the_same_of_many_streams_in_few_rounds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, open_at_once, whole = 0, 0, Connection.ask_all

    def counted(connection: Connection, *given: Any) -> Any:
        nonlocal rounds, open_at_once
        rounds, open_at_once = rounds + 1, max(open_at_once, len(connection.subscription_ids))
        return whole(connection, *given)

    endpoint = parse_url(url, schemes=RABBITMQ_SCHEMES)
    with RabbitClient(endpoint, super_stream=True, timeout_ms=GUARD_MS) as client:
        names = client.partitions("s")
        monkeypatch.setattr(Connection, "ask_all", counted)
        for certain in ((), names):
            found = client.describe("s", certain=certain).partitions
            assert [found[name].latest for name in names] == [None, *(text(n) for n in range(PARTITIONS - 1))]
            assert [found[name].earliest for name in names] == [None, *([text(0)] * (PARTITIONS - 1))]
        offsets = {name: text(0) for name in names}
        identities = client.log_identity("s", offsets)
        asked_together = rounds
        one_by_one = {name: client.log_identity("s", {name: text(0)})[name] for name in names[:3]}
        assert [identities[name] for name in names[:3]] == list(one_by_one.values())
        assert identities[names[0]] is None and all(identities[name] for name in names[1:])
    # Asked one after the other, each of the three questions would take a round for each partition at least.
    assert asked_together < 2 * PARTITIONS
    assert open_at_once <= PROBES_AT_ONCE
