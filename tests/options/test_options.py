"""Options: every name, every value, every conflict, and what the messages say."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.endpoint import Secret, Tls
from spark_streams.errors import OptionError
from spark_streams.filters import parse, to_protobuf
from spark_streams.options.amqp_events import parse_sink, parse_source, validate
from spark_streams.options.parser import RedactedOptions, of_a_table
from spark_streams.options.positions import PositionRange
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Matching

BASE = {"url": "amqp://guest:guest@h", "stream": "orders"}


def stream(**options: str):
    return parse_source({**BASE, **options}, streaming=True)


def batch(**options: str):
    return parse_source({**BASE, **options}, streaming=False)


def refused(message: str, call=stream, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        call(**options)
    assert message in str(caught.value), str(caught.value)
    return str(caught.value)


def test_defaults() -> None:
    options = stream()
    assert (options.starting.everywhere, options.ending) == (LATEST, None)
    assert (options.fail_on_data_loss, options.max_offsets_per_trigger, options.min_partitions) == (True, None, None)
    assert (options.poll_interval_ms, options.request_timeout_ms) == (100, 30_000)
    assert (options.consumer_group, options.epoch, options.latest_when_no_event) == (None, None, False)
    assert batch().starting.everywhere == EARLIEST
    assert batch().ending == PositionRange(LATEST, option="endingOffsets")


def test_names_and_words_are_compared_without_case() -> None:
    options = parse_source(
        {"URL": "amqp://h", "Stream": "s", "startingoffsets": "EARLIEST", "FAILONDATALOSS": "False"}, streaming=True
    )
    assert options.starting.everywhere == EARLIEST
    assert not options.fail_on_data_loss


def test_the_properties_of_a_table_have_its_options_under_a_prefix() -> None:
    """As Spark 4.3.0 passes them: OPTIONS twice, properties, and what the catalog notes."""
    properties = {"x": "y", "Provider": "amqp-events", "url": "amqp://h", "option.URL": "amqp://h", "owner": "root"}
    assert of_a_table(properties) == {"url": "amqp://h"}
    assert of_a_table({"provider": "amqp-events", "owner": "root"}) == {}
    assert of_a_table({"provider": "x", "url": "amqp://h"}) is None, "a reader's option of that name"
    assert of_a_table({"url": "amqp://h", "option.url": "x"}) is None


def test_without_any_option_the_message_tells_of_tables() -> None:
    with pytest.raises(OptionError, match=r"'url': is required.*to no Python source"):
        validate({})
    with pytest.raises(OptionError) as caught:
        parse_source({"stream": "orders"}, streaming=False)
    assert "Python source" not in str(caught.value)


@pytest.mark.parametrize("name", ["checkpointLocation", "outputMode", "queryName"])
def test_sparks_own_options_pass(name: str) -> None:
    assert stream(**{name: "x"}).stream == "orders"


def test_an_unknown_option_suggests_the_nearest() -> None:
    assert "option 'startingOffset'" in refused("did you mean 'startingOffsets'?", startingOffset="earliest")
    refused("did you mean 'failOnDataLoss'?", failondataloos="true")
    refused("amqp-events knows url, stream", zzz="1")


def test_required() -> None:
    for missing in ("url", "stream"):
        with pytest.raises(OptionError, match=f"option '{missing}': is required"):
            parse_source({k: v for k, v in BASE.items() if k != missing}, streaming=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"0": "abc"}', {"0": After("abc")}),
        ('{"0": {"after": "earliest"}}', {"0": After("earliest")}),
        ('{"0": {"at": "1"}, "1": "latest"}', {"0": At("1"), "1": LATEST}),
        ('{"0": {"timestamp": -1}}', {"0": AtTime(-1)}),
    ],
)
def test_starting_offsets(text: str, expected: dict) -> None:
    assert stream(startingOffsets=text).starting.each == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"0": 17}', "the number 17, but offsets of AMQP event streams are opaque strings"),
        ('{"0": "a" "1": "b"}', "bad JSON at line 1 column 11 (near"),
        ("{0: 1}", "bad JSON at line 1 column 2"),
        ("first", "'first' is neither 'earliest' nor 'latest' nor a JSON object such as"),
        ("Erliest", "'Erliest' is neither 'earliest' nor 'latest' nor a JSON object such as"),
        ("7", "'7' is neither 'earliest' nor"),
        ("[1]", "expected 'earliest', 'latest' or a JSON object"),
        ("{}", "expected"),
        ('{"0": "a", "0": "b"}', "'0' is there twice"),
        ('{"0": {"from": "a"}}', "partition '0'"),
        ('{"0": {"expression": "d.event-streams-offset ~ 1"}}', "column 24"),
        ('{"0": "a", "7": {"expression": "1 = "}}', "partition '7': "),
        ('{"0": true}', "partition '0'"),
    ],
)
def test_bad_starting_offsets(text: str, message: str) -> None:
    assert "option 'startingOffsets'" in refused(message, startingOffsets=text)


@pytest.mark.parametrize(("text", "hint"), [("erliest", ", did you mean 'earliest'?"), ("oldest", "}")])
def test_a_word_that_is_nearly_a_position(text: str, hint: str) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        said = refused(f"option '{option}': '{text}' is neither", call=batch, **{option: text})
        assert said.endswith(hint)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("-386380800000", -386380800000),
        ("-1", -1),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1957-10-04", -386380800000),
        ("1957-10-04T19:28:34Z", -386310686000),
        ("2020-03-31T16:40:41", 1585672841000),
        ("2020-03-31T18:40:41+02:00", 1585672841000),
        ("2020-03-31 11:10:41.5-0530", 1585672841500),
        ("1970-01-01T00:00:00.0000001Z", 1),
        ("1969-12-31T23:59:59.9995Z", 0),
        ("1969-12-31T23:59:59.9990001Z", 0),
        ("0001-01-01", -62135596800000),
        (str(-(2**63) + 1), -(2**63) + 1),
    ],
)
def test_starting_timestamp(text: str, ms: int) -> None:
    assert stream(startingTimestamp=text).starting.everywhere == AtTime(ms)


@pytest.mark.parametrize(
    "text", ["yesterday", "2020-13-01", "2020-02-30T00:00Z", "1.5", "", str(2**63), str(-(2**63)), "1e3"]
)
def test_bad_timestamps(text: str) -> None:
    refused("option 'startingTimestamp'", startingTimestamp=text)


@given(st.datetimes())
def test_iso_agrees_with_datetime(moment) -> None:
    from datetime import datetime, timedelta

    expected = -((datetime(1970, 1, 1) - moment) // timedelta(milliseconds=1))
    assert stream(startingTimestamp=moment.isoformat()).starting.everywhere == AtTime(expected)


def test_offsets_by_timestamp() -> None:
    options = stream(
        startingOffsetsByTimestamp='{"0": -5, "1": "1970-01-01"}', startingOffsetsByTimestampStrategy="latest"
    )
    assert options.starting.each == {"0": AtTime(-5), "1": AtTime(0)}
    assert options.latest_when_no_event
    said = refused("is no instant", startingOffsetsByTimestamp='{"0": "latest"}')
    assert said.startswith("option 'startingOffsetsByTimestamp': 'latest'")
    refused("neither 'error' nor 'latest'", startingOffsetsByTimestampStrategy="earliest")


def test_only_one_start_and_one_end() -> None:
    refused(
        "option 'startingOffsets': cannot be used together with 'startingTimestamp'",
        startingOffsets="latest",
        startingTimestamp="1",
    )
    refused("'endingTimestamp'", batch, endingOffsetsByTimestamp='{"0": 1}', endingTimestamp="1")


def test_what_does_not_suit_the_mode() -> None:
    refused("'latest' cannot be used here", batch, startingOffsets="latest")
    refused("(partition '1')", batch, startingOffsets='{"0": "earliest", "1": "latest"}')
    refused("'earliest' cannot be used here", batch, endingOffsets="earliest")
    refused("(partition '0')", batch, endingOffsets='{"0": "earliest"}')
    refused("a stream has no end", endingOffsets="latest")
    refused("a stream has no end", endingTimestamp="5")
    refused("this is for streams", batch, maxOffsetsPerTrigger="5")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxOffsetsPerTrigger", "1.5"),
        ("minPartitions", "-1"),
        ("pollInterval", "-1"),
        ("pollInterval", "100ms"),
        ("requestTimeout", "0"),
        ("failOnDataLoss", "no"),
        ("tls.verifyHostname", "maybe"),
        ("epoch", "-1"),
        ("epoch", str(2**63)),
    ],
)
def test_bad_values_name_option_and_value(name: str, value: str) -> None:
    assert f"'{value}'" in refused(
        f"option '{name}'", **{name: value}, **({"consumerGroup": "g"} if name == "epoch" else {})
    )


def test_groups() -> None:
    options = stream(consumerGroup="g", epoch="0")
    assert (options.consumer_group, options.epoch) == ("g", 0)
    refused("needs 'consumerGroup'", epoch="1")
    refused("cannot be used together with 'consumerGroup'", consumerGroup="g", minPartitions="2")


def test_credentials() -> None:
    options = parse_source({"url": "amqp://h", "stream": "s", "username": "u", "password": "p"}, streaming=True)
    assert (options.endpoint.username, options.endpoint.password) == ("u", Secret("p"))
    refused("credentials in 'url'", username="u", password="p")
    refused("credentials in 'url'", password="p")
    with pytest.raises(OptionError, match="needs 'username'"):
        parse_source({"url": "amqp://h", "stream": "s", "password": "p"}, streaming=True)
    with pytest.raises(OptionError, match="option 'url': a user name needs a password"):
        parse_source({"url": "amqp://u@h", "stream": "s"}, streaming=True)
    with pytest.raises(OptionError, match="option 'username': a user name needs a password"):
        parse_source({"url": "amqp://h", "stream": "s", "username": "u"}, streaming=True)


def test_tls(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    options = parse_source({"url": "amqps://h", "stream": "s"}, streaming=True)
    assert (options.endpoint.tls, options.endpoint.port) == (Tls(), 5671)
    asked = parse_source(
        {"url": "amqp://h", "stream": "s", "tls.caFile": str(pem), "tls.verifyHostname": "false"}, streaming=True
    )
    assert asked.endpoint.tls == Tls(str(pem), verify_hostname=False)
    assert asked.endpoint.port == 5671
    assert stream().endpoint.tls is None
    refused("is not a file", **{"tls.caFile": str(tmp_path / "none.pem")})
    refused("needs 'tls.certFile'", **{"tls.keyFile": str(pem)})


def test_the_sinks_options() -> None:
    options = parse_sink({**BASE, "requestTimeout": "5"})
    assert (options.stream, options.request_timeout_ms) == ("orders", 5)
    assert parse_sink({"url": "amqp://h"}).stream is None
    with pytest.raises(OptionError, match="this is for reading"):
        parse_sink({**BASE, "startingOffsets": "latest"})


def test_validate_needs_a_stream_only_for_reading() -> None:
    validate({"url": "amqp://h"})
    with pytest.raises(OptionError, match="'stream': is required"):
        validate({"url": "amqp://h"}, reading=True)
    with pytest.raises(OptionError, match="bad JSON"):
        validate({**BASE, "startingOffsets": "{"})


def test_no_secret_shows_in_a_repr_or_a_pickle() -> None:
    raw = {"url": "amqp://me:hunter2@h", "stream": "s", "PassWord": "hunter2"}
    hidden = RedactedOptions(raw)
    assert dict(hidden) == raw
    options = parse_source({"url": "amqp://h", "stream": "s", "username": "me", "password": "hunter2"}, streaming=True)
    for value in (hidden, options):
        frozen = pickle.dumps(value)
        for shown in (repr(value), str(value), repr(frozen), repr(pickle.loads(frozen))):
            assert "hunter2" not in shown
        assert pickle.loads(frozen) == value
    assert "amqp://***@h" in repr(hidden)


def test_timestamp_overflow_is_fail_or_null() -> None:
    assert stream().timestamp_overflow == "fail"
    assert stream(timestampOverflow="NULL").timestamp_overflow == "null"
    refused("'wrap' is neither 'fail' nor 'null'", timestampOverflow="wrap")


def test_an_argument_of_load_is_not_dropped() -> None:
    refused("name the stream with option 'stream'", path="orders")
    with pytest.raises(OptionError, match="option 'path'"):
        parse_sink({**BASE, "path": "orders"})


def test_expressions_say_where_to_start() -> None:
    text = "d.event-streams-timestamp >= -386380800000 AND d.event-streams-offset > 'x'"
    assert stream(startingExpression=text).starting.everywhere == Matching(text)
    each = stream(startingOffsets='{"0": {"expression": "key = 1"}, "1": "earliest"}').starting.each
    assert each == {"0": Matching("key = 1"), "1": EARLIEST}
    assert "option 'startingExpression'" in refused("column 5", startingExpression="1 = ")
    assert "option 'startingOffsets'" in refused("column 5", startingOffsets='{"0": {"expression": "1 = "}}')
    refused("cannot be used together with 'startingTimestamp'", startingTimestamp="0", startingExpression="key = 'a'")
    refused("is required", startingExpression=" ")
    refused("says where to start only", call=batch, endingOffsets='{"0": {"expression": "key = 1"}}')


def test_an_expression_that_no_event_matches_is_an_error_only_when_asked_for() -> None:
    assert stream(startingExpression="key = 'a'").latest_when_no_match
    assert not stream(startingExpression="key = 'a'").latest_when_no_event
    for word, latest in (("error", False), ("latest", True)):
        options = stream(startingExpression="key = 'a'", startingOffsetsByTimestampStrategy=word)
        assert (options.latest_when_no_match, options.latest_when_no_event) == (latest, latest)


@pytest.mark.parametrize("call", [stream, batch])
def test_a_filter_is_read_once(call) -> None:
    text = "type = 'order' AND publish_time >= -386380800000 AND subject LIKE 'eu-%'"
    options = call(filter=text)
    assert options.filter == parse(text)
    assert pickle.loads(pickle.dumps(options)) == options
    assert call(filter=base64.b64encode(to_protobuf(parse(text))).decode()).filter == parse(text)
    assert call().filter is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("type =", "column 7"),
        ("type = 'order", "column 8"),
        ("type LIKE 5", "LIKE"),
        ("publish_time = 'noon'", "publish_time"),
        ("a = 1 b", "column 7"),
        ("type ~ 1", "column 6"),
        ("AA==", ""),
        ("", "is empty"),
        ("(" * 10_000, "64"),
        ("a = '" + "x" * 1_000_000, ""),
    ],
)
def test_a_bad_filter_says_where_and_why(text: str, fault: str) -> None:
    for name in ("filter", "startingExpression"):
        said = refused(fault if text else "", **{name: text})
        assert said.startswith(f"option '{name}': ")
        assert len(said) < 1000


def test_spark_pushes_filters_in_batch_queries_only() -> None:
    assert batch().pushdown is False
    assert batch(pushdown="TRUE").pushdown
    assert not stream(pushdown="false").pushdown
    refused("option 'pushdown': Spark pushes filters in batch queries only: say it with 'filter'", pushdown="true")
    refused("neither 'true' nor 'false'", batch, pushdown="yes")


def test_filters_are_for_reading() -> None:
    for name, text in (("filter", "a = 1"), ("pushdown", "true"), ("startingExpression", "a = 1")):
        with pytest.raises(OptionError, match=f"option '{name}': this is for reading"):
            parse_sink({**BASE, name: text})


def test_min_offsets_per_trigger() -> None:
    assert (stream().min_offsets_per_trigger, stream().max_trigger_delay_ms) == (None, 900_000)
    options = stream(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10", maxTriggerDelay="90s")
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (10, 10)
    assert options.max_trigger_delay_ms == 90_000
    refused("11 is more than the 10 of 'maxOffsetsPerTrigger'", minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    refused("option 'maxTriggerDelay': needs 'minOffsetsPerTrigger'", maxTriggerDelay="1m")
    refused(
        "option 'minOffsetsPerTrigger': '0' cannot be used: expected a whole number, at least 1 (events)",
        minOffsetsPerTrigger="0",
    )
    refused("option 'minOffsetsPerTrigger': a batch query has no triggers", batch, minOffsetsPerTrigger="5")
    refused("option 'maxTriggerDelay': a batch query has no triggers", batch, maxTriggerDelay="5m")
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger.*this is for reading"):
        parse_sink({**BASE, "minOffsetsPerTrigger": "1"})
    with pytest.raises(OptionError, match="11 is more than the 10"):
        validate({**BASE, "minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"})


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("15m", 900_000),
        ("15min", 900_000),
        (" 30S ", 30_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
        ("250ms", 250),
        ("250", 250),
        ("1500us", 2),
        ("30 s", 30_000),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert stream(minOffsetsPerTrigger="1", maxTriggerDelay=text).max_trigger_delay_ms == ms


@pytest.mark.parametrize("text", ["", "m", "-1s", "1.5h", "1h30m", "0", "0s", "1 week", "1y", str(2**63), "٣s"])
def test_bad_durations(text: str) -> None:
    refused(f"option 'maxTriggerDelay': '{text}' is no length of time", minOffsetsPerTrigger="1", maxTriggerDelay=text)


def test_json_that_python_does_not_take() -> None:
    for text in ('{"0": ' + "1" * 5000 + "}", "[" * 200_000):
        assert len(refused("option 'startingOffsets': bad JSON", startingOffsets=text)) < 400


def test_a_url_of_another_format() -> None:
    with pytest.raises(OptionError, match="scheme 'rabbitmq-stream' where one of 'amqp' or 'amqps'"):
        parse_source({"url": "rabbitmq-stream://h", "stream": "s"}, streaming=True)
    refused("cannot be used together with 'stream'", superStream="orders")
    refused("amqp-events has no such option; did you mean 'stream'?", streams="orders")
