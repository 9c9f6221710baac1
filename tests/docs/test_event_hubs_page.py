"""The pages on Event Hubs and RabbitMQ over AMQP 1.0: their options are taken as they stand, and those of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.option_tables import PAGES
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import At
from tests.docs.pages import blocks, code_spans, tables

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

    def option(self, name: str, value: object) -> Reader:
        """Take an option, as Spark does."""
        self.given[name] = str(value)
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


SCALA = "docs/from-azure-event-hubs-spark.md"
OF_SCALA = {
    *(
        f"eventhubs.{name}"
        for name in (
            "AadAuthCallbackParams",
            "DynamicPartitionDiscovery",
            "aadAuthCallback",
            "connectionString",
            "consumerGroup",
            "endingPosition",
            "endingPositions",
            "maxAcceptableBatchReceiveTime",
            "maxRatePerPartition",
            "maxRatesPerPartition",
            "maxSilentTime",
            "metricPlugin",
            "operationTimeout",
            "prefetchCount",
            "receiverTimeout",
            "slowPartitionAdjustment",
            "startingPosition",
            "startingPositions",
            "threadPoolSize",
            "throttlingStatusPlugin",
            "useAadAuth",
            "useExclusiveReceiver",
        )
    ),
    "failOnDataLoss",
    "maxEventsPerTrigger",
    "partitionPreferredLocationStrategy",
    "useSimulatedClient",
}
"""The options of azure-event-hubs-spark 2.3.22: the keys in its EventHubsConf.scala."""


def test_coming_from_the_scala_connector(tmp_path: Path) -> None:
    first, second = blocks(SCALA, "python")
    connection = (
        "Endpoint=sb://n.servicebus.windows.net/orders;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=orders"
    )
    names: dict[str, Any] = {"spark": Reader(), "connection": connection}
    exec(compile(first, SCALA, "exec"), names)
    assert (names["orders"].stream, names["orders"].consumer_group) == ("orders", "billing")
    assert names["orders"].max_offsets_per_trigger == 100_000
    # As JsonUtils.scala writes it.
    (tmp_path / "41").write_text('v1\n{"batchWatermarkMs":0}\n{"orders":{"0":23,"1":0}}')
    shown = '"/data/checkpoints/orders/offsets/41"'
    assert shown in second
    exec(compile(second.replace(shown, repr(str(tmp_path / "41"))), SCALA, "exec"), names)
    start = parse_source({"connectionString": connection, "startingOffsets": names["starting"]}, streaming=True)
    assert json.loads(names["starting"]) == {"0": 23, "1": 0}
    assert start.starting.each == {"0": At(f"{23:020d}"), "1": At(f"{0:020d}")}


def test_every_option_of_the_scala_connector_has_its_row() -> None:
    (rows,) = tables(SCALA, "Options")
    assert {span for row in rows for span in code_spans(row[0])} == OF_SCALA
    known = {name for page in PAGES for name in page.names}
    for row in rows:
        assert set(code_spans(row[1])) <= known, row
