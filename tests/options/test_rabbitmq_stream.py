"""Options of rabbitmq-stream: what its readers and writers take beside every format's, and what contradicts what."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest

from spark_streams.endpoint import Tls
from spark_streams.errors import OptionError
from spark_streams.filters import read_filter, to_protobuf
from spark_streams.options.positions import PositionRange
from spark_streams.options.rabbitmq_stream import parse_sink, parse_source, validate
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Matching

URL = {"url": "rabbitmq-stream://guest:guest@h/prod"}
BASE = {**URL, "stream": "orders"}
FILTERED = {"filterValues": "eu", "filterValueFrom": "key"}


def stream(**options: str):
    return parse_source({**BASE, **options}, streaming=True)


def batch(**options: str):
    return parse_source({**BASE, **options}, streaming=False)


def sink(**options: str):
    return parse_sink({**BASE, **options})


def super_sink(**options: str):
    return parse_sink({**URL, "superStream": "orders", **options})


def refused(message: str, call=stream, **options: str) -> None:
    with pytest.raises(OptionError) as caught:
        call(**options)
    assert message in str(caught.value), str(caught.value)


def test_defaults_of_a_reader() -> None:
    options = stream()
    assert (options.stream, options.super_stream, options.endpoint.vhost) == ("orders", False, "prod")
    assert (options.filter_values, options.match_unfiltered, options.filter_value_from) == ((), False, None)
    assert (options.consumer_name, options.single_active_consumer, options.store_offsets) == (None, False, False)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (None, 900_000)
    assert (options.starting.everywhere, options.ending) == (LATEST, None)
    assert (batch().starting.everywhere, batch().ending) == (EARLIEST, PositionRange(LATEST, option="endingOffsets"))
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("parse", [stream, batch, sink], ids=["stream", "batch", "sink"])
def test_a_load_balancer(parse) -> None:
    assert not parse().endpoint.load_balancer
    assert parse(loadBalancer="TRUE").endpoint.load_balancer and not parse(loadBalancer="false").endpoint.load_balancer
    assert parse(loadBalancer="true").endpoint.at(("b", 2)).load_balancer
    refused("option 'loadBalancer'", parse, loadBalancer="yes")


def test_what_every_format_takes_is_taken() -> None:
    options = stream(
        failOnDataLoss="false",
        maxOffsetsPerTrigger="9",
        minOffsetsPerTrigger="3",
        maxTriggerDelay="30s",
        minPartitions="4",
        pollInterval="0",
        requestTimeout="5",
        timestampOverflow="null",
        startingTimestamp="-1",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert (options.fail_on_data_loss, options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (
        False,
        9,
        3,
    )
    assert (options.max_trigger_delay_ms, options.min_partitions, options.poll_interval_ms) == (30_000, 4, 0)
    assert (options.request_timeout_ms, options.timestamp_overflow) == (5, "null")
    assert (options.starting.everywhere, options.latest_when_no_event) == (AtTime(-1), True)


def test_a_stream_or_a_super_stream() -> None:
    options = parse_source({**URL, "superStream": " orders "}, streaming=True)
    assert (options.stream, options.super_stream) == ("orders", True)
    refused("option 'superStream': cannot be used together with 'stream'", superStream="x")
    refused("option 'superStream': cannot be used together with 'stream'", sink, superStream="x")
    for call in (lambda: parse_source(URL, streaming=True), lambda: validate(URL, reading=True)):
        with pytest.raises(OptionError, match=r"option 'stream': is required.*or give 'superStream'"):
            call()
    with pytest.raises(OptionError, match="option 'superStream': is required"):
        parse_source({**URL, "superStream": " "}, streaming=True)
    refused("name the stream with option 'stream' or 'superStream'", path="orders")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("42", At("00000000000000000042")),
        ("0", At("00000000000000000000")),
        (str(2**63 - 1), At("09223372036854775807")),
        ("-2", EARLIEST),
        ("-1", LATEST),
        ('"42"', After("00000000000000000042")),
        ('"00000000000000000042"', After("00000000000000000042")),
        ('"earliest"', EARLIEST),
        ('"latest"', LATEST),
        ('{"at": "42"}', At("00000000000000000042")),
        ('{"at": 42}', At("00000000000000000042")),
        ('{"after": 41}', After("00000000000000000041")),
        ('{"after": "41"}', After("00000000000000000041")),
        ('{"timestamp": -5}', AtTime(-5)),
    ],
)
def test_positions(value: str, expected: object) -> None:
    assert stream(startingOffsets=f'{{"orders": {value}}}').starting.each == {"orders": expected}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-3", "offset -3 is negative, and only -2 (earliest) and -1 (latest) are"),
        (str(2**63), f"offset {2**63} is more than 2^63-1"),
        (f'"{2**63}"', f"offset {2**63} is more than 2^63-1"),
        ("9" * 100, f"offset {'9' * 24} is more than 2^63-1"),
        ('"000000000000000000042"', "expected 1 to 20 decimal digits"),
        ('"x"', "'x' is no offset of RabbitMQ, expected 1 to 20 decimal digits"),
        ('"-1"', "expected 1 to 20 decimal digits"),
        ('""', "expected 1 to 20 decimal digits"),
        ('" 1"', "expected 1 to 20 decimal digits"),
        ('"٤٢"', "expected 1 to 20 decimal digits"),
        ('{"at": "earliest"}', "expected 1 to 20 decimal digits"),
        ('{"at": -1}', "offset -1 is negative"),
        ('{"at": true}', "is not a position"),
        ("42.0", "42.0 is not a position: expected an offset as a number"),
        ("true", "True is not a position"),
        ("null", "None is not a position"),
        ("[1]", "is not a position"),
        ('{"timestamp": 0.5}', "is not a position"),
        ('{"expression": "TRUE"}', "filter, column 1"),
    ],
)
def test_bad_positions_say_which_partition(value: str, message: str) -> None:
    with pytest.raises(OptionError, match="option 'startingOffsets': partition 'orders-1': ") as caught:
        stream(startingOffsets=f'{{"orders-1": {value}}}')
    assert message in str(caught.value)


def test_endings() -> None:
    ending = batch(endingOffsets='{"orders": 42}').ending
    assert ending == PositionRange(None, {"orders": At("00000000000000000042")}, "endingOffsets")
    assert batch(endingOffsets='{"orders": -1}').ending == PositionRange(None, {"orders": LATEST}, "endingOffsets")
    refused("'earliest' cannot be used here (partition 'orders')", batch, endingOffsets='{"orders": -2}')
    refused("'latest' cannot be used here (partition 'orders')", batch, startingOffsets='{"orders": -1}')
    refused("a stream has no end", endingOffsets='{"orders": 42}')
    refused("this is for streams", batch, minOffsetsPerTrigger="5")


def test_the_example_in_a_message_would_do() -> None:
    with pytest.raises(OptionError) as caught:
        stream(startingOffsets="first")
    example = str(caught.value).rpartition("such as ")[2]
    assert stream(startingOffsets=example).starting.each["orders-1"] == At("00000000000000000042")


def test_expressions_say_where_to_start() -> None:
    assert stream(startingExpression="offset > 41").starting.everywhere == Matching("offset > 41")
    each = stream(startingOffsets='{"orders": {"expression": "key = 1"}}').starting.each
    assert each == {"orders": Matching("key = 1")}
    refused("option 'startingExpression': filter, column 1", startingExpression="TRUE")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("consumerGroup", "option 'consumerGroup': rabbitmq-stream has no such option; did you mean 'consumerName'?"),
        ("Epoch", "option 'epoch': rabbitmq-stream has no such option; did you mean 'consumerName'"),
        ("token", "rabbitmq-stream knows no tokens; use 'username'"),
        ("filterValue", "did you mean 'filterValues'?"),
        ("zzz", "rabbitmq-stream knows url, stream"),
    ],
)
def test_options_it_does_not_take(name: str, message: str) -> None:
    refused(message, **{name: "1"})
    refused(message, sink, **{name: "1"})


def test_filter_values() -> None:
    options = stream(
        filterValues=" eu, us ,eu", filterValueFrom="application_properties.my.region", matchUnfiltered="true"
    )
    assert options.filter_values == ("eu", "us")
    assert (options.filter_value_from, options.match_unfiltered) == ("application_properties.my.region", True)
    quoted = stream(filterValues='["a, b", " c", "é"]', filterValueFrom="properties.subject")
    assert quoted.filter_values == ("a, b", " c", "é")
    refused("option 'filterValues': needs 'filterValueFrom'", filterValues="eu")
    refused("option 'filterValueFrom': needs 'filterValues'", filterValueFrom="key")
    refused("option 'filterValueFrom': needs 'filterValues'", filterValueFrom="key", startingOffsets="earliest")
    refused("option 'matchUnfiltered': needs 'filterValues'", matchUnfiltered="true")
    assert not stream(matchUnfiltered="false").match_unfiltered


def test_where_filter_values_are_is_told_to_expressions() -> None:
    place = {"filterValueFrom": "application_properties.region"}
    for asking in (
        {"filter": "region = 'eu'"},
        {"startingExpression": "region = 'eu'"},
        {"startingOffsets": '{"orders": {"expression": "region = \'eu\'"}}'},
    ):
        options = stream(**place, **asking)
        assert (options.filter_values, options.match_unfiltered) == ((), True)
        assert options.filter_value_from == "application_properties.region"
        assert not stream(**place, **asking, matchUnfiltered="false").match_unfiltered
        assert not stream(**asking).match_unfiltered
        refused("option 'matchUnfiltered': needs 'filterValueFrom'", **asking, matchUnfiltered="true")
    assert batch(**place, pushdown="true").filter_value_from == "application_properties.region"
    refused("option 'filterValueFrom': needs", batch, **place, pushdown="false")
    both = stream(**place, filter="n > 5", filterValues="eu,us")
    assert (both.filter, both.filter_values) == (read_filter("n > 5"), ("eu", "us"))
    assert not both.match_unfiltered


def test_filters() -> None:
    assert stream(filter="type = 'order' AND offset >= 7").filter == read_filter("type = 'order' AND offset >= 7")
    encoded = base64.b64encode(to_protobuf(read_filter("type = 'order'"))).decode()
    assert stream(filter=encoded).filter == read_filter("type = 'order'")
    refused("option 'filter': filter, column ", filter="type = AND")
    for name in ("filter", "startingExpression"):
        refused(f"option '{name}': ", **{name: "properties.user_id = 'x'"})
        refused("user_id", **{name: "key = 'a' AND properties.user_id = 'x'"})
    refused("partition 'orders': ", startingOffsets='{"orders": {"expression": "properties.user_id IS NULL"}}')


@pytest.mark.parametrize("text", ["", " ", "a,,b", "a,", "[]", '[""]', "[1]", '["a"', '["a", null]', '[["a"]]'])
def test_bad_filter_values(text: str) -> None:
    refused("option 'filterValues'", filterValues=text, filterValueFrom="key")


@pytest.mark.parametrize("text", ["", "value", "Key", "application_properties.", "properties.creation_time", "subject"])
def test_bad_places_of_filter_values(text: str) -> None:
    refused("option 'filterValueFrom'", filterValues="eu", filterValueFrom=text)


def test_the_filter_value_itself_is_a_place_of_filter_values() -> None:
    """Publishers by AMQP 0-9-1 and 1.0 leave it there, and nowhere else."""
    place = "message_annotations.x-stream-filter-value"
    assert stream(filterValues="eu", filterValueFrom=place).filter_value_from == place
    refused("option 'filterValueFrom'", filterValues="eu", filterValueFrom="message_annotations.")


def test_consumers() -> None:
    options = stream(consumerName="spark", singleActiveConsumer="true", storeOffsets="true")
    assert (options.consumer_name, options.single_active_consumer, options.store_offsets) == ("spark", True, True)
    refused("option 'singleActiveConsumer': needs 'consumerName'", singleActiveConsumer="true")
    refused("option 'storeOffsets': needs 'consumerName'", storeOffsets="true")
    refused("option 'consumerName': is empty", consumerName=" ")
    assert stream(consumerName="é" * 127).consumer_name == "é" * 127
    refused("255 bytes", consumerName="é" * 128)
    both = {"consumerName": "spark", "minPartitions": "2"}
    assert stream(singleActiveConsumer="false", **both).min_partitions == 2
    refused("option 'minPartitions': cannot be used together with", singleActiveConsumer="true", **both)
    assert not batch(storeOffsets="false").store_offsets
    refused("option 'storeOffsets': a batch query", batch, storeOffsets="true", consumerName="spark")


def test_defaults_of_a_writer() -> None:
    options = sink()
    assert (options.stream, options.super_stream, options.routing, options.filter_value_column) == (
        "orders",
        None,
        "hash",
        None,
    )
    assert (options.compression, options.sub_entry_size, options.max_in_flight) == ("none", 1, 10_000)
    assert options.request_timeout_ms == 30_000
    named_by_rows = parse_sink(URL)
    assert (named_by_rows.stream, named_by_rows.super_stream) == (None, None)


def test_routing() -> None:
    options = super_sink(routing="KEY")
    assert (options.stream, options.super_stream, options.routing) == (None, "orders", "key")
    assert super_sink().routing == "hash"
    assert super_sink(routing="rstream").routing == "rstream"
    refused("option 'routing': needs 'superStream'", sink, routing="hash")
    refused("'random' is none of hash, rstream, key", super_sink, routing="random")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_sub_entry_batches(codec: str) -> None:
    options = sink(compression=codec.upper(), subEntrySize="100", maxInFlight="100")
    assert (options.compression, options.sub_entry_size, options.max_in_flight) == (codec, 100, 100)
    refused("option 'compression': needs 'subEntrySize'", sink, compression=codec)
    refused("option 'compression': needs 'subEntrySize'", sink, compression=codec, subEntrySize="1")


def test_limits_of_a_writer() -> None:
    assert sink(subEntrySize="2").compression == "none"
    assert sink(subEntrySize="65535").max_in_flight == 65_535
    refused(
        "'65536' cannot be used: expected a whole number, at least 1 and at most 65535 (messages)",
        sink,
        subEntrySize="65536",
    )
    refused("option 'subEntrySize'", sink, subEntrySize="0")
    refused("99 is less than the 100 of 'subEntrySize'", sink, subEntrySize="100", maxInFlight="99")
    refused("option 'maxInFlight'", sink, maxInFlight="0")
    refused("'brotli' is none of none, gzip, snappy, lz4, zstd", sink, compression="brotli", subEntrySize="2")
    assert sink(filterValueColumn="region", subEntrySize="1").filter_value_column == "region"
    refused("option 'filterValueColumn': cannot be used", sink, filterValueColumn="region", subEntrySize="2")
    refused("option 'filterValueColumn': is empty", sink, filterValueColumn="")


@pytest.mark.parametrize("name", ["routing", "filterValueColumn", "compression", "subEntrySize", "maxInFlight"])
def test_what_is_for_writing_is_not_for_reading(name: str) -> None:
    refused(f"option '{name}': this is for writing", **{name: "1"})


@pytest.mark.parametrize("name", ["startingOffsets", "filterValues", "consumerName", "storeOffsets", "maxTriggerDelay"])
def test_what_is_for_reading_is_not_for_writing(name: str) -> None:
    refused(f"option '{name}': this is for reading", sink, **{name: "1"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**BASE, "superStream": "x"}, "cannot be used together"),
        ({**BASE, "routing": "key"}, "needs 'superStream'"),
        ({**BASE, "filterValues": "x"}, "needs 'filterValueFrom'"),
        ({**BASE, "compression": "gzip"}, "needs 'subEntrySize'"),
        ({**BASE, "minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"}, "2 is more than the 1"),
        ({"url": "amqp://h"}, "'rabbitmq-stream' or 'rabbitmq-stream+tls' was expected"),
        ({}, "option 'url': is required: such as rabbitmq-stream://"),
    ],
)
def test_validate_finds_what_is_wrong_both_ways(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        validate(options)
    assert message in str(caught.value)


def test_validate_takes_what_a_reader_or_a_writer_takes() -> None:
    validate(URL)
    validate({**BASE, **FILTERED, "startingOffsets": "latest", "endingOffsets": "latest"}, reading=True)
    validate({**URL, "superStream": "orders", "routing": "key", "subEntrySize": "9", "compression": "lz4"})


def test_an_option_of_tls_asks_for_tls(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    endpoint = stream(**{"tls.caFile": str(pem)}).endpoint
    assert (endpoint.scheme, endpoint.port, endpoint.tls) == ("rabbitmq-stream+tls", 5551, Tls(str(pem)))
    assert endpoint.vhost == "prod"


def test_no_password_shows() -> None:
    options = {"url": "rabbitmq-stream://me:hunter2@h", "stream": "orders"}
    for value in (parse_source(options, streaming=True), parse_sink(options)):
        assert "hunter2" not in repr(value)
        assert b"hunter2" not in pickle.dumps(value)
