"""Ranges, read from brokers that do what real ones do seldom: scripted ones."""

from __future__ import annotations

import struct

import pytest

from spark_streams.client import Consumer, FilterValues, RangeRead
from spark_streams.client.rabbitmq import client as client_module
from spark_streams.errors import DeadlineExceeded, NotFound, PositionLost, Refused, RemoteProtocolError
from spark_streams.position import EARLIEST, After, At, Earliest
from tests.client.rabbitmq.brokers import amqp, read, text
from tests.client.rabbitmq.scripted import (
    Chunks,
    S,
    Scripted,
    Wire,
    answers,
    deliver,
    metadata,
    metadata_of,
    silence,
    stats,
)
from tests.real_rabbitmq import by_hand as key


def test_a_range_of_a_scripted_broker() -> None:
    chunks = Chunks(deliver(0, [b"a", b"b"]), deliver(2, [b"c"]), deliver(3, [b"d", b"e"]))
    with Scripted(chunks.script(4)) as broker, broker.client() as client:
        assert read(client, S, 4)["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"e"]
        assert read(client, S, 3, At(text(1)))["value"].to_pylist() == [b"b", b"c", b"d"]


def test_a_damaged_chunk_is_an_error_and_no_rows() -> None:
    for damaged in (deliver(0, [b"a"], crc_off_by=1), deliver(0, [b"a"], magic=0x51), deliver(0, [b"a"])[:-1]):
        with (
            Scripted(Chunks(damaged).script(0)) as broker,
            broker.client() as client,
            pytest.raises(RemoteProtocolError, match="chunk"),
        ):
            read(client, S, 0)


UNKNOWN = deliver(2, [b"?"] * 1_000, kind=3)
"""A chunk of a type that nobody knows yet: its 1,000 offsets may hold messages."""


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("behind", [(deliver(1_002, [b"c"]),), ()], ids=["between messages", "at the end"])
def test_a_chunk_of_an_unknown_type_is_not_passed_over(delivered: bool, behind: tuple[bytes, ...]) -> None:
    """Whether the broker sends it, or passes over it itself, as RabbitMQ does for readers of messages."""
    messages, every = Chunks(deliver(0, [b"a", b"b"]), *behind), Chunks(deliver(0, [b"a", b"b"]), UNKNOWN, *behind)

    def subscribe(wire: Wire, number: int, body: bytes) -> None:
        (every if delivered or body.endswith(key.text("all")) else messages).subscribe(wire, number, body)

    script = {**(every if delivered else messages).script(1_001 + len(behind)), key.SUBSCRIBE: subscribe}
    rows: list[bytes] = []
    with Scripted(script) as broker, broker.client() as client:
        reading = client.fetch(RangeRead("orders", S, EARLIEST, text(1_001 + len(behind)), ("value",)))
        with pytest.raises(RemoteProtocolError) as told:
            rows += (value for batch in reading for value in batch["value"].to_pylist())
    assert str(told.value).startswith(
        "stream 'orders', partition 's': the chunk at offset 2 has type 3: expected 0 (mes"
    )
    assert "'startingOffsets' at 1002" in str(told.value)


@pytest.mark.parametrize("kind", [1, 2])
def test_tracking_chunks_hold_no_rows(kind: int) -> None:
    chunks = Chunks(deliver(0, [b"a"]), deliver(1, [b"tracking"], kind=kind), deliver(2, [b"b"]))
    with Scripted(chunks.script(2)) as broker, broker.client() as client:
        assert read(client, S, 2)["value"].to_pylist() == [b"a", b"b"]


SUB_BATCH = struct.pack(">BHII", 0x80 | 5 << 4, 1, 9, 9) + bytes(9)
"""A sub-batch whose compression has number 5, which nobody knows yet."""


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        (deliver(2, [b"a"], magic=0x51), "a chunk that begins with 0x51: expected 0x50 (magic 5, version 0)"),
        (deliver(2, [b"a"], crc_off_by=1), "the chunk at offset 2: its data has CRC-32"),
        (
            deliver(2, [], entry=SUB_BATCH),
            "the chunk at offset 2: a sub-batch with compression 5: expected 1 to 4",
        ),
    ],
    ids=["version", "CRC", "compression"],
)
def test_a_chunk_that_cannot_be_read_says_where_it_is(chunk: bytes, why: str) -> None:
    chunks = Chunks(deliver(0, [b"a", b"b"]), chunk)
    with Scripted(chunks.script(2)) as broker, broker.client() as client, pytest.raises(RemoteProtocolError) as told:
        read(client, S, 2)
    assert str(told.value).startswith(f"stream '{S}': {why}")


def test_chunks_that_come_twice_are_rows_once() -> None:
    chunks = Chunks(deliver(0, [b"a", b"b"]), deliver(0, [b"a", b"b"]), deliver(1, [b"b", b"c"]))
    with Scripted(chunks.script(2)) as broker, broker.client() as client:
        assert read(client, S, 2)["value"].to_pylist() == [b"a", b"b", b"c"]


def test_a_gap_with_nothing_in_it_is_lost_only_if_its_chunk_is_gone() -> None:
    chunks = Chunks(deliver(0, [b"a"]), deliver(5, [b"f"]))
    with Scripted(chunks.script(5)) as broker, broker.client() as client:
        with pytest.raises(PositionLost, match=r"at offset '0+1', but the next offset there is '0+5'"):
            read(client, S, 5)
        assert read(client, S, 5, loss=False)["value"].to_pylist() == [b"a", b"f"]


@pytest.mark.parametrize("start", [At(text(1)), After(text(0))])
def test_an_inclusive_start_that_does_not_come_is_a_loss(start: At | After) -> None:
    chunks = Chunks(deliver(0, [b"a"]), deliver(5, [b"f"]))
    with Scripted(chunks.script(5)) as broker, broker.client() as client:
        with pytest.raises(PositionLost, match=r"at offset '0+1', but the next offset there is '0+5'"):
            read(client, S, 5, start)
        assert read(client, S, 5, start, loss=False)["value"].to_pylist() == [b"f"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("loss", [True, False])
def test_a_node_that_stays_behind_the_leader_has_lost_nothing(loss: bool) -> None:
    ahead = stats(first_chunk_id=0, last_chunk_id=1, committed_chunk_id=1, committed_offset=4)
    with Scripted({key.STREAM_STATS: answers(key.STREAM_STATS, (1, ahead))}) as leader:

        def where(wire: Wire, number: int, _: bytes) -> None:
            wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + metadata(S, port=leader.port))

        chunks = Chunks(deliver(0, [b"a"]))
        with (
            Scripted({**chunks.script(0), key.METADATA: where}) as broker,
            broker.client(2_000) as client,
            pytest.raises(DeadlineExceeded, match="has come to offset 0, expected 4 as its leader has"),
        ):
            read(client, S, 4, loss=loss)


def test_a_broker_that_drops_the_reader_now_and_then() -> None:
    chunks = Chunks(*(deliver(i, [b"%d" % i]) for i in range(30)))
    given = []

    def credit(wire: Wire, number: int, body: bytes) -> None:
        given.append(body)
        if len(given) % 7 == 0:
            wire.send(key.METADATA_UPDATE, struct.pack(">H", 6) + key.text(S))
        else:
            chunks.credit(wire, number, body)

    with Scripted({**chunks.script(29), key.CREDIT: credit}) as broker, broker.client() as client:
        assert read(client, S, 29)["value"].to_pylist() == [b"%d" % i for i in range(30)]
        assert chunks.subscribed > 2


@pytest.mark.parametrize("again", [False, True])
def test_another_stream_of_the_same_name_is_not_read_on(again: bool) -> None:
    """The broker drops the reader after six chunks; from then on, chunks have the same offsets and other times."""
    chunks = Chunks(*(deliver(i, [b"old"]) for i in range(30)))
    given = []

    def credit(wire: Wire, number: int, body: bytes) -> None:
        given.append(body)
        if len(given) == 2:
            wire.send(key.METADATA_UPDATE, struct.pack(">H", 6) + key.text(S))
            if again:
                chunks.chunks = tuple(deliver(i, [b"new"], time_ms=2_000) for i in range(30))
        else:
            chunks.credit(wire, number, body)

    with Scripted({**chunks.script(29), key.CREDIT: credit}) as broker, broker.client() as client:
        if not again:
            assert read(client, S, 29)["value"].to_pylist() == [b"old"] * 30
            return
        with pytest.raises(PositionLost, match="created again"):
            read(client, S, 29)
        given.clear()
        chunks.chunks = tuple(deliver(i, [b"old"]) for i in range(30))
        values = read(client, S, 29, loss=False)["value"].to_pylist()
        assert len(values) == 30
        assert set(values) == {b"old", b"new"}


def test_a_deleted_stream_is_no_end() -> None:
    chunks = Chunks(*(deliver(i, [b"%d" % i]) for i in range(30)))

    def credit(wire: Wire, *_: object) -> None:
        wire.send(key.METADATA_UPDATE, struct.pack(">H", 6) + key.text(S))
        broker.handlers[key.SUBSCRIBE] = answers(key.SUBSCRIBE, (2, b""))

    with Scripted({**chunks.script(29), key.CREDIT: credit}) as broker, broker.client() as client:
        values: list[bytes] = []
        with pytest.raises(NotFound, match="stream-does-not-exist"):
            for batch in client.fetch(RangeRead(S, S, EARLIEST, text(29), ("value",))):
                values += batch["value"].to_pylist()
        assert values == [b"%d" % i for i in range(len(values))]
        assert 0 < len(values) < 30


@pytest.mark.parametrize("start", [EARLIEST, At(text(4)), After(text(3)), At(text(6))], ids=str)
def test_a_broker_that_skips_what_it_has(start: Earliest | At | After) -> None:
    """The reader, alone in asking for more than one chunk, is not given the chunk at 4; whoever asks for 4 gets it."""
    held = Chunks(*(deliver(i, [b"%d" % i]) for i in range(4)), deliver(4, [b"x"] * 5), deliver(9, [b"9"]))
    without = Chunks(*held.chunks[:4], held.chunks[5])

    def subscribe(wire: Wire, number: int, body: bytes) -> None:
        at = 1 + 2 + len(S)
        credit = struct.unpack_from(">H", body, at + (10 if body[at + 1] == 4 else 2))[0]
        (held if credit == 1 else without).subscribe(wire, number, body)

    script = {**held.script(9), key.SUBSCRIBE: subscribe, key.CREDIT: without.credit}
    skipped = pytest.raises(RemoteProtocolError, match=r"skipped the chunk at offset [46]")
    with Scripted(script) as broker, broker.client() as client, skipped:
        read(client, S, 9, start)


def test_a_broker_that_falls_silent_in_mid_range() -> None:
    chunks = Chunks(deliver(0, [b"a"]))
    script = {**chunks.script(9), key.METADATA: silence, key.STREAM_STATS: silence}
    with Scripted(script) as broker, broker.client(300) as client, pytest.raises(DeadlineExceeded):
        read(client, S, 9)


@pytest.mark.usefixtures("hasty")
def test_a_stream_that_stays_unavailable() -> None:
    script = {key.SUBSCRIBE: answers(key.SUBSCRIBE, (0x06, b"")), key.METADATA: metadata_of}
    with Scripted(script) as broker, broker.client() as client, pytest.raises(Refused, match="not-available"):
        read(client, S, 9)


def test_an_inactive_consumer_says_who_is_in_the_way() -> None:
    """The broker never makes it the active one of its group."""
    script = {key.SUBSCRIBE: answers(key.SUBSCRIBE, (1, b"")), key.METADATA: metadata_of}
    with Scripted(script) as broker:
        consumer = Consumer("group", single_active=True)
        client = client_module.RabbitClient(broker.endpoint, timeout_ms=300, consumer=consumer)
        with client, pytest.raises(DeadlineExceeded, match="another consumer of 'group'"):
            read(client, S, 9)
        assert (key.UNSUBSCRIBE, b"\0") in broker.seen


def test_an_active_consumer_answers_with_where_its_range_starts() -> None:
    chunks = Chunks(deliver(3, [b"a", b"b"]))
    answered: list[bytes] = []

    def subscribe(wire: Wire, number: int, body: bytes) -> None:
        wire.answer(key.SUBSCRIBE, number)
        wire.send(key.CONSUMER_UPDATE, struct.pack(">IBB", 9, 0, 1))

    def activated(wire: Wire, number: int, body: bytes) -> None:
        answered.append(struct.pack(">I", number) + body)
        wire.send(key.DELIVER, chunks.chunks[0])

    script = {**chunks.script(4), key.SUBSCRIBE: subscribe, key.CONSUMER_UPDATE | key.RESPONSE: activated}
    with Scripted(script) as broker:
        consumer = Consumer("group", single_active=True)
        client = client_module.RabbitClient(broker.endpoint, timeout_ms=120_000, consumer=consumer)
        with client:
            assert read(client, S, 4, At(text(4)))["value"].to_pylist() == [b"b"]
    assert answered == [struct.pack(">IHHQ", 9, 1, 4, 4)]


def test_filters_are_asked_of_the_broker_and_kept_by_the_client() -> None:
    seen: list[bytes] = []
    chunks = Chunks(deliver(0, [amqp(b"1", "red"), amqp(b"2", "green"), amqp(b"3")]))

    def subscribe(wire: Wire, number: int, body: bytes) -> None:
        seen.append(body)
        chunks.subscribe(wire, number, body)

    script = {**chunks.script(2), key.SUBSCRIBE: subscribe}
    with Scripted(script) as broker:
        filters = FilterValues(("red", "blue"), True, "application_properties.color")
        client = client_module.RabbitClient(broker.endpoint, timeout_ms=120_000, filters=filters)
        with client:
            assert read(client, S, 2)["value"].to_pylist() == [b"1", b"3"]
    asked = {"filter.0": "red", "filter.1": "blue", "match-unfiltered": "true", "x-opt-selections": "true"}
    assert seen[0].endswith(key.pairs(asked))


def test_filters_by_key_and_by_property() -> None:
    grouped = b"\0Ss\xc0\x0e\x0b@@@@@@@@@@\xa1\x01g" + amqp(b"1")  # group-id, the eleventh property
    subject = b"\0Ss\xc0\x07\x04@@@\xa1\x01g" + amqp(b"2")
    user = b"\0Ss\xc0\x06\x02@\xa0\x02\xff\xfe" + amqp(b"3")  # user-id, bytes that are no text
    chunk = deliver(0, [grouped, subject, user, b"raw"])
    for taken_from, expected in (("key", [b"1"]), ("properties.subject", [b"2"]), ("properties.user_id", [])):
        with Scripted(Chunks(chunk).script(3)) as broker:
            filters = FilterValues(("g",), False, taken_from)
            client = client_module.RabbitClient(broker.endpoint, timeout_ms=120_000, filters=filters)
            with client:
                assert read(client, S, 3)["value"].to_pylist() == expected, taken_from
