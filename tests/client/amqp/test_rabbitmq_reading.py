"""Stream queues of a real RabbitMQ over AMQP 1.0: the same rows as over its own protocol, holes, losses, filters."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from proton import Message, symbol, timestamp
from proton.utils import BlockingConnection

from spark_streams.client import AmqpClient, RabbitClient, RangeRead
from spark_streams.client.amqp.dialects.rabbitmq import RabbitInquiries
from spark_streams.client.rabbitmq.pushdown import FilterValues
from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
from spark_streams.errors import ConnectFailed, NotFound, OptionError, PositionLost, Refused
from spark_streams.filters import read_filter
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.rows import MESSAGE_SCHEMA
from spark_streams.wire.amqp.dialects import EVENT_STREAMS, RABBITMQ
from tests.docs.pages import tables
from tests.e2e.rabbitmq.broker import SMALL, body, coloured, numbers, offset
from tests.e2e.rabbitmq.conftest import Real
from tests.real_rabbitmq.conftest import rabbitmq_amqp_url as rabbitmq_amqp_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url
from tests.wire.amqp.test_golden import vectors

pytestmark = pytest.mark.rabbitmq

COLUMNS = ("offset", "value", "key", "properties", "application_properties")


@pytest.fixture
def broker(rabbitmq_url: str) -> Iterator[Real]:
    with contextlib.closing(Real(rabbitmq_url)) as running:
        yield running


@pytest.fixture
def client(rabbitmq_amqp_url: str) -> Iterator[AmqpClient]:
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000) as opened:
        yield opened


def whole(client: AmqpClient | RabbitClient, stream: str, columns: tuple[str, ...] = COLUMNS, **more: Any) -> list[Any]:
    """Return the rows that a stream has now; ``start`` and ``end`` may say of which range."""
    end = more.pop("end", None) or client.describe(stream).partitions[more.get("partition", stream)].latest
    partition = more.pop("partition", stream)
    read = RangeRead(stream, partition, more.pop("start", EARLIEST), str(end), columns, **more)
    return [row for batch in client.fetch(read, max_rows=97) for row in batch.to_pylist()]


def bodies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"].decode() for row in rows]


def rich(n: int) -> bytes:
    """Return a message with everything that a row shows, as proton encodes it."""
    message = Message(body=b"body %d" % n, inferred=True, subject=f"s{n % 3}", id=f"id-{n}", properties={"n": n})
    message.group_id = None if n % 4 == 0 else f"g{n % 4}"
    message.annotations = {symbol("x-note"): "n" * (n % 300)}
    return bytes(message.encode())


def test_rows_are_those_of_the_stream_protocol(broker: Real, client: AmqpClient, rabbitmq_url: str) -> None:
    stream = broker.create()
    broker.publish(stream, [rich(n) for n in range(1_500)])
    with RabbitClient(parse_url(rabbitmq_url, schemes=RABBITMQ_SCHEMES), timeout_ms=120_000) as other:
        expected = whole(other, stream)
    assert whole(client, stream) == expected and len(expected) == 1_500
    assert client.dialect is RABBITMQ and client.numeric_offsets


def test_what_a_stream_has(broker: Real, client: AmqpClient) -> None:
    stream = broker.create()
    empty = client.describe(stream)
    bounds = empty.partitions[stream]
    assert (bounds.earliest, bounds.latest, bounds.tells_truncated, empty.offset_digits) == (None, None, True, 20)
    broker.publish(stream, numbers(0, 250), each=50)
    bounds = client.describe(stream).partitions[stream]
    assert (bounds.earliest, bounds.latest, bounds.truncated) == (offset(0), offset(249), None)
    assert client.remaining(stream, {stream: After(offset(9))}) == {stream: 240}
    assert client.streams() is None and client.capabilities()["dialect"] == "rabbitmq"


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (EARLIEST, 119, 0, 119),
        (At(offset(30)), 30, 30, 30),
        (After(offset(30)), 64, 31, 64),
        (After(offset(119)), 119, 0, -1),
    ],
)
def test_any_range(
    broker: Real, client: AmqpClient, start: Earliest | At | After, end: int, first: int, last: int
) -> None:
    stream = broker.create()
    broker.publish(stream, numbers(0, 120), each=40)
    assert bodies(whole(client, stream, start=start, end=offset(end))) == numbers(first, last + 1)


def test_holes_are_no_loss_and_may_end_a_range(broker: Real, client: AmqpClient) -> None:
    """A stored offset uses up an offset of the stream: 0-4, 6-10, and then the end at 11."""
    stream = broker.create()
    broker.publish(stream, numbers(0, 5))
    broker.store(stream, "someone", 3)
    broker.publish(stream, numbers(5, 10))
    broker.store(stream, "someone", 8)
    bounds = client.describe(stream).partitions[stream]
    assert (bounds.earliest, bounds.latest) == (offset(0), offset(11))
    rows = whole(client, stream)
    assert bodies(rows) == numbers(0, 10)
    assert [row["offset"] for row in rows] == [offset(n) for n in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)]
    assert bodies(whole(client, stream, start=At(offset(5)))) == numbers(5, 10)
    assert bodies(whole(client, stream, start=After(offset(4)), end=offset(5))) == []
    assert whole(client, stream, start=After(offset(10))) == []


def test_what_retention_took_is_a_loss(broker: Real, client: AmqpClient, caplog: pytest.LogCaptureFixture) -> None:
    stream = broker.create(**SMALL)
    broker.publish(stream, numbers(0, 100))
    first = broker.truncate(stream, 100)
    bounds = client.describe(stream).partitions[stream]
    assert bounds.earliest is not None and int(bounds.earliest) >= first and bounds.truncated is not None
    for start in (At(offset(10)), After(offset(10))):
        with pytest.raises(PositionLost, match="events from"):
            whole(client, stream, start=start)
    with caplog.at_level(logging.WARNING):
        rows = whole(client, stream, start=After(offset(10)), fail_on_data_loss=False)
    assert "Events may have been lost" in caplog.text
    assert int(rows[0]["offset"]) >= int(bounds.earliest)
    assert whole(client, stream, start=After(bounds.truncated), end=bounds.earliest)[0]["offset"] == bounds.earliest


def test_a_reader_that_retention_overtakes_notices_it(broker: Real, client: AmqpClient) -> None:
    stream = broker.create(**SMALL)
    broker.publish(stream, ["y" * 1_000] * 150, each=5)
    latest = client.describe(stream).partitions[stream].latest
    assert latest is not None
    first = client.describe(stream).partitions[stream].earliest
    rows = client.fetch(RangeRead(stream, stream, At(str(first)), latest, ("offset",)), max_rows=1, max_bytes=1)
    next(rows)
    broker.truncate(stream, int(latest) + 1)  # it has credit for more than that, which is under way by now
    read = RangeRead(stream, stream, After(str(first)), latest, ("offset",))
    with pytest.raises(PositionLost, match=f"after '{first}'"):
        list(client.fetch(read))


def test_a_stream_that_ends_before_the_range_is_another_one(rabbitmq_amqp_url: str, broker: Real) -> None:
    stream = broker.create()
    broker.publish(stream, numbers(0, 10))
    with (
        AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=1_500) as client,
        pytest.raises(PositionLost, match="restored from an older copy, or has lost its newest events"),
    ):
        whole(client, stream, end=offset(20))


def test_a_stream_that_was_created_again_has_another_identity(broker: Real, client: AmqpClient) -> None:
    stream = broker.create()
    broker.publish(stream, numbers(0, 10))
    before = client.log_identity(stream, {stream: offset(9)})
    assert before == client.log_identity(stream, {stream: offset(9)}) and before[stream]
    assert client.log_identity(stream, {stream: offset(10)}) == {stream: None}
    broker.delete(stream)
    broker.create(stream)
    broker.publish(stream, numbers(0, 10, "other"))
    after = client.log_identity(stream, {stream: offset(9)})
    assert after[stream] and after != before


def test_partitions_of_a_super_stream_are_found_by_their_names(broker: Real, rabbitmq_amqp_url: str) -> None:
    name = broker.create_super(3)
    for n in range(3):
        broker.publish(f"{name}-{n}", numbers(0, 5 + n))
    keyed = broker.create_super(2, "keyed", keys=["north", "south"])
    asks = RabbitInquiries(super_stream=True)
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000, rabbitmq=asks) as client:
        described = client.describe(name).partitions
        assert {p: bounds.latest for p, bounds in described.items()} == {f"{name}-{n}": offset(4 + n) for n in range(3)}
        assert bodies(whole(client, name, partition=f"{name}-2")) == numbers(0, 7)
        assert list(client.describe(keyed).partitions) == [f"{keyed}-0", f"{keyed}-1"]
        with pytest.raises(NotFound, match="format 'rabbitmq-stream' finds those of any names"):
            client.describe(broker.name("nothing"))


@pytest.mark.parametrize(
    ("text", "pushed", "residual"),
    [
        ("properties.subject = 's1'", "p.subject", False),
        ("application_properties.n BETWEEN 10 AND 40", "a.n", True),
        ("key = 'g1'", None, True),
        ("properties.subject = 's2' AND key = 'g3'", "p.subject", True),
    ],
)
def test_the_broker_checks_what_it_can_of_a_filter(
    broker: Real, client: AmqpClient, text: str, pushed: str | None, residual: bool
) -> None:
    stream = broker.create()
    broker.publish(stream, [rich(n) for n in range(60)])
    expression = read_filter(text)
    split = client.pushdown(stream, expression)
    assert (split.pushed is None) == (pushed is None) and (split.residual is not None) == residual
    assert pushed is None or pushed in str(split.pushed).replace("properties.", "p.").replace('"', "")
    found = whole(client, stream, filter=expression)
    checks: dict[str, Callable[[dict[str, Any]], bool]] = {
        "properties.subject = 's1'": lambda row: row["properties"]["subject"] == "s1",
        "application_properties.n BETWEEN 10 AND 40": lambda row: (
            10 <= int(dict(row["application_properties"])["n"]) <= 40
        ),
        "key = 'g1'": lambda row: row["key"] == "g1",
        "properties.subject = 's2' AND key = 'g3'": lambda row: (
            (row["properties"]["subject"], row["key"]) == ("s2", "g3")
        ),
    }
    assert found == [row for row in whole(client, stream) if checks[text](row)] and found
    first = client.first_matching(stream, stream, expression)
    assert first == found[0]["offset"]


def test_filter_values_leave_out_chunks(broker: Real, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    broker.publish_filtered(stream, [(c, coloured(f"{c}{n}", c)) for c in ("red", "blue") for n in range(20)], each=20)
    broker.publish_filtered(stream, [(None, coloured("blue-but-unfiltered", "blue"))])
    expression = read_filter("application_properties.color = 'blue'")
    for unfiltered in (True, False):
        asks = RabbitInquiries(filter_value_from="application_properties.color", match_unfiltered=unfiltered)
        with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000, rabbitmq=asks) as client:
            assert "blue" in str(client.pushdown(stream, expression).pushed)
            expected = [f"blue{n}" for n in range(20)] + (["blue-but-unfiltered"] if unfiltered else [])
            assert bodies(whole(client, stream, filter=expression)) == expected


def test_the_filter_value_that_amqp_publishers_leave(broker: Real, rabbitmq_amqp_url: str, rabbitmq_url: str) -> None:
    """They set it as an annotation, which RabbitMQ makes the chunk's filter of, and keeps: it may be nowhere else."""
    stream, place = broker.create(), "message_annotations.x-stream-filter-value"
    connection = BlockingConnection(rabbitmq_amqp_url.replace("guest:guest@", ""), user="guest", password="guest")
    sender = connection.create_sender(f"/queues/{stream}")
    for value in ("red", "blue", None):
        annotations = {} if value is None else {symbol("x-stream-filter-value"): value}
        for n in range(3):
            sender.send(Message(body=b"%s%d" % (str(value).encode(), n), inferred=True, annotations=annotations))
    connection.close()
    given = {"url": rabbitmq_amqp_url, "stream": stream, "filterValues": "blue", "filterValueFrom": place}
    expression = parse_source(given, streaming=False).filter
    asks = RabbitInquiries(filter_value_from=place, match_unfiltered=False)
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000, rabbitmq=asks) as client:
        assert expression is not None and client.pushdown(stream, expression).pushed == "filter values: blue"
        assert bodies(whole(client, stream, filter=expression)) == numbers(0, 3, "blue")
        end = client.describe(stream).partitions[stream].latest
    values = FilterValues(("blue",), False, place)
    endpoint = parse_url(rabbitmq_url, schemes=RABBITMQ_SCHEMES)
    with RabbitClient(endpoint, timeout_ms=120_000, filters=values) as other:
        assert bodies(whole(other, stream, end=end)) == numbers(0, 3, "blue")


def test_times_where_the_broker_tells_them(broker: Real, client: AmqpClient) -> None:
    """As with set_header_timestamp: the annotation has the time, milliseconds; here the publisher has put it there."""
    stream = broker.create()
    messages = [
        Message(
            body=b"e%d" % n, inferred=True, annotations={symbol("x-opt-rabbitmq-received-time"): timestamp(1_000 + n)}
        )
        for n in range(50)
    ]
    broker.publish(stream, [bytes(message.encode()) for message in messages])
    assert client.first_at_time(stream, stream, 1_020) == offset(20)
    assert client.first_at_time(stream, stream, -5) == offset(0)
    assert client.first_at_time(stream, stream, 1_050) is None
    empty = broker.create("empty")
    assert client.describe(empty).partitions[empty].latest is None and client.first_at_time(empty, empty, 1_000) is None
    rows = whole(client, stream, ("timestamp",))
    assert rows[7]["timestamp"].timestamp() == 1.007


def test_times_where_nobody_tells_them(broker: Real, client: AmqpClient) -> None:
    stream = broker.create()
    broker.publish(stream, numbers(0, 3))
    with pytest.raises(OptionError, match="Use format 'rabbitmq-stream', which reads the times of chunks"):
        client.first_at_time(stream, stream, 1)


def pair(section: int, key: bytes, value: bytes) -> bytes:
    """Return a section that is a map of one key, written by hand (AMQP 1.0 part 1 §1.6.23), and a body."""
    content = key + value
    return bytes((0, 0x53, section, 0xC1, len(content) + 1, 2)) + content + body("x")


ANNOTATIONS, PROPERTIES = 0x72, 0x74
DESCRIBED = b"\x00\x53\x01\xa1\x01z"
NOT_SHOWN = {
    "an annotation whose key does not begin with `x-`": pair(ANNOTATIONS, b"\xa3\x05color", b"\xa1\x03red"),
    "an annotation whose key is no symbol": pair(ANNOTATIONS, b"\xa1\x03x-a", b"\xa1\x03red"),
    "an annotation that is null": pair(ANNOTATIONS, b"\xa3\x03x-a", b"\x40"),
    "an annotation that is a described value": pair(ANNOTATIONS, b"\xa3\x03x-a", DESCRIBED),
    "an application property that is a described value": pair(PROPERTIES, b"\xa1\x01k", DESCRIBED),
    "an application property that is an array": pair(PROPERTIES, b"\xa1\x01k", b"\xe0\x04\x02\x54\x01\x02"),
    "bytes that are no AMQP": b"hello",
    "a message of 0 bytes, or of zero bytes": b"",
    "a message of one zero byte": b"\x00",
    "no body": b"\x00\x53\x74\xc1\x05\x02\xa1\x01k\x40",
    "a footer before the body": b"\x00\x53\x78\xc1\x07\x02\xa3\x03x-f\x41" + body("x"),
}
"""What RabbitMQ 4.3.6 does not show over AMQP 1.0, in the words of the page."""


@pytest.mark.parametrize("entry", NOT_SHOWN)
def test_what_amqp_cannot_show(broker: Real, client: AmqpClient, entry: str) -> None:
    """The broker ends the session before it sends what the reader had credit for; its words are its own code's."""
    stream = broker.create()
    messages = [body(f"e{n}") for n in range(300)]
    broker.publish(stream, [*messages[:60], NOT_SHOWN[entry], *messages[60:]], each=400)
    found: list[str] = []
    read = RangeRead(stream, stream, EARLIEST, offset(300), ("value",))
    words = (
        rf"internal-error: the broker cannot show the message at offset '{offset(60)}' or the next as one of AMQP 1.0"
    )
    with pytest.raises(Refused, match=rf"{words}: read it with format 'rabbitmq-stream', which shows .*$") as caught:
        for batch in client.fetch(read):
            found += [value.decode() for value in batch.column("value").to_pylist()]
    assert found == numbers(0, 60) and len(str(caught.value)) < 300 and not caught.value.retriable
    assert bodies(whole(client, stream, end=offset(59))) == numbers(0, 60), (
        "a range before it has nothing to do with it"
    )
    assert bodies(whole(client, stream, start=After(offset(60)))) == numbers(60, 300)


@pytest.mark.parametrize("text", [None, "properties.subject = 's1'"])
def test_rows_before_what_amqp_cannot_show(broker: Real, client: AmqpClient, text: str | None) -> None:
    """Behind the first messages of a link the broker ends the connection; with a filter it looks beyond the range."""
    stream, found = broker.create(), list[int]()
    broker.publish(stream, [*map(rich, range(3_000)), b"hello", *map(rich, range(250))], each=200)
    expression, step = (read_filter(text), 3) if text else (None, 1)
    expected = list(range(step // 2, 3_000, step))
    read = RangeRead(stream, stream, EARLIEST, offset(3_200), ("offset",), filter=expression)
    with pytest.raises(Refused, match=f"cannot show the message at offset '{offset(3_000)}' or the next"):
        for batch in client.fetch(read):
            found += [int(each) for each in batch.column("offset").to_pylist()]
    assert found == expected
    rows = whole(client, stream, ("offset",), end=offset(2_999), filter=expression)
    assert [int(row["offset"]) for row in rows] == expected


NUMBERS = {
    "null": b"\x40",
    "NaN": b"\x82\x7f\xf8" + bytes(6),
    "float NaN": b"\x72\x7f\xc0" + bytes(2),
    "infinity": b"\x82\x7f\xf0" + bytes(6),
}


@pytest.mark.parametrize("value", NUMBERS)
def test_null_and_nan_end_no_session_with_sql_filters(broker: Real, client: AmqpClient, value: str) -> None:
    stream = broker.create()
    five, six, odd = (pair(PROPERTIES, b"\xa1\x01k", each) for each in (b"\x54\x05", b"\x54\x06", NUMBERS[value]))
    broker.publish(stream, [five, odd, six])
    for text, expected in (("k > 1", [0, 2]), ("k = 5", [0]), ("k IS NULL", [1] if value == "null" else [])):
        expression = read_filter(text)
        assert "SQL" in str(client.pushdown(stream, expression).pushed)
        rows = whole(client, stream, ("offset",), filter=expression)
        assert [int(row["offset"]) for row in rows] == expected, text


def test_the_page_has_what_amqp_cannot_show(broker: Real, client: AmqpClient) -> None:
    (rows,) = tables("docs/rabbitmq-amqp.md", "What it does not show")
    assert {row[0] for row in rows if row[1].startswith("the session")} == NOT_SHOWN.keys() - {
        "a message of one zero byte"
    }
    stream = broker.create()
    broker.publish(stream, [NOT_SHOWN["no body"]])
    with pytest.raises(Refused, match=r"cannot show a message from 'first' on .* 'rabbitmq-stream'"):
        client.describe(stream)


@pytest.mark.parametrize("columns", [("value",), MESSAGE_SCHEMA.names], ids=["value", "all"])
def test_symbols_beyond_ascii_and_times_of_any_size(
    broker: Real, client: AmqpClient, rabbitmq_url: str, columns: tuple[str, ...]
) -> None:
    """The real broker hands over what AMQP 0-9-1 publishers left, and both formats make the same rows of it."""
    stream, stored = broker.create(), vectors("rabbitmq-0-9-1")
    broker.publish(stream, [body("first"), *stored.values(), body("last")])

    def table(reader: AmqpClient | RabbitClient, condition: str | None = None) -> pa.Table:
        end = str(reader.describe(stream).partitions[stream].latest)
        chosen = read_filter(condition) if condition else None
        read = RangeRead(stream, stream, EARLIEST, end, tuple(columns), timestamp_overflow="null", filter=chosen)
        return pa.Table.from_batches(list(reader.fetch(read)))

    with RabbitClient(parse_url(rabbitmq_url, schemes=RABBITMQ_SCHEMES)) as other:
        rows, eu = table(other), table(other, "region = 'eu'")
        over_amqp = table(client)
        assert rows["value"].to_pylist() == [b"first", *[b"odd"] * 3, b"", *[b"odd"] * 6, b"last"]
        assert over_amqp["value"] == rows["value"]
        assert eu["value"].to_pylist() == table(client, "region = 'eu'")["value"].to_pylist() == [b"odd"]
        for reader in (client, other):
            assert table(reader, "event_time >= 0").num_rows == 5  # the last one is -1000
    if "properties" in columns:
        assert rows["properties"] == over_amqp["properties"]
        assert ("x-größe", "L") in rows["message_annotations"][1].as_py()
        assert eu["application_properties"].to_pylist() == [[("region", "eu")]]


def test_other_names_and_hosts(broker: Real, client: AmqpClient, rabbitmq_amqp_url: str) -> None:
    with pytest.raises(NotFound, match="no queue"):
        client.describe(broker.name("none"))
    odd = broker.create("a b%é")
    broker.publish(odd, numbers(0, 3))
    assert bodies(whole(client, odd)) == numbers(0, 3)
    with (
        AmqpClient(parse_url(f"{rabbitmq_amqp_url}/nowhere")) as other,
        pytest.raises(ConnectFailed, match="'nowhere'"),
    ):
        other.describe(odd)
    vhost = broker.name("host")
    broker.control("add_vhost", vhost)
    try:
        broker.control("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        with AmqpClient(parse_url(f"{rabbitmq_amqp_url}/{vhost}")) as other, pytest.raises(NotFound, match=vhost):
            other.describe(odd)
    finally:
        broker.control("delete_vhost", vhost)


def permit_only(broker: Real, user: str, only: str, stream: str) -> None:
    """Give a user one of the three permissions, on a stream."""
    words = [f"^{stream}$" if word == only else "^$" for word in ("configure", "write", "read")]
    broker.control("set_permissions", user, *words)


def test_who_may_not_is_told_at_once(broker: Real, rabbitmq_amqp_url: str) -> None:
    """The broker ends the session in place of an answer to the attach."""
    stream = broker.create()
    with broker.outsider() as url:
        theirs = rabbitmq_amqp_url.replace("guest:guest", urlsplit(url).netloc.rpartition("@")[0])
        with AmqpClient(parse_url(theirs), timeout_ms=120_000) as client:
            for asked in (client.describe, client.publisher, client.settings):
                with pytest.raises(Refused, match="unauthorized-access") as refused:
                    asked(stream)
            assert "configure access" in str(refused.value), "its arguments are told with any of the three"
        permit_only(broker, str(urlsplit(url).username), "read", stream)
        with AmqpClient(parse_url(theirs), timeout_ms=120_000) as client:
            client.describe(stream)
            assert client.settings(stream)["x-queue-type"] == "stream"
            with pytest.raises(Refused, match="write access"):
                client.publisher(stream)


@pytest.mark.nightly
def test_the_other_permissions_too_are_enough_for_the_arguments(broker: Real, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    with broker.outsider() as url:
        theirs = rabbitmq_amqp_url.replace("guest:guest", urlsplit(url).netloc.rpartition("@")[0])
        for only in ("configure", "write"):
            permit_only(broker, str(urlsplit(url).username), only, stream)
            with AmqpClient(parse_url(theirs), timeout_ms=120_000) as client:
                assert client.settings(stream)["x-queue-type"] == "stream", only


def test_the_arguments_of_a_stream_are_asked_for_by_its_name(broker: Real, client: AmqpClient) -> None:
    """Each call has links of its own, and gives their session back: a connection has 63."""
    names = [broker.create("one"), broker.create("two")]
    for name in names * 40:
        assert client.settings(name)["x-queue-type"] == "stream"
    with pytest.raises(NotFound, match=r"'no such/stream\?'"):
        client.settings("no such/stream?")
    assert client.settings(names[1])["x-queue-type"] == "stream"


def test_a_dialect_that_is_not_the_peers(broker: Real, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    with (
        AmqpClient(parse_url(rabbitmq_amqp_url), dialect=EVENT_STREAMS, timeout_ms=120_000) as client,
        pytest.raises(OptionError, match=r"'event-streams', but the peer at .* is RabbitMQ 4.* set it to 'rabbitmq'"),
    ):
        client.describe(stream)


def test_a_read_begins_nowhere_else_than_it_was_to(broker: Real, client: AmqpClient) -> None:
    """The broker leaves out of its echo what it does not understand, and would begin at the end."""
    from spark_streams.client.amqp.links import Binding, StartRefused, attach_receiver
    from spark_streams.wire.amqp.dialects.dialect import StartFilter
    from spark_streams.wire.amqp.values import Described, Symbol

    stream = broker.create()
    start = StartFilter(Described(Symbol("rabbitmq:stream-offset-spec"), -5))
    with pytest.raises(StartRefused, match="the read would begin elsewhere"):
        client._connections.run(
            lambda to: attach_receiver(to.connection, f"/queues/{stream}", Binding(stream), start=start)
        )
