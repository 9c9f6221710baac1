"""Option ``dialect`` of ``amqp-events``, and the options that only one dialect has."""

from __future__ import annotations

import pytest

from spark_streams.errors import OptionError
from spark_streams.filters import to_text
from spark_streams.options.amqp_events import (
    AmqpSinkOptions,
    AmqpSourceOptions,
    dialect_named,
    parse_sink,
    parse_source,
    validate,
)
from spark_streams.position import After, At
from spark_streams.wire.amqp.dialects import EVENT_HUBS, RABBITMQ

CONNECTION = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=orders"


def source(**options: str) -> AmqpSourceOptions:
    named = {} if {"stream", "superStream", "connectionString"} & options.keys() else {"stream": "orders"}
    url = {} if "connectionString" in options else {"url": "amqp://h"}
    return parse_source({**url, **named, **options}, streaming=True)


def sink(**options: str) -> AmqpSinkOptions:
    return parse_sink({"url": "amqp://h", **options})


def test_the_dialect_is_what_options_say() -> None:
    assert source().dialect == "auto" and dialect_named("auto") is None
    assert source(dialect="Event-Hubs").dialect == "event-hubs"
    assert source(connectionString=CONNECTION).dialect == "event-hubs"
    assert source(superStream="orders").dialect == "rabbitmq"
    assert source(keyAnnotation="x-key").dialect == sink(exchange="e").dialect == "rabbitmq"
    assert dialect_named("event-hubs") is EVENT_HUBS and dialect_named("rabbitmq") is RABBITMQ
    keyed = dialect_named("rabbitmq", "x-key")
    assert keyed is dialect_named("rabbitmq", "x-key") is not None
    assert keyed.places.key is not None and keyed.places.key.key == "x-key"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "kafka"}, "'dialect'"),
        ({"dialect": "event-hubs", "keyAnnotation": "x-a"}, "'dialect': 'event-hubs' contradicts 'keyAnnotation'"),
        (
            {"dialect": "rabbitmq", "connectionString": CONNECTION},
            "'dialect': 'rabbitmq' contradicts 'connectionString'",
        ),
        (
            {"connectionString": CONNECTION, "keyAnnotation": "x-a"},
            "'keyAnnotation': is for dialect RabbitMQ 4, and 'connection",
        ),
        ({"keyAnnotation": "key"}, "expected ASCII that begins with 'x-'"),
        ({"dialect": "rabbitmq", "consumerGroup": "g"}, "RabbitMQ 4 has none over AMQP 1.0"),
        ({"dialect": "rabbitmq", "epoch": "1"}, "RabbitMQ 4 has none over AMQP 1.0"),
        ({"dialect": "event-hubs", "epoch": "1", "minPartitions": "4"}, "one reader at a time has a partition"),
        ({"epoch": "1"}, "needs 'consumerGroup' beside it"),
        ({"superStream": "a", "stream": "b"}, "cannot be used together with 'stream'"),
        ({"filterValues": "a"}, "needs 'filterValueFrom' beside it"),
        ({"filterValueFrom": "key"}, "needs 'filterValues' or 'filter' beside it"),
        ({"startingOffsets": '{"orders": 42}'}, "say so with option 'dialect'"),
        ({"dialect": "rabbitmq", "startingOffsets": '{"orders": "x"}'}, "'x' is no offset"),
    ],
)
def test_what_contradicts_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        source(**options)
    assert message in str(caught.value)
    assert "SharedAccessKey=k" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "s", "exchange": "e"}, "cannot be used together with 'stream'"),
        ({"superStream": "s", "exchange": "e"}, "cannot be used together with 'superStream'"),
        ({"routingKeyColumn": "k", "stream": "s"}, "needs 'exchange' beside it"),
        ({"routing": "hash", "stream": "s"}, "needs 'superStream' beside it"),
        ({"routing": "key", "superStream": "s"}, "'routing'"),
        ({"consumerGroup": "g", "stream": "s"}, "'consumerGroup'"),
    ],
)
def test_what_a_writer_cannot_do_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        sink(**options)
    assert message in str(caught.value)


def test_positions_of_numbers() -> None:
    given = source(dialect="rabbitmq", startingOffsets='{"a": 42, "b": "42", "c": {"after": 7}}').starting.each
    assert given == {"a": At(f"{42:020d}"), "b": After(f"{42:020d}"), "c": After(f"{7:020d}")}
    assert source(dialect="event-hubs", epoch="3").epoch == 3


def test_filter_values_are_part_of_the_filter() -> None:
    given = source(filterValues="red, blue", filterValueFrom="application_properties.color", filter="key = 'k'")
    assert given.filter is not None and given.filter_values == ("red", "blue") and not given.match_unfiltered
    assert to_text(given.filter) == "key = 'k' AND application_properties.color IN ('red', 'blue')"
    given = source(filter="key = 'k'", filterValueFrom="key")
    assert given.filter is not None and to_text(given.filter) == "key = 'k'" and given.match_unfiltered


def test_options_of_both_sides_are_checked_before_it_is_known_which_it_is() -> None:
    validate({"url": "amqp://h", "exchange": "e", "routingKeyColumn": "k"})
    with pytest.raises(OptionError, match="needs 'exchange'"):
        validate({"url": "amqp://h", "routingKeyColumn": "k"})
