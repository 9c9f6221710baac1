"""Has our log create and delete streams over AMQP, which has no request for it."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.management import Management, Settings
from spark_streams.errors import Refused
from spark_streams.wire.amqp.dialects import EVENT_HUBS, RABBITMQ
from spark_streams.wire.amqp.management import CREATE, DELETE

_DONE: Final = {CREATE: "created", DELETE: "deleted"}
_ELSEWHERE: Final = {
    RABBITMQ.name: ": RabbitMQ does it over its stream protocol, with a url rabbitmq-stream://…",
    EVENT_HUBS.name: ": hubs are made in Azure; for our log give the url of another door, such as amqp://host:port",
}
"""Where streams of a dialect's peers are created and deleted."""


def change(connection: Connection, operation: str, stream: str, settings: Settings | None) -> int:
    """Have a stream created or deleted; see ``Management.change``.

    Raises:
        Refused: the peer is not our log; the text says how its streams are made.
    """
    what = f"stream '{stream}' was not {_DONE[operation]}"
    if not connection.peer.is_reference_log:
        advice = "AMQP has no request for it" + _ELSEWHERE.get(connection.dialect.name, "")
        raise Refused("not supported", advice, f"{what} at {connection.endpoint.address}")
    with closing(Management(connection)) as management:
        return management.change(operation, stream, settings, what)
