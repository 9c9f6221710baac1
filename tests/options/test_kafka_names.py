"""What a job says that comes from Spark's Kafka source or from azure-event-hubs-spark, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from spark_streams.client.log_client import StreamDescription
from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_source, validate
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.options.feedapi import validate as validate_feed
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.options.rabbitmq_stream import validate as validate_rabbit
from tests.docs.pages import tables

AMQP = {"url": "amqp://localhost", "stream": "orders"}
RABBIT = {"url": "rabbitmq-stream://localhost", "superStream": "orders"}
FEED = {"url": "http://localhost/orders"}
HUB = {
    "connectionString": "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=r;SharedAccessKey=k;EntityPath=orders"
}
CHECKS: list[tuple[Mapping[str, str], Callable[..., None], Callable[..., object]]] = [
    (AMQP, validate, parse_source),
    (RABBIT, validate_rabbit, parse_rabbit_source),
    (FEED, validate_feed, parse_feed_source),
]


@pytest.mark.parametrize(("options", "check", "parse"), CHECKS, ids=["amqp-events", "rabbitmq-stream", "feedapi"])
def test_each_name_of_kafkas_has_a_hint(
    options: Mapping[str, str], check: Callable[..., None], parse: Callable[..., object]
) -> None:
    own = {
        "amqp-events": "name the stream with option 'stream'",
        "rabbitmq-stream": "name the stream with option 'stream' or 'superStream'",
        "feedapi": "the feed's address goes into option 'url'",
    }
    naming = own[next(name for name, each in zip(own, CHECKS, strict=True) if each[0] is options)]
    for name, words in {
        "subscribe": naming,
        "topic": naming,
        "subscribePattern": "no patterns here",
        "assign": "'filter' with partition",
        "kafka.bootstrap.servers": "give 'url', such as " + options["url"].partition(":")[0],
        "kafka.group.id": "a query needs no group",
        "groupIdPrefix": "a query needs no group",
        "kafka.security.protocol": "'username' and 'password'",
        "kafka.sasl.jaas.config": "'username' and 'password'",
        "kafka.ssl.truststore.location": "PEM files, 'tls.caFile'",
        "kafka.max.poll.records": "speaks no Kafka",
        "includeHeaders": "columns of every row",
        "maxRecordsPerPartition": "'minPartitions' makes more tasks",
        "kafkaConsumer.pollTimeoutMs": "'requestTimeout'",
        "fetchOffset.numRetries": "tried again by itself",
    }.items():
        with pytest.raises(OptionError) as refused:
            check({**options, name: "secret"})
        assert str(refused.value).startswith(f"option '{name}': is an option of Spark's Kafka source: ")
        assert words.removesuffix("http") in str(refused.value) and "secret" not in str(refused.value)


OF_HUBS = {
    "connectionString": "give 'connectionString'",
    "consumerGroup": "give 'consumerGroup'",
    "startingPosition": "give 'startingOffsets'",
    "startingPositions": "give 'startingOffsets'",
    "endingPosition": "give 'endingOffsets'",
    "endingPositions": "give 'endingOffsets'",
    "maxEventsPerTrigger": "'maxOffsetsPerTrigger' is the limit",
    "maxRatePerPartition": "'maxOffsetsPerTrigger' is the limit",
    "maxRatesPerPartition": "'maxOffsetsPerTrigger' is the limit",
    "receiverTimeout": "'requestTimeout' is how many",
    "operationTimeout": "'requestTimeout' is how many",
    "maxSilentTime": "'requestTimeout' is how many",
    "prefetchCount": "leave it out",
    "threadPoolSize": "leave it out",
    "useExclusiveReceiver": "'epoch' makes the reader exclusive",
    "DynamicPartitionDiscovery": "leave it out",
    "slowPartitionAdjustment": "'minPartitions' has several tasks",
    "maxAcceptableBatchReceiveTime": "'minPartitions' has several tasks",
    "throttlingStatusPlugin": "'minPartitions' has several tasks",
    "useAadAuth": "give 'tokenProvider'",
    "aadAuthCallback": "give 'tokenProvider'",
    "AadAuthCallbackParams": "give 'tokenProvider'",
    "metricPlugin": "leave it out",
}
"""The names of EventHubsConf.scala of azure-event-hubs-spark 2.3.22, without their prefix."""


@pytest.mark.parametrize(("options", "check", "parse"), CHECKS, ids=["amqp-events", "rabbitmq-stream", "feedapi"])
def test_each_name_of_the_event_hubs_connector_has_a_hint(
    options: Mapping[str, str], check: Callable[..., None], parse: Callable[..., object]
) -> None:
    bare = {name: OF_HUBS["metricPlugin"] for name in ("useSimulatedClient", "partitionPreferredLocationStrategy")}
    named = {f"eventhubs.{name}": words for name, words in OF_HUBS.items()}
    for name, words in {**named, **bare, "maxEventsPerTrigger": OF_HUBS["maxEventsPerTrigger"]}.items():
        with pytest.raises(OptionError) as refused:
            check({**options, name: "secret"})
        said = str(refused.value)
        assert said.startswith(f"option '{name}': is an option of azure-event-hubs-spark: ") and "secret" not in said
        assert words in said if options is AMQP else said.endswith("amqp-events is the format for Event Hubs"), said


def test_every_name_of_the_page_about_the_event_hubs_connector_is_taken_or_has_a_hint() -> None:
    rows = tables("docs/from-azure-event-hubs-spark.md", "Options")[0]
    names = [name.strip("` ") for row in rows for name in row[0].split(",")]
    assert {f"eventhubs.{name}" for name in OF_HUBS} - set(names) == {"eventhubs.maxEventsPerTrigger"}
    for name in names:
        with pytest.raises(OptionError) as refused:
            validate({**AMQP, name: "x"})
        assert "has no such option" not in str(refused.value), name


def test_every_name_of_the_page_is_taken_or_has_a_hint() -> None:
    named = [name.strip("` ") for row in tables("docs/from-kafka.md", "Options")[0] for name in row[0].split(",")]
    names = [name.removesuffix(" (writing)").strip("`").replace("*", "x") for name in named]
    assert "kafka.sasl.x" in names and "subscribe" in names and "maxOffsetsPerTrigger" in names
    for name in names:
        try:
            validate_rabbit({**RABBIT, name: "1"})
        except OptionError as refused:
            assert "has no such option" not in str(refused), name


@pytest.mark.parametrize(("options", "check", "parse"), CHECKS, ids=["amqp-events", "rabbitmq-stream", "feedapi"])
def test_an_example_has_the_partitions_that_the_peer_has(
    options: Mapping[str, str], check: Callable[..., None], parse: Callable[..., object]
) -> None:
    hub = dict(HUB)
    partitions = {"amqp": ("0", "1"), "rabbit": ("orders-0", "orders-1")}
    for given, read, (first, second) in (
        (options, parse, partitions["rabbit" if options is RABBIT else "amqp"]),
        (hub, parse_source, partitions["amqp"]),
        ({**AMQP, "dialect": "rabbitmq"}, parse_source, partitions["rabbit"]),
    ):
        for name in ("startingOffsets", "startingOffsetsByTimestamp"):
            if given is FEED and name.endswith("Timestamp"):
                continue
            with pytest.raises(OptionError) as refused:
                read({**given, name: "somewhere"}, streaming=True)
            assert f'{{"{first}": ' in str(refused.value) and f', "{second}": ' in str(refused.value), refused.value
    with pytest.raises(
        OptionError, match=f"with partition = '{'orders-0' if options is RABBIT else '0'}' for the rows"
    ):
        check({**options, "assign": "{}"})


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (AMQP, "-1"),
        (RABBIT, "-1"),
        (RABBIT, '{"orders-0": "-1"}'),
        ({"connectionString": "hub"}, '{"0": "-1"}'),
        ({"connectionString": "hub"}, " -1 "),
    ],
)
def test_the_beginning_in_event_hubs_words(given: dict[str, str], value: str) -> None:
    parse = parse_rabbit_source if given is RABBIT else parse_source
    words = "'-1' is the beginning in Event Hubs' clients, and the end in Kafka's: say 'earliest' or 'latest'"
    with pytest.raises(OptionError) as refused:
        parse({**(HUB if "connectionString" in given else given), "startingOffsets": value}, streaming=True)
    assert words in str(refused.value)
    assert "RabbitMQ" not in str(refused.value) or given is RABBIT
    description = StreamDescription("orders", None, {}, offset_digits=20)
    assert words in (description.no_offset("-1") or "") and words not in (description.no_offset("5") or "")


@pytest.mark.parametrize("value", ['{"after": 1}', '{"at": 1}', "1"])
def test_a_number_where_the_dialect_is_not_known(value: str) -> None:
    words = r"partition '0' has the number 1, but offsets .* are opaque strings.*say so with option 'dialect'"
    with pytest.raises(OptionError, match=words):
        parse_source({**AMQP, "startingOffsets": f'{{"0": {value}}}'}, streaming=True)
    for known in (HUB, {**AMQP, "dialect": "rabbitmq"}):
        parse_source({**known, "startingOffsets": f'{{"0": {value}}}'}, streaming=True)


@pytest.mark.parametrize(("options", "check", "parse"), CHECKS, ids=["amqp-events", "rabbitmq-stream", "feedapi"])
def test_positions_of_topics_are_told_from_those_of_partitions(
    options: Mapping[str, str], check: Callable[..., None], parse: Callable[..., object]
) -> None:
    for name in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"):
        if options is FEED and name.endswith("Timestamp"):
            continue
        with pytest.raises(OptionError, match=r"'orders' has partitions in it, as a topic of Kafka.*the top, such as"):
            parse({**options, name: '{"orders": {"0": 23, "1": -2}}'}, streaming=False)


@pytest.mark.parametrize(("options", "check", "parse"), CHECKS, ids=["amqp-events", "rabbitmq-stream", "feedapi"])
def test_the_argument_of_load_is_told_before_what_it_leaves_out(
    options: Mapping[str, str], check: Callable[..., None], parse: Callable[..., object]
) -> None:
    without = {"url": options["url"], "path": "orders"}
    check(without)  # a writer may have Spark's own path, and it is not known yet which it is
    with pytest.raises(OptionError, match=r"option 'path': load and save take no argument here: .*option"):
        check(without, reading=True)
