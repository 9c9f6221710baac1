"""Ranges with a filter, read from every broker: exactly the rows that match, whatever the broker does about it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import FilterValues, RabbitClient, RangeRead
from spark_streams.client.rabbitmq import row_decoder as rows_module
from spark_streams.errors import FilterError, PositionLost
from spark_streams.filters import Operator, Predicate, ValueType, parse, property_of
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.wire.rabbitmq.publish_decode import PUBLISH_KEY
from tests.client.rabbitmq.brokers import Broker, amqp, latest, text
from tests.client.rabbitmq.scripted import Chunks, Scripted, deliver
from tests.faults.proxy import TcpProxy
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import sub_batch

COLORS = ("red", "green", None, "blue")
COLOR = FilterValues((), False, "application_properties.color")
COUNT = 1_200


def color_of(n: int) -> str | None:
    """One in four of the first and last third has each color; the middle third is green."""
    return "green" if COUNT // 3 <= n < 2 * COUNT // 3 else COLORS[n % 4]


def body_of(n: int) -> bytes:
    return b"%d" % n + b"." * (n % 40)


def fill(broker: Broker, stream: str, each: int = 100) -> None:
    """Publish messages of all colors, with their color as filter value where the broker knows such."""
    for first in range(0, COUNT, each):
        part = [(color_of(n), amqp(body_of(n), color_of(n))) for n in range(first, first + each)]
        if broker.is_old:
            broker.publish(stream, [message for _, message in part])
        else:
            broker.publish_filtered(stream, part)


def read(
    client: RabbitClient,
    stream: str,
    condition: str,
    end: int | str = COUNT - 1,
    start: Earliest | At | After = EARLIEST,
    columns: Sequence[str] = ("value", "offset"),
    loss: bool = True,
    **limits: int,
) -> pa.Table:
    end = end if isinstance(end, str) else text(end)
    asked = RangeRead(stream, stream, start, end, tuple(columns), fail_on_data_loss=loss, filter=parse(condition))
    batches = list(client.fetch(asked, **limits))
    assert all(batch.num_rows and batch.schema.names == list(columns) for batch in batches)
    return pa.Table.from_batches(batches) if batches else pa.table({c: [] for c in columns})


Wanted = Callable[[int], bool]
CONDITIONS: list[tuple[str, Wanted]] = [
    ("color = 'red'", lambda n: color_of(n) == "red"),
    ("application_properties.color IN ('red', 'blue')", lambda n: color_of(n) in ("red", "blue")),
    ("color = 'red' AND offset >= 800", lambda n: color_of(n) == "red" and n >= 800),
    ("color = 'red' AND body_size > 30", lambda n: color_of(n) == "red" and len(body_of(n)) > 30),
    ("color = 'red' OR body_size > 40", lambda n: color_of(n) == "red" or len(body_of(n)) > 40),
    ("color = 'red' AND color = 'blue'", lambda n: False),
    ("color IS NULL", lambda n: color_of(n) is None),
    ("NOT color = 'green'", lambda n: color_of(n) not in ("green", None)),
    ("offset > 1100 AND offset < 1105", lambda n: 1100 < n < 1105),
    ("offset < 5 OR offset > 1195", lambda n: n < 5 or n > 1195),
    ("color LIKE '%e%' AND offset BETWEEN 7 AND 9", lambda n: 7 <= n <= 9 and "e" in (color_of(n) or "")),
    ("color = 'violet'", lambda n: False),
    ("publish_time > 0", lambda n: True),
    ("key = 'none'", lambda n: False),
    ("color > 5", lambda n: False),
]


@pytest.mark.parametrize("place", [None, COLOR], ids=["no-values", "values"])
def test_rows_that_match(broker: Broker, place: FilterValues | None) -> None:
    with broker.stream() as stream, broker.client(filters=place) as client:
        fill(broker, stream)
        assert latest(client, stream) == text(COUNT - 1)
        for condition, wanted in CONDITIONS:
            numbers = [n for n in range(COUNT) if wanted(n)]
            found = read(client, stream, condition)
            assert found["value"].to_pylist() == [body_of(n) for n in numbers], condition
            assert found["offset"].to_pylist() == [text(n) for n in numbers], condition
            part = read(client, stream, condition, 1_101, At(text(310)), ("offset",), max_rows=50)
            assert part["offset"].to_pylist() == [text(n) for n in numbers if 310 <= n <= 1_101], condition


def test_columns_of_rows_that_match(broker: Broker) -> None:
    """What the filter looks at, and what it does not, come with and without being asked for."""
    columns = ("offset", "timestamp", "partition", "application_properties", "value", "message")
    with broker.stream() as stream, broker.client(filters=COLOR) as client:
        fill(broker, stream)
        whole = read(client, stream, "offset >= 0", columns=columns)
        assert whole.num_rows == COUNT
        for condition, wanted in CONDITIONS[:4]:
            rows = pa.array([n for n in range(COUNT) if wanted(n)])
            assert read(client, stream, condition, columns=columns).equals(whole.take(rows))
            assert read(client, stream, condition, columns=("value",)).equals(whole.take(rows).select(["value"]))


def test_filter_values_and_a_filter_are_both_asked_for(broker: Broker) -> None:
    red_or_blue = FilterValues(("red", "blue"), False, "application_properties.color")
    or_none = FilterValues(("red",), True, "application_properties.color")
    with broker.stream() as stream:
        fill(broker, stream)
        with broker.client(filters=red_or_blue) as client:
            found = read(client, stream, "color IN ('blue', 'green') AND offset < 100")
            assert found["offset"].to_pylist() == [text(n) for n in range(3, 100, 4)]
            assert read(client, stream, "color = 'green'").num_rows == 0
        with broker.client(filters=or_none) as client:
            found = read(client, stream, "offset < 100")
            assert found["offset"].to_pylist() == [text(n) for n in range(100) if n % 4 in (0, 2)]
            assert read(client, stream, "color IS NULL").num_rows == COUNT // 6


def test_messages_without_a_filter_value_that_match_all_the_same(broker: Broker) -> None:
    """Published by somebody who gave none: a broker that filters leaves them out, unless they are asked for too."""
    asked = FilterValues((), True, "application_properties.color")
    with broker.stream() as stream:
        broker.publish(stream, [amqp(b"%d" % n, "red") for n in range(50)])
        if not broker.is_old:
            broker.publish_filtered(stream, [("red", amqp(b"50", "red"))])
        with broker.client(filters=asked) as client:
            end = latest(client, stream)
            assert read(client, stream, "color = 'red'", end).num_rows == int(end) + 1
            assert read(client, stream, "color = 'green'", end).num_rows == 0


def test_sub_batches_and_messages_that_are_not_amqp(broker: Broker) -> None:
    inner = b"".join(struct.pack(">I", len(m)) + m for m in (amqp(b"%d" % n, COLORS[n % 4]) for n in range(100)))
    with broker.stream() as stream, broker.client() as client:
        with broker.peer() as peer:
            peer.declare(1, stream)
            peer.publish(1, [sub_batch(1, 1, 100, len(inner), gzip.compress(inner))])
            peer.confirmed(1)
        broker.publish(stream, [b"plain text", b"", b"\xff\xff", amqp(b"last", "red")])
        assert read(client, stream, "color = 'red'", 103)["value"].to_pylist() == [
            *(b"%d" % n for n in range(0, 100, 4)),
            b"last",
        ]
        assert read(client, stream, "color IS NULL AND offset >= 100", 103)["value"].to_pylist() == [
            b"plain text", None, b"\xff\xff",
        ]  # fmt: skip
        assert read(client, stream, "body_size IS NULL", 103)["offset"].to_pylist() == [text(101)]


def test_connections_that_break_lose_and_repeat_nothing(broker: Broker) -> None:
    port = broker.endpoint.port
    with broker.stream() as stream:
        fill(broker, stream, each=20)
        cuts = [700 + 311 * n for n in range(10)]
        with TcpProxy(port, cuts) as proxy, broker.client(proxy.port, filters=COLOR) as client:
            for condition, wanted in (CONDITIONS[1], CONDITIONS[4]):
                found = read(client, stream, condition, max_rows=20)
                assert found["value"].to_pylist() == [body_of(n) for n in range(COUNT) if wanted(n)]
            assert proxy.connections > 3


def test_what_is_not_there_in_time_is_a_loss_and_no_end(broker: Broker) -> None:
    with broker.stream() as stream, broker.client(timeout_ms=2_000, filters=COLOR) as client:
        broker.publish(stream, [amqp(b"0", "red"), amqp(b"1", "green")])
        # How long the client waits is the same on every broker.
        conditions = ("color = 'violet'", "body_size = 9", "offset > 1")
        for condition in conditions if broker.kind == "door" else conditions[:1]:
            with pytest.raises(PositionLost, match=r"its last offset is '0{19}1'"):
                read(client, stream, condition, 50)
        assert read(client, stream, conditions[0], 50, loss=False).num_rows == 0


def test_what_retention_has_removed_is_a_loss_whatever_the_filter() -> None:
    retained(first_told=10)


def test_what_the_broker_has_removed_and_does_not_tell_yet_is_the_same_loss() -> None:
    """Brokers look at their first offset only now and then: until then they tell of chunks that are gone."""
    retained(first_told=0)


def retained(first_told: int) -> None:
    """Read a stream that begins at 10, of which the broker says that it begins at ``first_told``."""
    chunks = Chunks(deliver(10, [amqp(b"10", "red"), amqp(b"11", "green")]))
    for condition, start, lost in (
        ("color = 'red'", At(text(0)), True),
        ("offset > 3", At(text(0)), True),
        ("offset >= 10", At(text(0)), True),
        ("offset >= 11", After(text(8)), True),
        ("offset > 11", After(text(8)), True),
        ("offset >= 10", After(text(9)), False),
        ("offset >= 10", EARLIEST, False),
        ("offset > 3", EARLIEST, False),
        ("color = 'red'", EARLIEST, False),
    ):
        with Scripted(chunks.script(11, first_told)) as broker, broker.client() as client:
            if lost:
                with pytest.raises(PositionLost, match=r"but the next offset there is '0+10'"):
                    read(client, "s", condition, 11, start)
                wanted = {"offset >= 11": [b"11"], "offset > 11": [], "color = 'red'": [b"10"]}
                found = read(client, "s", condition, 11, start, loss=False)
                assert found["value"].to_pylist() == wanted.get(condition, [b"10", b"11"])
            else:
                found = read(client, "s", condition, 11, start)
                assert found["value"].to_pylist() == ([b"10"] if "red" in condition else [b"10", b"11"])


def test_a_lower_bound_of_the_offset_is_where_reading_starts() -> None:
    chunks = Chunks(*(deliver(n, [b"%d" % n, b"%d" % (n + 1)]) for n in range(0, 20, 2)))
    for condition, start, asked in (
        ("offset >= 7", EARLIEST, 7),
        ("offset > 7 AND body_size = 1", At(text(2)), 8),
        ("offset IN (9, 13)", EARLIEST, 9),
        ("offset >= 3", At(text(5)), 5),
        ("offset >= 3 OR body_size = 1", At(text(2)), 2),
    ):
        with Scripted(chunks.script(19)) as broker, broker.client() as client:
            found = read(client, "s", condition, 19, start)["offset"].to_pylist()
            positions = [body[4:] for kind, body in broker.seen if kind == key.SUBSCRIBE]
            # One with a property asks for a single chunk, whether the range's first offset is still there.
            (position,) = [each for each in positions if len(each) == len(key.offset(0)) + 2]
            assert position == key.offset(asked) + struct.pack(">H", 10), condition
            low = max(asked, 0)
            wanted = {"offset IN (9, 13)": [9, 13], "offset > 7 AND body_size = 1": [8, 9]}
            assert found == [text(n) for n in wanted.get(condition, range(low, 20))], condition


def test_a_bound_below_what_is_retained_or_beyond_the_range() -> None:
    chunks = Chunks(deliver(10, [b"10", b"11"]))
    with Scripted(chunks.script(11, 10)) as broker, broker.client() as client:
        assert read(client, "s", "offset >= 5", 11)["value"].to_pylist() == [b"10", b"11"]
        assert key.offset(5) not in b"".join(body for kind, body in broker.seen if kind == key.SUBSCRIBE)
        broker.seen.clear()
        assert read(client, "s", "offset > 11", 11).num_rows == 0
        assert [kind for kind, _ in broker.seen if kind == key.SUBSCRIBE] == []


def test_what_is_asked_of_the_broker() -> None:
    def properties(condition: str, filters: FilterValues | None) -> bytes:
        with Scripted(Chunks(deliver(0, [b"x"])).script(0)) as broker:
            with RabbitClient(broker.endpoint, timeout_ms=120_000, filters=filters) as client:
                read(client, "s", condition, 0)
            # Behind id, name, position (of type first) and credit.
            return next(body for kind, body in broker.seen if kind == key.SUBSCRIBE)[8:]

    def pairs(values: Sequence[str], unfiltered: str = "false") -> bytes:
        asked = {f"filter.{n}": value for n, value in enumerate(values)}
        return key.pairs({**asked, "match-unfiltered": unfiltered, "x-opt-selections": "true"})

    nothing = b""
    own = FilterValues(("red", "blue"), False, "application_properties.color")
    assert properties("color = 'red'", None) == nothing
    assert properties("color = 'red'", COLOR) == pairs(["red"])
    assert properties("[application_properties.color] IN ('a', 'é')", COLOR) == pairs(["a", "é"])
    assert properties("color = 'red' AND body_size > 3", COLOR) == pairs(["red"])
    assert properties("color = 'red' OR color = 'blue' AND body_size > 3", COLOR) == pairs(["red", "blue"])
    assert properties("color = 'red'", FilterValues((), True, COLOR.taken_from)) == pairs(["red"], "true")
    assert properties("key = 'red'", FilterValues((), False, "key")) == pairs(["red"])
    assert properties("properties.subject = 'red'", FilterValues((), False, "properties.subject")) == pairs(["red"])
    for condition in ("color <> 'red'", "color = 'red' OR body_size > 3", "color = 5", "color = ''", "key = 'red'"):
        assert properties(condition, COLOR) == nothing, condition
        assert properties(condition, own) == pairs(["red", "blue"]), condition
    assert properties("color IN ('blue', 'green')", own) == pairs(["blue"])
    assert properties("color = 'green'", own) == pairs(["red", "blue"])  # no row, whatever is sent


def test_only_what_the_filter_needs_is_decoded_of_rows_that_fail(door: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[tuple[str, ...], int]] = []
    original = rows_module.decode_columns

    def counted(block: Any, names: Any, **how: Any) -> Any:
        decoded.append((tuple(names), len(block.starts)))
        return original(block, names, **how)

    monkeypatch.setattr(rows_module, "decode_columns", counted)
    columns = ("value", "message", "properties", "application_properties")
    with door.stream() as stream, door.client() as client:
        fill(door, stream)
        assert read(client, stream, "color = 'violet'", columns=columns).num_rows == 0
        assert {names for names, _ in decoded} == {("application_properties",)}
        decoded.clear()
        assert read(client, stream, "offset BETWEEN 100 AND 102", columns=columns).num_rows == 3
        assert decoded == [(columns, 3)]


def test_what_messages_cannot_have_is_refused_before_anything_is_read() -> None:
    # The language refuses it, so it is a tree that was made by hand.
    wanted = Predicate(property_of("properties.user_id"), Operator.EQUALS, ("x",), ValueType.STRING)
    with Scripted() as broker, broker.client() as client, pytest.raises(FilterError, match="user_id"):
        client.fetch(RangeRead("s", "s", EARLIEST, text(9), ("value",), filter=wanted))
    assert broker.connections == 0


@pytest.mark.parametrize("place", [None, COLOR], ids=["no-values", "values"])
def test_the_first_match(broker: Broker, place: FilterValues | None) -> None:
    with broker.stream() as stream, broker.client(filters=place) as client:
        assert client.first_matching(stream, stream, parse("offset >= 0")) is None  # it is empty
        fill(broker, stream)
        assert latest(client, stream) == text(COUNT - 1)
        for condition, wanted in CONDITIONS:
            first = next((n for n in range(COUNT) if wanted(n)), None)
            expected = None if first is None else text(first)
            assert client.first_matching(stream, stream, parse(condition)) == expected, condition


def test_the_first_match_is_not_narrowed_by_filter_values(door: Broker) -> None:
    filters = FilterValues(("blue",), False, "application_properties.color")
    with door.stream() as stream, door.client(filters=filters) as client:
        fill(door, stream)
        assert client.first_matching(stream, stream, parse("color = 'green'")) == text(1)


def test_bytes_on_the_wire(door: Broker) -> None:
    """One in a hundred, in stored batches that mix them all; and a search that stops at what it finds."""
    count = 100_000
    messages = [("rare" if n % 100 == 37 else "often", n) for n in range(count)]
    port = door.endpoint.port

    def received(read_all: Callable[[RabbitClient], object], filters: FilterValues | None) -> int:
        with TcpProxy(port) as proxy:
            with door.client(proxy.port, filters=filters) as client:
                read_all(client)
            return proxy.from_server

    with door.stream() as stream:
        for first in range(0, count, 2_000):
            part = messages[first : first + 2_000]
            door.publish_filtered(stream, [(color, amqp(b"%06d" % n * 20, color)) for color, n in part])

        def rows(client: RabbitClient, condition: str) -> int:
            return read(client, stream, condition, count - 1).num_rows

        whole = received(lambda client: rows(client, "offset >= 0"), None)
        assert whole > count * 120
        filtered: list[int] = []
        pushed = received(lambda client: filtered.append(rows(client, "color = 'rare'")), COLOR)
        assert filtered == [count // 100]
        assert pushed < 0.02 * whole
        residual = received(lambda client: filtered.append(rows(client, "color = 'rare'")), None)
        assert filtered[1:] == filtered[:1]
        assert residual > 0.99 * whole
        late = received(lambda client: rows(client, f"offset >= {count - 100}"), None)
        assert late < 0.1 * whole  # the stored batch that it lies in
        expression = parse("color = 'rare' AND offset > 50")
        found: list[str | None] = []
        search = received(lambda client: found.append(client.first_matching(stream, stream, expression)), COLOR)
        scan = received(lambda client: found.append(client.first_matching(stream, stream, expression)), None)
        assert found == [text(137)] * 2
        assert search < 0.02 * whole
        assert scan < 0.75 * whole


def test_what_becomes_of_a_filter_is_told(broker: Broker) -> None:
    expression = parse("color = 'red' AND offset >= 100 AND body_size > 3")
    with broker.stream() as stream, broker.client(filters=COLOR) as client:
        told = client.pushdown(stream, expression)
        assert told.pushed is not None
        assert "100" in told.pushed
        assert ("red" in told.pushed) == (not broker.is_old)
        assert told.residual == parse("color = 'red' AND body_size > 3")
        nothing = client.pushdown(stream, parse("body_size > 3"))
        assert (nothing.pushed, nothing.residual) == (None, parse("body_size > 3"))
        bound = client.pushdown(stream, parse("offset >= 7"))
        assert bound.residual is None


@pytest.mark.parametrize(("version", "words"), [(1, "starting offset 7"), (2, "starting offset 7; filter values 'k'")])
def test_a_broker_that_does_not_take_filter_values_is_told_none(version: int, words: str) -> None:
    broker: Any = SimpleNamespace(
        _filters=FilterValues((), False, "key"),
        _cluster=SimpleNamespace(
            any=lambda: SimpleNamespace(versions={PUBLISH_KEY: version}), retrying=lambda ask: ask()
        ),
    )
    assert RabbitClient.pushdown(broker, "s", parse("key = 'k' AND offset >= 7")).pushed == words
