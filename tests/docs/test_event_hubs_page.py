"""The pages on Event Hubs and RabbitMQ over AMQP 1.0: their options are taken as they stand."""

from __future__ import annotations

from typing import Any

from spark_streams.options.amqp_events import parse_source
from tests.docs.pages import blocks

PAGE = "docs/event-hubs.md"


class Reader:
    """Stands for ``spark.readStream``, and keeps the options."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.readStream = self

    def format(self, name: str) -> Reader:
        """Take the format."""
        assert name == "amqp-events"
        return self

    def option(self, name: str, value: str) -> Reader:
        """Take an option."""
        self.given[name] = value
        return self

    def load(self) -> Any:
        """Read the options."""
        return parse_source(self.given, streaming=True)


def test_the_options_of_the_page() -> None:
    names: dict[str, Any] = {"spark": Reader()}
    for block in blocks(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), names)
    endpoint = names["orders"].endpoint
    assert names["orders"].stream == "orders"
    assert (endpoint.host, endpoint.port, endpoint.username) == ("shop.servicebus.windows.net", 5671, "listen")
    other = parse_source(names["options"], streaming=True)
    assert (other.endpoint.username, other.stream) == (None, "orders")
    assert other.endpoint.token is not None and other.endpoint.token.source == "company.entra:token"


def test_the_options_of_the_page_on_rabbitmq() -> None:
    names: dict[str, Any] = {"spark": Reader()}
    (block,) = blocks("docs/rabbitmq-amqp.md", "python")
    exec(compile(block, "docs/rabbitmq-amqp.md", "exec"), names)
    orders = names["orders"]
    assert (orders.stream, orders.endpoint.vhost, orders.dialect) == ("orders", "shop", "auto")
