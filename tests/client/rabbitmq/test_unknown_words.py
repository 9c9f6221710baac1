"""What brokers of the future say besides: numbers and properties that nobody knows yet are no reason to stop."""

from __future__ import annotations

import struct

from spark_streams.client import Bounds
from tests.client.rabbitmq.brokers import text
from tests.client.rabbitmq.scripted import OK, S, Scripted, Wire, answers, stats
from tests.real_rabbitmq import by_hand as key


def test_stats_and_properties_that_nobody_knows() -> None:
    def opened(wire: Wire, number: int, _: bytes) -> None:
        wire.answer(key.OPEN, number, OK, key.pairs({"moon": "full", "advertised_host": "elsewhere"}))

    def introduced(wire: Wire, number: int, _: bytes) -> None:
        wire.answer(key.PEER_PROPERTIES, number, OK, key.pairs({"version": "9.1.0", "colour": "red", "empty": ""}))

    def versions(wire: Wire, number: int, _: bytes) -> None:
        listed = [(key.STREAM_STATS, 1, 3), (0x7001, 1, 9), (key.SUBSCRIBE, 1, 1)]
        told = key.array([struct.pack(">HHH", *each) for each in listed])
        wire.answer(key.EXCHANGE_COMMAND_VERSIONS, number, OK, told)

    known = stats(moons=-3, first_chunk_id=2, segments=1, committed_offset=7)
    script = {
        key.OPEN: opened,
        key.PEER_PROPERTIES: introduced,
        key.EXCHANGE_COMMAND_VERSIONS: versions,
        key.STREAM_STATS: answers(key.STREAM_STATS, (OK, known)),
    }
    with Scripted(script) as broker, broker.client() as client:
        assert client.describe(S).partitions == {S: Bounds(text(2), text(7), text(1), tells_truncated=True)}
