"""rstream's consumers of a super stream in one group: two share the partitions, and one takes over from the other.

The door and a real broker are asked the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import rstream

from tests.real_rabbitmq.by_hand import DELETE_SUPER_STREAM, text
from tests.server.rabbitmq.test_rstream import FROM_FIRST, Received, address, run, until

MESSAGES = 300


@pytest.fixture
def super_stream(broker: Any) -> Iterator[str]:
    name = f"{broker.prefix}-super"
    yield name
    broker.peer().ask(DELETE_SUPER_STREAM, text(name))


class Member:
    """A consumer of all partitions in one group; it goes on where the group came to, which ``reached`` keeps."""

    def __init__(self, broker: Any, name: str, reached: dict[str, int]) -> None:
        option = rstream.SuperStreamCreationOption(n_partitions=3)
        self.consumer = rstream.SuperStreamConsumer(
            **address(broker), super_stream=name, super_stream_creation_option=option
        )
        self.name = name
        self.got = Received()
        self.active: dict[str, bool] = {}
        self._reached = reached

    def _take(self, message: Any, context: rstream.MessageContext) -> None:
        self.got(message, context)
        self._reached[str(context.stream)] = context.offset + 1

    async def _told(self, active: bool, context: rstream.EventContext) -> rstream.OffsetSpecification:
        stream = str(context.subscriber_name)
        self.active[stream] = active
        return rstream.OffsetSpecification(rstream.OffsetType.OFFSET, self._reached.get(stream, 0))

    async def join(self) -> None:
        await self.consumer.start()
        # rstream's own subscribe gives all partitions one name and one listener; its Consumer takes one for each.
        self.consumer._consumer = reader = await self.consumer._create_consumer()
        for number in range(3):
            stream = f"{self.name}-{number}"
            await reader.subscribe(
                stream,
                self._take,
                offset_specification=FROM_FIRST,
                properties={"single-active-consumer": "true", "name": "group", "super-stream": self.name},
                subscriber_name=stream,
                consumer_update_listener=self._told,
                decoder=rstream.amqp_decoder,
            )


def test_two_members_share_the_partitions_and_one_takes_over(broker: Any, super_stream: str) -> None:
    async def publish(first: int) -> None:
        async def key_of(message: Any) -> str:
            return str(message.application_properties["key"])

        where = address(broker)
        async with rstream.SuperStreamProducer(
            **where, super_stream=super_stream, routing_extractor=key_of, routing=rstream.RouteType.Hash
        ) as writer:
            for number in range(first, first + MESSAGES):
                await writer.send(
                    rstream.AMQPMessage(body=b"%d" % number, application_properties={"key": f"key-{number}"})
                )

    def bodies(*members: Member) -> list[int]:
        return sorted(int(each) for member in members for part in member.got.bodies.values() for each in part)

    async def scenario() -> None:
        reached: dict[str, int] = {}
        first, second = Member(broker, super_stream, reached), Member(broker, super_stream, reached)
        await first.join()
        streams = [f"{super_stream}-{number}" for number in range(3)]
        await until(lambda: first.active == dict.fromkeys(streams, True), "the first one has all partitions")
        await publish(0)
        await until(lambda: first.got.count() == MESSAGES, "the first one receives everything")

        await second.join()
        await until(lambda: second.active == {streams[1]: True}, "partition 1 moves")
        assert first.active == {streams[0]: True, streams[1]: False, streams[2]: True}
        await publish(MESSAGES)
        await until(lambda: len(bodies(first, second)) >= 2 * MESSAGES, "both receive")
        assert bodies(first, second) == list(range(2 * MESSAGES))
        assert set(second.got.bodies) == {streams[1]}

        await first.consumer.close()
        await until(lambda: second.active == dict.fromkeys(streams, True), "the second one takes over")
        await publish(2 * MESSAGES)
        await until(lambda: len(bodies(first, second)) >= 3 * MESSAGES, "the second one goes on")
        assert bodies(first, second) == list(range(3 * MESSAGES))
        await second.consumer.close()

    run(scenario())
