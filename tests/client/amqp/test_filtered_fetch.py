"""AmqpClient with a filter: what it asks of a peer, what it checks itself, and that the rows are the same."""

from __future__ import annotations

import itertools
import logging
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.endpoint import Endpoint, Secret
from spark_streams.errors import DeadlineExceeded, FilterError, PositionLost, RemoteProtocolError
from spark_streams.filters.describe import to_text
from spark_streams.filters.row_columns import rows_that_match, wanted_columns
from spark_streams.filters.text import parse
from spark_streams.filters.tree import Expression, Operator, Predicate, ValueType, property_of
from spark_streams.log import ReferenceLog, StreamConfig
from spark_streams.position import EARLIEST, After, At
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.server import AmqpConfig, ServerThread
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.values import Char, Float, Symbol, Timestamp, UInt, ULong
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.examples import examples
from tests.faults.proxy import TcpProxy
from tests.filters.trees import joins, predicates
from tests.wire.amqp.messages import Data, Message, encode_message

COLUMNS = ("offset", "value")
NAMES = ("kind", "number", "a long name", "x.y")
VALUES: list[Any] = [
    *("order", "refund", "", "5", "-5", "5.0", "eu-west", "it's", "a_b", "100%", "ä", "\U0001f600", "true", "[1]"),
    *(5, -5, 0, 2**53 + 1, ULong(2**64 - 1), Timestamp(5), 5.0, 0.1, Float(0.1), 1e300, float("nan"), True, False),
    *(None, b"order", b"\xff", uuid.UUID(int=5), Char("5"), Symbol("order"), [1, "order"], {"a": 1}),
]


def message(n: int, values: list[Any] = VALUES) -> bytes:
    """Event n: every type at every name, in steps that share no factor."""
    properties: list[Any] = [None] * 13
    if n % 3:
        properties[0] = [ULong(n), f"id-{n}", uuid.UUID(int=n), b"%d" % n][n % 4]
        properties[3] = [None, "eu-west", "eu-east", "us"][n % 4]
        properties[9] = [None, Timestamp(n), Timestamp(0), Timestamp(-n)][n % 5 % 4]
        properties[10] = [None, "group"][n % 2]
        properties[11] = UInt(n) if n % 7 else None
    application = {name: values[(n * step + 1) % len(values)] for name, step in zip(NAMES, (1, 3, 5, 7), strict=True)}
    annotations = {Symbol("x-opt-y"): values[n % len(values)]} if n % 4 == 0 else None
    return encode_message(
        Message(
            message_annotations=annotations,
            properties=properties if n % 3 else None,
            application_properties=application if n % 11 else None,
            body=Data((b"x" * (n % 5) + b"%d" % n,)),
        )
    )


class Served:
    """A served log with one stream of every type, and all its rows."""

    def __init__(self, folder: Path) -> None:
        self.log = ReferenceLog(folder)
        config = StreamConfig(timestamp_type="create")
        partition = self.log.create_stream("mixed", 1, config).partitions["0"]
        times = [(n * 37) % 500 - 100 for n in range(300)]
        partition.append([message(n) for n in range(300)], None, times)
        self.thread = ServerThread(self.log, AmqpConfig(port=0))
        self.thread.__enter__()
        self.port = int(self.thread.urls["amqp"].rpartition(":")[2])
        self.client = client(self.port)
        end = self.client.describe("mixed").partitions["0"].latest
        assert end is not None
        self.end = end
        read = RangeRead("mixed", "0", EARLIEST, end, tuple(FULL_MESSAGE_SCHEMA.names))
        self.rows = pa.Table.from_batches(self.client.fetch(read)).combine_chunks().to_batches()[0]

    def close(self) -> None:
        self.client.close()
        self.thread.__exit__(None, None, None)
        self.log.close()

    def expected(self, expression: Expression) -> list[str]:
        """The offsets of the rows of which an expression is true, by the evaluation in columns alone."""
        batch = self.rows.select(list(wanted_columns(COLUMNS, expression)))
        return list(rows_that_match(batch, expression, COLUMNS).column("offset").to_pylist())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("mixed"))
    yield served
    served.close()


def client(port: int, timeout_ms: int = 120_000) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port, "guest", Secret("guest")), timeout_ms=timeout_ms)


def anonymous(port: int, timeout_ms: int = 120_000) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port), timeout_ms=timeout_ms)


def offsets(reader: AmqpClient, read: RangeRead, **more: int) -> list[str]:
    found: list[str] = []
    for batch in reader.fetch(read, **more):
        assert batch.num_rows and batch.schema.names == list(read.columns)
        found += batch.column("offset").to_pylist()
    return found


def filtered(expression: Expression | str, end: str, start: Any = EARLIEST, **more: Any) -> RangeRead:
    expression = parse(expression) if isinstance(expression, str) else expression
    stream = more.pop("stream", "mixed")
    return RangeRead(stream, "0", start, end, COLUMNS, filter=expression, **more)


TEXTS = [
    "kind = 'order'",
    "kind <> 'order'",
    "kind IS NULL",
    "kind = 5",
    "kind = '5'",
    "kind >= 0.1",
    "kind = 0.1",
    "kind IN ('order', 'true', '5')",
    "kind NOT IN ('order', 'true', '5')",
    "[a long name] LIKE 'eu-%'",
    "[a long name] LIKE '%e_'",
    "[a long name] NOT LIKE '%5%'",
    "NOT (kind = 'order' OR number > 3)",
    "properties.subject = 'eu-west' AND publish_time >= 0",
    "properties.subject IS NOT NULL AND key IS NULL",
    "properties.message_id = '5'",
    "properties.group_sequence BETWEEN 10 AND 20",
    "event_time > 100",
    "publish_time BETWEEN -5 AND 5",
    "[message_annotations.x-opt-y] = 'order'",
    "kind CONTAINS ANY ('order', '1')",
    "body_size > 6",
    "key = 'group'",
    "partition = '0' AND kind = 'order'",
    "partition = '1'",
    "kind = 'order' AND kind = 'refund'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_rows_are_those_of_the_whole_filter(served: Served, text: str) -> None:
    assert offsets(served.client, filtered(text, served.end)) == served.expected(parse(text))


def about(names: tuple[str, ...]) -> st.SearchStrategy[Predicate]:
    """Predicates about the names and with the values that there are."""
    strings = st.sampled_from([v for v in VALUES if isinstance(v, str)] + ["or%", "%", "_", "o", "6"])
    numbers = st.sampled_from([5, -5, 0, 6, 2**53 + 1])
    doubles = st.sampled_from([5.0, 0.1, -0.5, 1e300])
    operators = [Operator.EQUALS, Operator.NOT_EQUALS, Operator.LESS_THAN, Operator.GREATER_THAN_EQUALS]
    lists = st.sampled_from([Operator.IN, Operator.NOT_IN])
    reference = st.sampled_from(names).map(property_of)
    likes = st.sampled_from([Operator.LIKE, Operator.NOT_LIKE])
    nulls = st.sampled_from([Operator.IS_NULL, Operator.IS_NOT_NULL])
    typed = [(strings, ValueType.STRING), (numbers, ValueType.LONG), (doubles, ValueType.DOUBLE)]
    return st.one_of(
        *(
            st.builds(Predicate, reference, st.sampled_from(operators), st.tuples(values), st.just(kind))
            for values, kind in typed
        ),
        *(
            st.builds(Predicate, reference, lists, st.lists(values, min_size=1, max_size=3).map(tuple), st.just(kind))
            for values, kind in typed
        ),
        st.builds(Predicate, reference, likes, st.tuples(strings), st.just(ValueType.STRING)),
        st.builds(Predicate, reference, nulls),
    )


PLACES = (*NAMES, "properties.subject", "properties.message_id", "properties.group_sequence", "absent")
trees = st.recursive(about(PLACES) | predicates(), joins, max_leaves=5)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expression=trees)
def test_any_filter_gives_the_rows_of_the_whole_filter(served: Served, expression: Expression) -> None:
    try:
        expected = served.expected(expression)
    except FilterError:
        with pytest.raises(FilterError):
            offsets(served.client, filtered(expression, served.end))
        return
    assert offsets(served.client, filtered(expression, served.end)) == expected


@pytest.mark.parametrize("max_rows", [1, 7, 1_000])
def test_a_range_is_filtered_within_its_bounds(served: Served, max_rows: int) -> None:
    every = served.rows.column("offset").to_pylist()
    for low, high in [(0, 299), (10, 20), (250, 250), (299, 299), (3, 2)]:
        for start, first in [(At(every[low]), low), (After(every[low]), low + 1)]:
            wanted = [o for o in served.expected(parse("kind IS NOT NULL")) if every[first:] and o >= every[first]]
            found = offsets(served.client, filtered("kind IS NOT NULL", every[high], start), max_rows=max_rows)
            assert found == [o for o in wanted if o <= every[high]]


def test_columns_that_only_the_filter_needs_are_not_in_the_rows(served: Served) -> None:
    expression = parse("kind LIKE 'o_der' AND body_size > 2 AND key = 'group'")
    read = RangeRead("mixed", "0", EARLIEST, served.end, (), filter=expression)
    batches = list(served.client.fetch(read))
    assert sum(batch.num_rows for batch in batches) == len(served.expected(expression)) > 0
    assert {batch.num_columns for batch in batches} == {0}


def test_the_first_matching_event_is_found(served: Served) -> None:
    for text in TEXTS:
        expected = served.expected(parse(text))
        assert served.client.first_matching("mixed", "0", parse(text)) == (expected[0] if expected else None)
    assert served.client.first_matching("mixed", "nope", parse("kind = 'order'")) is None
    served.log.create_stream("empty", 1, exist_ok=True)
    assert served.client.first_matching("empty", "0", parse("kind IS NULL")) is None


def test_an_inclusive_start_that_the_filter_leaves_out_is_no_loss(served: Served) -> None:
    every = served.rows.column("offset").to_pylist()
    text = "kind = 'order'"
    matching = served.expected(parse(text))
    for start in (every[1], every[298], matching[0]):
        read = filtered(text, served.end, At(start))
        assert offsets(served.client, read) == [o for o in matching if o >= start]
    assert every[1] not in matching and every[298] not in matching


def test_what_is_pushed_is_told_in_the_peers_words(served: Served) -> None:
    told = served.client.pushdown("mixed", parse("kind = 'order' AND publish_time > 5 AND body_size > 3"))
    assert told.pushed is not None and "'order'" in told.pushed and "5" in told.pushed
    assert told.residual is not None and "body_size" in to_text(told.residual)
    none = served.client.pushdown("mixed", parse("body_size > 3"))
    assert (none.pushed, none.residual) == (None, parse("body_size > 3"))


def test_a_filter_on_what_messages_do_not_have_is_an_error_at_once() -> None:
    with client(1) as reader, pytest.raises(FilterError):
        list(reader.fetch(filtered("[properties.user_id] = 'x'", "9")))


# --- peers that do not take filters


def numbered(count: int) -> list[tuple[str, bytes]]:
    return [(f"{n:05d}", b"x" * (n % 10)) for n in range(count)]


PUSHABLE = "kind IS NULL AND body_size > 7"
"""True of two of ten events of the fake peer; its first part would be pushed."""


def expected_of(log: list[tuple[str, bytes]]) -> list[str]:
    return [offset for offset, body in log if len(body) > 7]


def attaches(peer: FakePeer) -> list[dict[str, Any]]:
    return [each["filters"] for each in peer.attached if each["address"] == "orders"]


@pytest.mark.parametrize("echoed", [{"start"}, {"start", "end"}, {"start", "bounds"}])
def test_a_peer_that_leaves_out_filters_gets_nothing_taken_for_granted(echoed: set[str]) -> None:
    log = numbered(50)
    text = f"{PUSHABLE} AND publish_time >= 0 AND offset > '00010'"
    script = Script(events=log, full_sql=True, echo_names=frozenset(echoed))
    with FakePeer(script) as peer, anonymous(peer.port) as reader:
        read = filtered(text, log[-1][0], stream="orders")
        assert offsets(reader, read) == [o for o in expected_of(log) if o > "00010"]
        (sent,) = attaches(peer)
        assert {"start", "end", "bounds", "sql-filter"} <= set(sent)
        for asked in (parse(text), parse("kind = 'order' AND kind IS NOT NULL"), parse("kind IS NULL")):
            told = reader.pushdown("orders", asked)
            assert (told.pushed, told.residual) == (None, asked)
        assert reader.first_matching("orders", "0", parse(text)) == "00018"


def test_a_peer_that_echoes_nothing_is_an_error_as_without_a_filter() -> None:
    log = numbered(5)
    with (
        FakePeer(Script(events=log, full_sql=True, echo=False)) as peer,
        anonymous(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match="did not take the filter that says where to start"),
    ):
        offsets(reader, filtered(PUSHABLE, log[-1][0], stream="orders"))


def test_a_peer_that_offers_no_sql_is_not_asked_for_it() -> None:
    log = numbered(30)
    with FakePeer(Script(events=log)) as peer, anonymous(peer.port) as reader:
        assert offsets(reader, filtered(PUSHABLE, log[-1][0], stream="orders")) == expected_of(log)
        assert [set(sent) for sent in attaches(peer)] == [{"start"}]


@pytest.mark.parametrize("condition", ["amqp:invalid-field", "amqp:not-implemented"])
def test_a_peer_that_refuses_a_filter_is_read_without(condition: str, caplog: pytest.LogCaptureFixture) -> None:
    log = numbered(30)
    script = Script(events=log, full_sql=True, refuse_filters=(condition, "no such thing"))
    with FakePeer(script) as peer, anonymous(peer.port) as reader:
        for _ in range(2):
            assert offsets(reader, filtered(PUSHABLE, log[-1][0], stream="orders")) == expected_of(log)
        assert [len(sent) for sent in attaches(peer)] == [3, 1, 1]  # it is not asked again
    assert [r.message for r in caplog.records if "without asking the peer to filter" in r.message] != []


# --- the end of a range, when the event there does not come


def test_a_peer_that_takes_long_to_find_nothing_gets_its_time() -> None:
    script = Script(events=numbered(3), full_sql=True, latest="00009", answers_drain=False)
    with FakePeer(script) as peer, anonymous(peer.port, timeout_ms=3_000) as reader:
        timer = threading.Timer(7, lambda: setattr(script, "answers_drain", True))
        timer.start()
        assert offsets(reader, filtered("kind IS NULL", "00009", After("00002"), stream="orders")) == []
        timer.join()
        assert peer.drains >= 1


def test_its_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_streams.client.amqp.range_reader._MAX_EXTENSIONS", 2)
    script = Script(events=numbered(3), full_sql=True, latest="00009", answers_drain=False)
    with (
        FakePeer(script) as peer,
        anonymous(peer.port, timeout_ms=3_000) as reader,
        pytest.raises(DeadlineExceeded, match="no answer to drain"),
    ):
        offsets(reader, filtered("kind IS NULL", "00009", After("00002"), stream="orders"))


def test_a_peer_that_does_not_answer_about_itself_either_is_given_up() -> None:
    script = Script(events=numbered(3), full_sql=True, latest="00009", answers_drain=False, answers_info=False)
    with (
        FakePeer(script) as peer,
        anonymous(peer.port, timeout_ms=300) as reader,
        pytest.raises(DeadlineExceeded),
    ):
        offsets(reader, filtered("kind IS NULL", "00009", After("00002"), stream="orders"))


def test_a_peer_that_has_the_end_and_nothing_that_matches_is_believed() -> None:
    log = numbered(3)
    with FakePeer(Script(events=log, full_sql=True, latest="00009")) as peer, anonymous(peer.port) as reader:
        assert offsets(reader, filtered("kind IS NULL", "00009", After("00002"), stream="orders")) == []
        (sent,) = attaches(peer)
        assert sent["end"] == "d.event-streams-offset <= '00009'"


def test_a_peer_whose_log_ends_before_the_range_has_lost_events() -> None:
    log = numbered(3)
    with (
        FakePeer(Script(events=log, full_sql=True)) as peer,
        anonymous(peer.port) as reader,
        pytest.raises(PositionLost, match="from '00000' to '00002'"),
    ):
        offsets(reader, filtered("kind IS NULL", "00009", After("00002"), stream="orders"))


@pytest.mark.parametrize("text", ["kind = 'none'", "kind = 'k7'", "kind IS NOT NULL"])
def test_what_retention_removed_from_a_filtered_range_is_a_loss(
    log_server: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = StreamConfig(segment_max_bytes=20_000, retention_max_bytes=60_000)
    partition = log_server.log.create_stream("orders", 1, config).partitions["0"]
    with client(int(log_server.urls["amqp"].rpartition(":")[2])) as there:
        fill(partition, 500)
        before = there.offsets("orders", "0", EARLIEST, None).take(10_000)
        for _ in range(10):
            fill(partition, 500)
        log_server.call(log_server.log.enforce_retention)
        bounds = there.describe("orders").partitions["0"]
        assert bounds.truncated is not None and bounds.truncated > before[5] and bounds.latest is not None
        read = filtered(text, bounds.latest, After(before[5]), stream="orders")
        with pytest.raises(PositionLost, match="failOnDataLoss"):
            offsets(there, read)
        kept = filtered(text, bounds.latest, After(before[5]), stream="orders", fail_on_data_loss=False)
        with caplog.at_level(logging.WARNING):
            found = offsets(there, kept)
        assert len([r for r in caplog.records if "failOnDataLoss is false" in r.message]) == 1
        assert all(offset > bounds.truncated for offset in found)
        # A whole partition begins wherever it begins by now.
        assert offsets(there, filtered(text, bounds.latest, EARLIEST, stream="orders")) == found
        # Behind what was removed nothing is lost, and where all is removed everything is.
        assert offsets(there, filtered(text, bounds.latest, After(bounds.truncated), stream="orders")) == found
        with pytest.raises(PositionLost):
            offsets(there, filtered(text, before[9], After(before[5]), stream="orders"))


def fill(partition: Any, count: int, body: int = 100) -> None:
    kinds = [[("kind", f"k{n % 100}")] for n in range(count)]
    columns = {
        "value": pa.array([b"%06d" % n + b"x" * body for n in range(count)], pa.binary()),
        "application_properties": pa.array(kinds, pa.map_(pa.string(), pa.string())),
    }
    partition.append(encode_columns(columns))


def test_bytes_fall_in_proportion(log_server: Any) -> None:
    partition = log_server.log.create_stream("orders", 1).partitions["0"]
    fill(partition, 20_000)
    port = int(log_server.urls["amqp"].rpartition(":")[2])
    sizes: dict[str | None, int] = {}
    for text, count in ((None, 20_000), ("kind = 'k7'", 200), ("kind IN ('k1', 'k2', 'k3')", 600), ("kind = 'no'", 0)):
        with TcpProxy(port) as proxy, client(proxy.port) as reader:
            end = reader.describe("orders").partitions["0"].latest
            assert end is not None
            read = RangeRead("orders", "0", EARLIEST, end, COLUMNS, filter=parse(text) if text else None)
            assert len(offsets(reader, read)) == count
            sizes[text] = proxy.from_server
    full = sizes[None]
    assert full > 20_000 * 100
    assert sizes["kind = 'k7'"] < full * 0.01 + 4_000
    assert sizes["kind IN ('k1', 'k2', 'k3')"] < full * 0.03 + 4_000
    assert sizes["kind = 'no'"] < 4_000


def test_a_cut_connection_in_mid_fetch_gives_exactly_the_same_rows(log_server: Any) -> None:
    partition = log_server.log.create_stream("orders", 1).partitions["0"]
    fill(partition, 20_000)
    port = int(log_server.urls["amqp"].rpartition(":")[2])
    with client(port) as there, TcpProxy(port, [400_000, 3_000, 300_000, 600]) as proxy:
        end = there.describe("orders").partitions["0"].latest
        assert end is not None
        text = "kind LIKE 'k_' OR kind > 'k4' AND body_size > 3"
        read = filtered(text, end, stream="orders")
        expected = offsets(there, read)
        assert 8_000 < len(expected) < 20_000
        with client(proxy.port) as reader:
            assert offsets(reader, read, max_rows=1_000) == expected
        assert proxy.connections == 5


def test_a_filter_is_split_anew_at_the_peer_that_comes_after_a_cut(tmp_path: Path) -> None:
    """The second container that a client reaches offers less than the first."""
    log = numbered(40)
    first = Script(
        events=log,
        full_sql=True,
        echo_names=frozenset({"start"}),
        detach_after=(20, ("amqp:connection:forced", "", {})),
    )
    with FakePeer(first) as peer, anonymous(peer.port) as reader:
        batches = reader.fetch(filtered(PUSHABLE, log[-1][0], stream="orders"), max_rows=4)
        rows = list(next(batches).column("offset").to_pylist())
        first.refuse_filters = ("amqp:invalid-field", "not any more")
        rows += itertools.chain.from_iterable(batch.column("offset").to_pylist() for batch in batches)
        assert rows == expected_of(log)


@pytest.mark.parametrize("overflow", ["fail", "null"])
def test_a_filter_compares_milliseconds_that_no_row_can_show(log_server: Any, overflow: str) -> None:
    config = StreamConfig(timestamp_type="create")
    partition = log_server.log.create_stream("far", 1, config).partitions["0"]
    body = bytes(encode_columns({"value": pa.array([b"x"], pa.binary())})[0].as_py())
    partition.append([body] * 3, None, [0, 2**62, 5])
    with client(int(log_server.urls["amqp"].rpartition(":")[2])) as there:
        end = there.describe("far").partitions["0"].latest
        assert end is not None
        wanted = {"publish_time >= 0": 3, "publish_time > 4": 2, "publish_time < 9": 2, "publish_time IS NOT NULL": 3}
        for text, count in wanted.items():
            read = filtered(text, end, stream="far", timestamp_overflow=overflow)
            read = RangeRead(**{**read.__dict__, "columns": ("offset",)})
            assert sum(batch.num_rows for batch in there.fetch(read)) == count
