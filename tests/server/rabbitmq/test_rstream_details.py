"""More of what rstream's classes do, on the door and on a real broker: starts, unsubscribing, sequences, refusals."""

from __future__ import annotations

import asyncio
import errno
import struct
from typing import Any

import pytest
import rstream
from rstream import exceptions

from tests.real_rabbitmq.by_hand import FIRST, QUERY_PUBLISHER_SEQUENCE, chunk, text
from tests.server.rabbitmq.test_rstream import FROM_FIRST, Received, address, consumer, producer, run, until


async def send_all(broker: Any, stream: str, bodies: list[bytes], **more: Any) -> None:
    """Send a batch over a connection of its own and wait for its confirms."""
    confirmed: list[Any] = []
    async with producer(broker) as writer:
        await writer.send_batch(stream, list(bodies), on_publish_confirm=confirmed.append, **more)
        await until(lambda: len(confirmed) == len(bodies), "all are confirmed")
    assert all(status.is_confirmed for status in confirmed)


def test_the_next_message_and_an_instant_between_chunks(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        await send_all(broker, stream, [b"early"] * 5)
        await asyncio.sleep(0.02)  # so that the chunks have times of their own
        await send_all(broker, stream, [b"late"] * 5)
        peer = broker.peer()
        assert peer.subscribe(1, stream, FIRST, 100) == 1
        times = [chunk(frame).timestamp for frame in peer.barrier(stream)]
        assert times[0] < times[-1]
        reader, another = consumer(broker), consumer(broker)  # each takes a stream once
        by_time, to_come = Received(), Received()
        at = rstream.ConsumerOffsetSpecification(rstream.OffsetType.TIMESTAMP, times[0] + 1)
        await reader.subscribe(stream, by_time, offset_specification=at)
        following = rstream.ConsumerOffsetSpecification(rstream.OffsetType.NEXT, None)
        await another.subscribe(stream, to_come, offset_specification=following)
        await until(lambda: by_time.count() == 5)
        await send_all(broker, stream, [b"new"])
        await until(lambda: by_time.count() == 6 and to_come.count() > 0)
        assert by_time.bodies[stream] == [b"late"] * 5 + [b"new"]
        assert by_time.offsets[stream] == list(range(5, 11))
        assert (to_come.bodies[stream], to_come.offsets[stream]) == ([b"new"], [10])
        await reader.close()
        await another.close()

    run(scenario())


def test_unsubscribing(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        reader, another = consumer(broker), consumer(broker)  # each takes a stream once
        left, stayed = Received(), Received()
        number = await reader.subscribe(stream, left, offset_specification=FROM_FIRST)
        await another.subscribe(stream, stayed, offset_specification=FROM_FIRST)
        await send_all(broker, stream, [b"one"])
        await until(lambda: left.count() == stayed.count() == 1)
        await reader.unsubscribe(number)
        await send_all(broker, stream, [b"two"])
        await until(lambda: stayed.count() == 2)
        assert left.bodies == {stream: [b"one"]}
        again = Received()
        await reader.subscribe(stream, again, offset_specification=FROM_FIRST)
        await until(lambda: again.count() == 2)
        await reader.close()
        await another.close()

    run(scenario())


def test_messages_without_a_filter_value_when_they_are_asked_for(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        async def region(message: Any) -> str | None:
            properties = message.application_properties
            return str(properties["region"]) if properties else None

        for part in ("emea", "apac", None):  # a chunk of each
            properties = {"region": part} if part else None
            batch = [rstream.AMQPMessage(body=b"%d" % n, application_properties=properties) for n in range(10)]
            confirmed: list[Any] = []
            more = {"filter_value_extractor": region} if part else {}
            async with producer(broker, **more) as writer:
                await writer.send_batch(stream, batch, on_publish_confirm=confirmed.append)
                await until(lambda there=confirmed: len(there) == 10)
        got = Received()
        reader = consumer(broker)
        await reader.subscribe(
            stream,
            got,
            decoder=rstream.amqp_decoder,
            offset_specification=FROM_FIRST,
            filter_input=rstream.FilterConfiguration(values_to_filter=["apac"], match_unfiltered=True),
        )
        await until(lambda: got.count() == 20)
        assert got.offsets[stream] == list(range(10, 30)), "the other value's chunk was not even sent"
        await reader.close()

    run(scenario())


def test_a_filter_on_batches_that_mix_values(broker: Any) -> None:
    """A broker sends them whole, the door the runs that match; in both, each message at its offset, and once."""
    stream, count = broker.stream(), 2_000
    rare = range(49, count, 50)  # the last message too: what should not come would have come before it

    async def scenario() -> None:
        async def region(message: Any) -> str:
            return str(message.application_properties["region"])

        confirmed: list[Any] = []
        async with producer(broker, filter_value_extractor=region) as writer:
            for first in range(0, count, 500):
                batch = [
                    rstream.AMQPMessage(
                        body=b"%d" % n + b"." * 99, application_properties={"region": "apac" if n in rare else "emea"}
                    )
                    for n in range(first, first + 500)
                ]
                await writer.send_batch(stream, batch, on_publish_confirm=confirmed.append)
            await until(lambda: len(confirmed) == count)
        got, everything = Received(), Received()
        reader, another = consumer(broker), consumer(broker)
        where: dict[str, Any] = {"decoder": rstream.amqp_decoder, "offset_specification": FROM_FIRST}
        await reader.subscribe(
            stream,
            got,
            **where,
            filter_input=rstream.FilterConfiguration(
                values_to_filter=["apac"],
                predicate=lambda message: message.application_properties[b"region"] == b"apac",
                match_unfiltered=False,
            ),
        )
        # Without a predicate it is handed all that comes.
        await another.subscribe(
            stream, everything, **where, filter_input=rstream.FilterConfiguration(values_to_filter=["apac"])
        )
        await until(lambda: all(each.offsets[stream][-1:] == [count - 1] for each in (got, everything)))
        assert got.offsets[stream] == list(rare)
        assert [body.split(b".")[0] for body in got.bodies[stream]] == [b"%d" % n for n in rare]
        assert set(rare) <= set(everything.offsets[stream])
        if hasattr(broker, "log"):
            assert everything.offsets[stream] == list(rare)
        await reader.close()
        await another.close()

    run(scenario())


def test_a_filter_from_an_offset_on_brings_nothing_from_before(broker: Any) -> None:
    stream, count = broker.stream(), 2_000
    rare = [*range(49, count, 50)]

    async def scenario() -> None:
        async def region(message: Any) -> str:
            return str(message.application_properties["region"])

        confirmed: list[Any] = []
        async with producer(broker, filter_value_extractor=region) as writer:
            batch = [
                rstream.AMQPMessage(body=b"." * 99, application_properties={"region": "apac" if n in rare else "emea"})
                for n in range(count)
            ]
            await writer.send_batch(stream, batch, on_publish_confirm=confirmed.append)
            await until(lambda: len(confirmed) == count)
        got, reader = Received(), consumer(broker)
        await reader.subscribe(
            stream,
            got,
            decoder=rstream.amqp_decoder,
            offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.OFFSET, 1_000),
            filter_input=rstream.FilterConfiguration(
                values_to_filter=["apac"],
                predicate=lambda message: message.application_properties[b"region"] == b"apac",
                match_unfiltered=False,
            ),
        )
        await until(lambda: got.offsets[stream][-1:] == [count - 1])
        assert got.offsets[stream] == [n for n in rare if n >= 1_000]
        await reader.close()

    run(scenario())


def test_a_name_goes_on_where_it_was(broker: Any) -> None:
    """rstream asks for the sequence, and numbers what it sends from there on."""
    stream = broker.stream()
    asked = text("writer") + text(stream)

    async def scenario() -> None:
        for turn in range(3):
            await send_all(broker, stream, [b"%d" % (turn * 10 + n) for n in range(10)], publisher_name="writer")
            answer = broker.peer().ask(QUERY_PUBLISHER_SEQUENCE, asked).body
            assert answer == struct.pack(">HQ", 1, 10 * (turn + 1))
        got = Received()
        reader = consumer(broker)
        await reader.subscribe(stream, got, offset_specification=FROM_FIRST)
        await until(lambda: got.count() == 30)
        assert got.bodies[stream] == [b"%d" % n for n in range(30)], "none was taken for an earlier one"
        await reader.close()

    run(scenario())


def test_who_is_not_let_in(broker: Any) -> None:
    async def refused(kind: Any, wrong: dict[str, str], fault: type[Exception]) -> None:
        entity = kind(**{**address(broker), **wrong})
        with pytest.raises(fault):
            await entity.start()
        await entity.close()

    async def scenario() -> None:
        cases: list[tuple[dict[str, str], type[Exception]]] = [
            ({"password": "wrong"}, exceptions.AuthenticationFailure),
            ({"vhost": "nowhere"}, exceptions.VirtualHostAccessFailure),
        ]
        # A real broker takes three seconds for each.
        kinds = (rstream.Producer, rstream.Consumer)
        await asyncio.gather(*(refused(kind, *case) for case in cases for kind in kinds))

    run(scenario())


def test_a_message_that_is_refused(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: rstream is told of each message, with the code."""
    stream = door.stream()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    async def scenario() -> None:
        told: list[Any] = []
        writer = producer(door)
        await writer.start()
        await writer.send_batch(stream, [b"kept"] * 2, on_publish_confirm=told.append)
        await until(lambda: len(told) == 2)
        monkeypatch.setattr(door.partition(stream), "append", full)
        await writer.send_batch(stream, [b"refused"] * 3, on_publish_confirm=told.append)
        await until(lambda: len(told) == 5)
        assert [status.is_confirmed for status in told] == [True] * 2 + [False] * 3
        assert {status.response_code for status in told[2:]} == {0x0F}
        assert len({status.message_id for status in told}) == 5
        await writer.close()

    run(scenario())
    assert door.partition(stream).next_offset == 2
