"""What a look at a peer takes off it: nothing. Which looks settle what they receive, and with which outcome."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from proton import Delivery

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import queue_types
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.connections import Reached
from spark_streams.client.amqp.links import Binding, Link
from spark_streams.client.amqp.request_links import RequestLinks
from spark_streams.endpoint import Secret, parse_url
from spark_streams.errors import Refused, RemoteProtocolError, SparkStreamsError
from spark_streams.filters import read_filter
from spark_streams.position import EARLIEST, After
from spark_streams.wire.amqp.dialects import RABBITMQ
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.management import QUEUES
from spark_streams.wire.amqp.values import Described, ULong
from tests.client.amqp.fake_hub import HUB, FakeHub, Partition
from tests.client.amqp.fake_namespace import KEY, RULE
from tests.client.amqp.fake_node import FakeNode, Script, event, info
from tests.client.amqp.fake_rabbit import FakeRabbit, message
from tests.docs.pages import tables
from tests.e2e.rabbitmq.broker import numbers
from tests.e2e.rabbitmq.conftest import Real
from tests.faults.proxy import TcpProxy
from tests.real_rabbitmq.conftest import rabbitmq_amqp_url as rabbitmq_amqp_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

OFFSET = f"{3:020d}"
FILTER = read_filter("properties.subject = 's'")
Look = Callable[[AmqpClient, str, str], object]


def read(client: AmqpClient, stream: str, partition: str, end: str = OFFSET) -> list[dict[str, Any]]:
    rows = client.fetch(RangeRead(stream, partition, EARLIEST, end, ("offset", "value")))
    return [row for batch in rows for row in batch.to_pylist()]


def walk(client: AmqpClient, stream: str, partition: str) -> list[str]:
    with contextlib.closing(client.offsets(stream, partition, EARLIEST, OFFSET)) as offsets:
        return offsets.take(2)


LOOKS: dict[str, Look] = {
    "describe": lambda client, stream, partition: client.describe(stream),
    "remaining": lambda client, stream, partition: client.remaining(stream, {partition: After(OFFSET)}),
    "log_identity": lambda client, stream, partition: client.log_identity(stream, {partition: OFFSET}),
    "first_at_time": lambda client, stream, partition: client.first_at_time(stream, partition, 5),
    "first_matching": lambda client, stream, partition: client.first_matching(stream, partition, FILTER),
    "pushdown": lambda client, stream, partition: client.pushdown(stream, FILTER),
    "offsets": walk,
}
"""All by which the client learns something of a log; ``inspect``, ``tail``, ``copy`` and planning are made of them."""
ALL = {**LOOKS, "fetch": read}


def client_of(url: str, **more: Any) -> AmqpClient:
    return AmqpClient(parse_url(url), timeout_ms=120_000, **more)


# --- a real broker


class Queues(contextlib.AbstractContextManager["Queues"]):
    """Makes and counts queues of a real RabbitMQ, over AMQP 1.0."""

    def __init__(self, url: str, name: Callable[[str], str]) -> None:
        self._connection = Connection(parse_url(url), timeout_ms=120_000)
        self._links = RequestLinks(self._connection, QUEUES, paired=True)
        self._name, self._made = name, list[str]()

    def __exit__(self, *fault: object) -> None:
        for queue in self._made:
            self._ask("DELETE", f"/queues/{queue}", None)
        self._connection.close()

    def declare(self, kind: str, name: str = "", **arguments: str) -> str:
        queue = name or self._name(kind)
        given = {"x-queue-type": kind, **{key.replace("_", "-"): value for key, value in arguments.items()}}
        assert self._ask("PUT", f"/queues/{queue}", {"durable": True, "arguments": given})[0] == "201"
        self._made.append(queue)
        return queue

    def delete(self, queue: str) -> None:
        assert self._ask("DELETE", f"/queues/{queue}", None)[0] == "200"
        self._made.remove(queue)

    def count(self, queue: str) -> int:
        return int(self._ask("GET", f"/queues/{queue}", None)[1]["message_count"])

    def _ask(self, method: str, path: str, body: Any) -> tuple[str, Any]:
        def encoded(message_id: str, reply_to: str) -> bytes:
            sections = (0x73, [message_id, None, path, method, reply_to]), (0x77, body)
            return b"".join(encode_value(Described(ULong(code), value)) for code, value in sections)

        (answer,) = self._links.answers([encoded], "a queue")
        return answer.subject, answer.body


@pytest.fixture
def broker(rabbitmq_url: str) -> Iterator[Real]:
    with contextlib.closing(Real(rabbitmq_url)) as running:
        yield running


@pytest.fixture
def queues(broker: Real, rabbitmq_amqp_url: str) -> Iterator[Queues]:
    with Queues(rabbitmq_amqp_url, broker.name) as made:
        yield made


def fill(url: str, queue: str) -> None:
    with client_of(url) as client, contextlib.closing(client.publisher(queue)) as publisher:
        publisher.send(client.encode({"value": pa.array([b"m%d" % n for n in range(10)])}), str)
        publisher.flush()


def ten(queues: Queues, url: str, kind: str) -> tuple[str, str]:
    """Return a queue of ten messages, and the one for those that it drops."""
    dead = queues.declare("classic", "")
    arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    queue = queues.declare(kind, dead + "-" + kind, **arguments)
    fill(url, queue)
    return queue, dead


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_thirty_looks_at_a_queue_leave_its_messages(queues: Queues, rabbitmq_amqp_url: str, kind: str) -> None:
    queue, dead = ten(queues, rabbitmq_amqp_url, kind)
    words = rf"queue '{queue}' is a {kind} queue, not a stream: .*Name a stream"
    with client_of(rabbitmq_amqp_url) as client:
        for _ in range(4):
            for look in ALL.values():
                with pytest.raises(Refused, match=words):
                    look(client, queue, queue)
    assert (queues.count(queue), queues.count(dead)) == (10, 0)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_looks_that_are_cut_off_leave_them_too(queues: Queues, rabbitmq_amqp_url: str, kind: str) -> None:
    """Every connection ends a bit later in the look; quorum queues count what a lost connection had taken."""
    queue, dead = ten(queues, rabbitmq_amqp_url, kind)
    seen = set()
    with TcpProxy(urlsplit(rabbitmq_amqp_url).port, cuts=range(8, 2_000, 64)) as proxy:
        while proxy.connections < 32:
            with client_of(proxy.url(rabbitmq_amqp_url)) as client, pytest.raises(SparkStreamsError) as ended:
                client._connections.run(partial(described, client, queue))
            seen.add(type(ended.value))
    assert Refused in seen and len(seen) > 1
    assert (queues.count(queue), queues.count(dead)) == (10, 0)


def described(client: AmqpClient, stream: str, to: Reached) -> object:
    return client._inquiries(to).describe(to, stream)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_who_may_not_ask_releases_what_came(
    queues: Queues, rabbitmq_amqp_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quorum queue counts no release, but each connection that was lost with a message."""
    queue, dead = ten(queues, rabbitmq_amqp_url, kind)
    monkeypatch.setattr(queue_types, "_MANAGEMENT_SINCE", (99,))
    looks = [each for name, each in ALL.items() if name != "pushdown"]  # which asks for no message
    with client_of(rabbitmq_amqp_url) as client:
        for number in range(30):
            with pytest.raises(RemoteProtocolError, match=r"x-stream-offset annotation .* a queue keeps it"):
                looks[number % len(looks)](client, queue, queue)
    assert (queues.count(queue), queues.count(dead)) == (10, 0)


@pytest.mark.rabbitmq
def test_a_stream_that_was_made_again_as_a_queue(queues: Queues, broker: Real, rabbitmq_amqp_url: str) -> None:
    """What a connection knows of a queue may be out of date."""
    stream = queues.declare("stream")
    broker.publish(stream, numbers(0, 5))
    with client_of(rabbitmq_amqp_url) as client:
        assert len(read(client, stream, stream)) == 4
        queues.delete(stream)
        queues.declare("classic", stream)
        fill(rabbitmq_amqp_url, stream)
        with pytest.raises(RemoteProtocolError, match="x-stream-offset"):
            client.describe(stream)
        with pytest.raises(Refused, match="is a classic queue, not a stream"):
            client.describe(stream)
    assert queues.count(stream) == 10


# --- scripted peers


@pytest.fixture
def rabbit(request: pytest.FixtureRequest) -> Iterator[FakeRabbit]:
    with FakeRabbit(**request.param) as running:
        yield running


PLAIN = [message(n, None) for n in range(10)]
STREAM = [message(n, n) for n in range(4)]
STREAM_TYPE = ("200", {"name": "q", "type": "stream", "arguments": {}})


@pytest.mark.parametrize("look", ALL)
@pytest.mark.parametrize(
    "rabbit", [{"queue": PLAIN}, {"queue": PLAIN, "version": "3.13.7"}], indirect=True, ids=["refuses", "old"]
)
def test_an_unproven_look_releases_the_one_message_that_it_got(rabbit: FakeRabbit, look: str) -> None:
    with client_of(rabbit.url) as client:
        if look == "pushdown":
            client._connections.run(partial(attached, client))
        else:
            with pytest.raises(RemoteProtocolError, match=r"'q'.* no x-stream-offset annotation .* name a stream"):
                ALL[look](client, "q", "q")
    assert rabbit.queue == PLAIN
    assert rabbit.sent == (look != "pushdown")
    assert [state for state, _ in rabbit.outcomes] == [Delivery.RELEASED] * rabbit.sent


def attached(client: AmqpClient, to: Reached) -> None:
    client._receivers.attach(to, Binding("q", "q"), RABBITMQ.starts(EARLIEST)).close()


@pytest.mark.parametrize("rabbit", [{"queue": STREAM, "is_stream": True, "version": "3.13.7"}], indirect=True)
def test_an_unproven_stream_is_proven_by_its_first_message(rabbit: FakeRabbit) -> None:
    """A look releases, a read accepts: to a stream it is the same."""
    with client_of(rabbit.url) as client:
        assert client.first_at_time("q", "q", 2_000) == f"{2:020d}"
        assert {state for state, _ in rabbit.outcomes} == {Delivery.RELEASED}
        looked = len(rabbit.outcomes)
        assert [row["value"] for row in read(client, "q", "q")] == [b"m0", b"m1", b"m2", b"m3"]
    assert [state for state, _ in rabbit.outcomes[looked:]] == [Delivery.ACCEPTED] * 4
    assert (told("first_at_time", 3), told("fetch", 3)) == ("released", "accepted")


@pytest.mark.parametrize(
    "rabbit", [{"queue": STREAM, "is_stream": True, "answer": STREAM_TYPE}], indirect=True, ids=["stream"]
)
def test_a_stream_is_asked_for_its_type_once(rabbit: FakeRabbit) -> None:
    with client_of(rabbit.url) as client:
        for _ in range(5):
            assert client.first_at_time("q", "q", 2_000) == f"{2:020d}"
            assert len(read(client, "q", "q")) == 4
    assert rabbit.asked == 1
    assert {state for state, _ in rabbit.outcomes} == {Delivery.RELEASED}, "reads are presettled, looks are not"
    assert (told("first_at_time", 2), told("fetch", 2)) == ("released", "settled by the broker")


@pytest.mark.parametrize(
    ("rabbit", "words"),
    [
        ({"queue": PLAIN, "answer": ("200", {"type": "classic"})}, "is a classic queue, not a stream"),
        ({"queue": PLAIN, "answer": ("200", {"type": "x-odd\n"})}, "is a x-odd.* queue, not a stream"),
        ({"queue": PLAIN, "settles": True}, "it settles what it sends, which would take it off a queue"),
    ],
    indirect=["rabbit"],
    ids=["classic", "another", "settles"],
)
def test_no_credit_where_it_would_cost_messages(rabbit: FakeRabbit, words: str) -> None:
    with client_of(rabbit.url) as client:
        for look in ALL.values():
            with pytest.raises(Refused, match=words):
                look(client, "q", "q")
    assert rabbit.sent == 0 and rabbit.queue == PLAIN


UNKNOWN = {
    "describe": [Delivery.RELEASED],
    "remaining": [Delivery.RELEASED],
    "log_identity": [],
    "first_at_time": [Delivery.RELEASED],
    "offsets": [Delivery.RELEASED] * 2,
    "fetch": [Delivery.ACCEPTED] * 4,
}


def told(look: str, column: int) -> str:
    """Return what the page says becomes of the messages of a look, at a peer."""
    (rows,) = tables("docs/rabbitmq-amqp.md", "What reading takes off a queue")
    assert [row[0].strip("`") for row in rows if row[0].strip("`") in ALL] == [row[0].strip("`") for row in rows]
    (found,) = [row for row in rows if row[0] == f"`{look}`"]
    return found[column]


@pytest.mark.parametrize("look", UNKNOWN)
def test_at_other_peers_of_event_streams_looks_release_and_reads_accept(look: str) -> None:
    events = [event(b"e", f"{n:020d}", 1_000, "0") for n in range(4)]
    with FakeNode(Script(info={"q": info(p0=(f"{0:020d}", OFFSET))}, events={"q": events})) as node:
        with client_of(node.url) as client:
            ALL[look](client, "q", "0")
        assert [state for state, _ in node.outcomes][: len(UNKNOWN[look])] == UNKNOWN[look]
        assert set(node.outcomes) <= {(state, None) for state in UNKNOWN[look]}
    words = {Delivery.RELEASED: "released", Delivery.ACCEPTED: "accepted"}
    assert told(look, 5) == (words[UNKNOWN[look][0]] if UNKNOWN[look] else "none")


def test_what_is_no_event_stream_is_released() -> None:
    """The peer echoes every filter, as RabbitMQ does, and has queues at all addresses."""
    odd = event(b"e", "1").replace(b"event-streams-offset", b"event-streams-orders")
    with FakeNode(Script(info={"q": "no description"}, events={"q": [odd, odd]})) as node:
        with client_of(node.url) as client:
            for look in (LOOKS["describe"], LOOKS["offsets"], LOOKS["first_at_time"], read):
                with pytest.raises(RemoteProtocolError, match="ES-"):
                    look(client, "q", "0")
        assert [state for state, _ in node.outcomes] == [Delivery.RELEASED] * 4


def test_event_hubs_settles_what_it_sends() -> None:
    """It has logs only, so that nothing is taken off; our own log does the same."""
    with FakeHub({"0": Partition(0, [b"a", b"b", b"c", b"d"])}) as hub:
        endpoint = parse_url(hub.url).with_credentials(RULE, Secret(KEY))
        with AmqpClient(endpoint, timeout_ms=120_000) as client:
            for name in ALL.keys() - {"offsets"}:  # a walk is for offsets that are no numbers
                ALL[name](client, HUB, "0")
        assert hub.outcomes == []
    assert {told(name, 4) for name in ALL} == {"settled by the peer", "none"}


def test_our_own_log_settles_what_it_sends(log_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = []
    log_server.log.create_stream("orders", 1)
    with client_of(log_server.urls["amqp"].replace("//", "//guest:guest@")) as client:
        with contextlib.closing(client.publisher("orders")) as publisher:
            publisher.send(client.encode({"value": pa.array([b"a", b"b"])}), str)
            publisher.flush()
        monkeypatch.setattr(IncomingDeliveries, "settle", lambda self, ids, outcome=None: outcomes.append(outcome))
        end = client.describe("orders").partitions["0"].latest
        for look in LOOKS.values():
            look(client, "orders", "0")
        assert len(read(client, "orders", "0", str(end))) == 2
    assert outcomes == []


# --- what it cannot show


def not_shown(client: AmqpClient) -> list[bytes]:
    """Read until the fourth message, which the broker cannot show; return what came before it."""
    rows = client.fetch(RangeRead("q", "q", EARLIEST, f"{9:020d}", ("value",)))
    found: list[bytes] = []
    words = (
        rf"'q': amqp:internal-error: the broker cannot show the message at offset '{OFFSET}' or the next .*'rabbitmq"
    )
    with pytest.raises(Refused, match=words) as refused:
        for batch in rows:
            found += batch.column("value").to_pylist()
    assert "erlang" not in str(refused.value)
    return found


@pytest.mark.parametrize("ends", ["session", "connection"])
def test_what_the_broker_cannot_show_is_told_by_its_condition_with_the_place(ends: str) -> None:
    """RabbitMQ ends the connection where the message is not among the first that a link has credit for."""
    given: Any = {"is_stream": True, "answer": STREAM_TYPE, "not_shown": 3, "ends": ends}
    with FakeRabbit([message(n, n) for n in range(10)], **given) as rabbit, client_of(rabbit.url) as client:
        assert not_shown(client) == [b"m0", b"m1", b"m2"]
        assert len(read(client, "q", "q", f"{2:020d}")) == 3, "it lies behind the range"
        with pytest.raises(Refused, match="cannot show a message from 3 on as one of AMQP"):
            client.log_identity("q", {"q": OFFSET})


def test_what_lies_behind_the_range_is_not_met_through_a_filter() -> None:
    """The broker looks for what matches beyond the range, and the client checks the filter itself then."""
    given: Any = {"is_stream": True, "answer": STREAM_TYPE, "not_shown": 3}
    with FakeRabbit([message(n, n) for n in range(10)], **given) as rabbit, client_of(rabbit.url) as client:
        rows = list(client.fetch(RangeRead("q", "q", EARLIEST, f"{2:020d}", ("value",), filter=FILTER)))
        assert rows == [] and [len(each.filters) for each in rabbit.attaches if each.filters] == [2, 1, 1]


def test_a_look_that_fails_is_not_taken_for_the_place_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a number is missing, the reader looks at the last message, which may be one that the broker cannot show."""
    stream = [message(n, n) for n in range(3)] + [message(n, n + 1) for n in range(3, 10)]
    with FakeRabbit(stream, is_stream=True, answer=STREAM_TYPE, not_shown=9) as rabbit, client_of(rabbit.url) as client:
        monkeypatch.setattr(client, "describe", lambda stream: client.log_identity(stream, {stream: f"{9:020d}"}))
        with pytest.raises(Refused, match=r"attach to 'q' at .* cannot show a message from 9 on"):
            list(client.fetch(RangeRead("q", "q", EARLIEST, f"{6:020d}", ("value",))))


@pytest.mark.parametrize("ends", ["session", "connection"])
def test_what_has_failed_waits_for_no_garbage_collection(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Proton crashes where a session is ended before its link, and a collection ends them in any order."""
    links: list[weakref.ref[Link]] = []
    made = Link.__init__

    def noted(self: Link, *arguments: Any) -> None:
        links.append(weakref.ref(self))
        made(self, *arguments)

    monkeypatch.setattr(Link, "__init__", noted)
    given: Any = {"is_stream": True, "answer": STREAM_TYPE, "not_shown": 3, "ends": ends}
    with FakeRabbit([message(n, n) for n in range(10)], **given) as rabbit, client_of(rabbit.url) as client:
        gc.disable()
        try:
            not_shown(client)
            with pytest.raises(RemoteProtocolError):  # these messages have no offset of event streams
                walk(client, "q", "q")
            with pytest.raises(Refused):
                client.log_identity("q", {"q": OFFSET})
            assert len(links) == 4 and [link() for link in links] == [None] * 4
        finally:
            gc.enable()
