"""rstream's own classes against the door, unchanged, and against a real broker: what they do there they do here."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import rstream
from rstream import exceptions
from rstream.recovery import BackOffRecoveryStrategy, RecoveryStrategy

from tests.certificate_authority import Authority
from tests.real_rabbitmq.by_hand import PARTITIONS, array, text

TIMEOUT_S = 120


class Hurried:
    """``asyncio`` for rstream: its pauses, such as those of every close and between batches, a twentieth as long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


class Soon(RecoveryStrategy):
    """rstream's back-off without its random seconds."""

    async def recover(self, entity: Any, stream: str, error: Exception, attempt: int, recovery_fun: Any) -> None:
        await asyncio.sleep(0.1)
        if await entity.stream_exists(stream):
            await entity.clean_list(stream)
            await recovery_fun()


def run(coroutine: Coroutine[Any, Any, None], *, hurried: bool = True) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(coroutine, 2 * TIMEOUT_S)

    with pytest.MonkeyPatch.context() as patch:
        if hurried:
            for module in (rstream.client, rstream.producer):
                patch.setattr(module, "asyncio", Hurried())
        asyncio.run(bounded())


def address(broker: Any, **more: Any) -> dict[str, Any]:
    """What rstream's classes are made with."""
    parts = urlsplit(broker.url)
    where = {"host": parts.hostname, "port": parts.port, "username": parts.username, "password": parts.password}
    return {**where, "recovery_strategy": Soon(), **more}


def producer(broker: Any, **more: Any) -> rstream.Producer:
    return rstream.Producer(**address(broker, **{"default_batch_publishing_delay": 0.05, **more}))


def consumer(broker: Any, **more: Any) -> rstream.Consumer:
    return rstream.Consumer(**address(broker, **more))


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str = "") -> None:
    """Wait until something is so."""
    for _ in range(TIMEOUT_S * 100):
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


class Received:
    """A callback that keeps what it is given, by stream."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self.offsets: dict[str, list[int]] = defaultdict(list)

    def __call__(self, message: Any, context: rstream.MessageContext) -> None:
        stream = context.stream or ""
        self.bodies[stream].append(bytes(message.body) if hasattr(message, "body") else bytes(message))
        self.offsets[stream].append(context.offset)

    def count(self) -> int:
        return sum(map(len, self.bodies.values()))


FROM_FIRST = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None)


def test_publish_and_consume(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        confirmed: list[int] = []
        async with producer(broker) as writer:
            first = await writer.send_wait(stream, b"first")
            ids = await writer.send_batch(
                stream,
                [b"%d" % n for n in range(5_000)],
                on_publish_confirm=lambda status: confirmed.append(status.message_id),
            )
            await until(lambda: len(confirmed) == 5_000, "all are confirmed")
            assert sorted(confirmed) == sorted(ids) and first not in ids
        got = Received()
        reader = consumer(broker)
        await reader.start()
        await reader.subscribe(stream, got, offset_specification=FROM_FIRST)
        await until(lambda: got.count() == 5_001, "all arrive")
        assert got.bodies[stream] == [b"first", *(b"%d" % n for n in range(5_000))]
        assert got.offsets[stream] == list(range(5_001))
        await reader.close()

    run(scenario())


@pytest.mark.parametrize(
    ("start", "value", "least"),
    [
        (rstream.OffsetType.FIRST, None, 0),
        (rstream.OffsetType.OFFSET, 25, 25),
        (rstream.OffsetType.LAST, None, 30),
        (rstream.OffsetType.TIMESTAMP, -1_000, 0),
    ],
    ids=["first", "offset", "last", "timestamp"],
)
def test_where_consumers_start(broker: Any, start: Any, value: int | None, least: int) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        async with producer(broker) as writer:
            for number in range(4):
                done: list[Any] = []
                await writer.send_batch(
                    stream, [b"%d" % (number * 10 + n) for n in range(10)], on_publish_confirm=done.append
                )
                await until(lambda there=done: len(there) == 10)
        got = Received()
        reader = consumer(broker)
        await reader.subscribe(stream, got, offset_specification=rstream.ConsumerOffsetSpecification(start, value))
        await until(lambda: bool(got.offsets[stream]) and got.offsets[stream][-1] == 39)
        assert got.offsets[stream] == list(range(least, 40))
        await reader.close()

    run(scenario())


def test_streams_and_stored_offsets(broker: Any) -> None:
    stream = f"{broker.prefix}-made"

    async def scenario() -> None:
        reader = consumer(broker)
        await reader.create_stream(stream, {"max-length-bytes": 20_000_000, "max-age": "7D"})
        await reader.create_stream(stream, {"max-length-bytes": 20_000_000, "max-age": "7D"}, exists_ok=True)
        with pytest.raises(exceptions.PreconditionFailed):
            await reader.create_stream(stream, {"max-age": "8D"}, exists_ok=True)
        assert await reader.stream_exists(stream) and not await reader.stream_exists(stream + "-not")
        with pytest.raises(rstream.OffsetNotFound):
            await reader.query_offset(stream, "app")
        await reader.store_offset(stream, "app", 41)

        async def told() -> bool:
            try:
                return await reader.query_offset(stream, "app") == 41
            except rstream.OffsetNotFound:
                return False

        await until(told, "the offset is told")
        await reader.delete_stream(stream)
        with pytest.raises(rstream.StreamDoesNotExist):
            await reader.delete_stream(stream)
        await reader.delete_stream(stream, missing_ok=True)
        await reader.close()

    run(scenario())


def test_names_deduplicate(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        for _ in range(2):  # the second time is a retry by another connection
            async with producer(broker) as writer:
                confirmed: list[Any] = []
                batch = [rstream.RawMessage(b"%d" % n, publishing_id=n) for n in range(1, 101)]
                await writer.send_batch(stream, batch, publisher_name="writer", on_publish_confirm=confirmed.append)
                await until(lambda there=confirmed: len(there) == 100)
                assert all(status.is_confirmed for status in confirmed)
        peer = broker.peer()
        assert peer.stats(stream)[1]["committed_offset"] == 99

    run(scenario())


@pytest.mark.parametrize("compression", [rstream.CompressionType.No, rstream.CompressionType.Gzip])
def test_sub_batches(broker: Any, compression: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        confirmed: list[Any] = []
        async with producer(broker) as writer:
            for part in range(5):
                messages = [rstream.AMQPMessage(body=b"%d" % (part * 20 + n)) for n in range(20)]
                await writer.send_sub_entry(
                    stream, messages, compression_type=compression, on_publish_confirm=confirmed.append
                )
            await until(lambda: len(confirmed) == 5, "one confirm a batch")
        got = Received()
        reader = consumer(broker)
        await reader.subscribe(stream, got, decoder=rstream.amqp_decoder, offset_specification=FROM_FIRST)
        await until(lambda: got.count() == 100)
        assert got.bodies[stream] == [b"%d" % n for n in range(100)]
        await reader.close()

    run(scenario())


def test_several_connections(broker: Any) -> None:
    """Two publishers and two subscribers to a connection: five streams take three connections each."""
    streams = [broker.stream(f"many-{n}") for n in range(5)]

    async def scenario() -> None:
        writer = producer(broker, max_publishers_by_connection=2)
        await writer.start()
        for stream in streams:
            assert await writer.send_wait(stream, stream.encode()) >= 0
        got = Received()
        reader = consumer(broker, max_subscribers_by_connection=2)
        for stream in streams:
            await reader.subscribe(stream, got, offset_specification=FROM_FIRST)
        await until(lambda: got.count() == 5)
        assert got.bodies == {stream: [stream.encode()] for stream in streams}
        assert len({id(each.client) for each in writer._publishers.values()}) == 3
        assert len({id(each.client) for each in reader._subscribers.values()}) == 3
        await writer.close()
        await reader.close()

    run(scenario())


@pytest.mark.nightly  # in true seconds; test_heartbeats.py has the door's part of it
def test_idle_connections_live(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        lost: list[Any] = []
        writer = producer(broker, heartbeat=2, on_close_handler=lost.append)
        got = Received()
        reader = consumer(broker, heartbeat=2, on_close_handler=lost.append)
        await writer.start()
        await writer.send_wait(stream, b"before")
        await reader.subscribe(stream, got, offset_specification=FROM_FIRST)
        await asyncio.sleep(6)  # longer than a peer may be silent
        await writer.send_wait(stream, b"after")
        await until(lambda: got.count() == 2)
        assert not lost
        await writer.close()
        await reader.close()

    run(scenario(), hurried=False)


def test_a_deleted_stream_is_told(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        told: list[rstream.OnClosedErrorInfo] = []
        never = BackOffRecoveryStrategy(enable=False)
        writer = producer(broker, on_close_handler=told.append, recovery_strategy=never)
        reader = consumer(broker, on_close_handler=told.append, recovery_strategy=never)
        await writer.start()
        await writer.send_wait(stream, b"x")
        await reader.subscribe(stream, Received())
        broker.peer().delete(stream)
        await until(lambda: len(told) == 2)
        assert all(list(each.streams) == [stream] for each in told)
        await writer.close()
        await reader.close()

    run(scenario())


def test_connections_that_break(door: Any) -> None:
    """The library reconnects by itself, and goes on where it was."""
    stream = door.stream()

    async def scenario() -> None:
        writer, reader, got = producer(door), consumer(door), Received()
        await writer.start()
        await reader.subscribe(stream, got, offset_specification=FROM_FIRST)
        for number in range(3):
            await sent(writer, b"%d" % number)
            await until(lambda count=number + 1: len(set(got.bodies[stream])) == count)
            door.server.call(
                lambda: [
                    connection.drop() for connection in list(door.server.server.door("rabbitmq-stream").connections)
                ]
            )
        await sent(writer, b"3")
        await until(lambda: b"3" in got.bodies[stream])
        assert set(got.bodies[stream]) == {b"0", b"1", b"2", b"3"}
        await writer.close()
        await reader.close()

    async def sent(writer: rstream.Producer, body: bytes) -> None:
        """Send as a program does that must not lose anything: again, until it is confirmed."""
        while True:
            try:
                await writer.send_wait(stream, body, timeout=2)
                return
            except (rstream.ServerError, asyncio.TimeoutError, AssertionError):
                await asyncio.sleep(0.05)

    run(scenario())


@pytest.mark.parametrize("routing", [rstream.RouteType.Hash, rstream.RouteType.Key])
def test_super_streams(broker: Any, routing: Any) -> None:
    name = f"{broker.prefix}-sales"
    keys = ["emea", "apac", "amer"]

    async def scenario() -> None:
        option = rstream.SuperStreamCreationOption(n_partitions=0, binding_keys=keys)
        where = address(broker)

        async def key(message: Any) -> str:
            return str(message.application_properties["region"])

        first = rstream.SuperStreamConsumer(**where, super_stream=name, super_stream_creation_option=option)
        await first.start()
        await first.close()
        for place, region in enumerate(keys):
            # A producer for each key: rstream keeps the route of the first key that it asks for.
            writer = rstream.SuperStreamProducer(**where, super_stream=name, routing=routing, routing_extractor=key)
            await writer.start()
            for number in range(place, 30, 3):
                properties = {"region": region, "n": number}
                await writer.send(rstream.AMQPMessage(body=b"%d" % number, application_properties=properties))
            await writer.close()
        got = Received()
        reader = rstream.SuperStreamConsumer(**where, super_stream=name)
        await reader.subscribe(got, decoder=rstream.amqp_decoder, offset_specification=FROM_FIRST)
        await until(lambda: got.count() == 30)
        streams = [f"{name}-{key}" for key in keys]
        told = broker.peer().ask(PARTITIONS, text(name)).body
        assert told == struct.pack(">H", 1) + array([text(stream) for stream in streams])
        assert {int(body) for bodies in got.bodies.values() for body in bodies} == set(range(30))
        if routing is rstream.RouteType.Key:
            assert [broker.peer().stats(stream)[1]["committed_offset"] for stream in streams] == [9, 9, 9]
        await reader.unsubscribe()
        await reader.close()
        remover = rstream.SuperStreamConsumer(**where, super_stream=name)
        await remover.delete_super_stream(name)
        assert not await remover.stream_exists(streams[0])
        await remover.close()

    run(scenario())


def test_filters(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        async def region(message: Any) -> str:
            return str(message.application_properties["region"])

        for part in ("emea", "apac"):  # a chunk of each
            confirmed: list[Any] = []
            async with producer(broker, filter_value_extractor=region) as writer:
                batch = [
                    rstream.AMQPMessage(body=b"%d" % n, application_properties={"region": part}) for n in range(50)
                ]
                await writer.send_batch(stream, batch, on_publish_confirm=confirmed.append)
                await until(lambda there=confirmed: len(there) == 50)
        got = Received()
        reader = consumer(broker)
        await reader.subscribe(
            stream,
            got,
            decoder=rstream.amqp_decoder,
            offset_specification=FROM_FIRST,
            filter_input=rstream.FilterConfiguration(
                values_to_filter=["apac"],
                predicate=lambda message: message.application_properties[b"region"] == b"apac",
                match_unfiltered=False,
            ),
        )
        await until(lambda: got.count() == 50)
        assert min(got.offsets[stream]) == 50, "the other chunk was not even sent"
        await reader.close()

    run(scenario())


def test_one_of_several_consumers_is_active(broker: Any) -> None:
    stream = broker.stream()

    async def scenario() -> None:
        active: list[tuple[int, bool]] = []

        def listener(number: int) -> Any:
            async def told(is_active: bool, context: Any) -> rstream.OffsetSpecification:
                active.append((number, is_active))
                return rstream.OffsetSpecification(rstream.OffsetType.FIRST, 0)

            return told

        readers, gots = [consumer(broker) for _ in range(2)], [Received(), Received()]
        for number, (reader, got) in enumerate(zip(readers, gots, strict=True)):
            await reader.subscribe(
                stream,
                got,
                offset_specification=FROM_FIRST,
                properties={"single-active-consumer": "true", "name": "group"},
                consumer_update_listener=listener(number),
            )
        await until(lambda: active == [(0, True)])
        async with producer(broker) as writer:
            await writer.send_wait(stream, b"x")
        await until(lambda: gots[0].count() == 1)
        await readers[0].close()
        await until(lambda: (1, True) in active)
        await until(lambda: gots[1].count() == 1)
        await readers[1].close()

    run(scenario())


@pytest.mark.parametrize("mechanism", [rstream.SlasMechanism.MechanismPlain, rstream.SlasMechanism.MechanismExternal])
def test_tls(doors: Callable[..., Any], tmp_path: Path, mechanism: Any) -> None:
    ca = Authority(tmp_path, "authority")
    certificate, key = ca.issue("server")
    door = doors(tls_cert=certificate, tls_key=key, tls_client_ca=str(ca.file))
    door.log.create_stream("orders")
    context = ca.context(ca.issue("ann"))

    async def scenario() -> None:
        secured = {"ssl_context": context, "sasl_configuration_mechanism": mechanism}
        async with producer(door, **secured) as writer:
            await writer.send_wait("orders", b"x")
        got = Received()
        reader = consumer(door, **secured)
        await reader.subscribe("orders", got, offset_specification=FROM_FIRST)
        await until(lambda: got.count() == 1)
        users = door.server.call(lambda: {each.user for each in door.server.server.door("rabbitmq-stream").connections})
        assert users == {"guest" if mechanism is rstream.SlasMechanism.MechanismPlain else "ann"}
        await reader.close()

    run(scenario())
