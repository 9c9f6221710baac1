"""What a job says that comes from Spark's Kafka source, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_source, validate
from spark_streams.options.feedapi import parse_feed_source, validate_feed
from spark_streams.options.rabbitmq_stream import parse_rabbit_source, validate_rabbit
from tests.docs.pages import tables

AMQP = {"url": "amqp://localhost", "stream": "orders"}
RABBIT = {"url": "rabbitmq-stream://localhost", "superStream": "orders"}
FEED = {"url": "http://localhost/orders"}
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
