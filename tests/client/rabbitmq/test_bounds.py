"""What a stream retains, and when: on every version of brokers, and by brokers that answer late, never or badly."""

from __future__ import annotations

import struct
import time

import pytest

from spark_streams.client import Consumer
from spark_streams.client.data_loss import beginning, instead_of
from spark_streams.client.rabbitmq import client as client_module
from spark_streams.errors import (
    ConnectFailed,
    DeadlineExceeded,
    LocalProtocolError,
    NotFound,
    OptionError,
    PeerError,
    Refused,
)
from spark_streams.filters import read_filter
from spark_streams.position import EARLIEST, LATEST, After, At
from tests.client.rabbitmq.brokers import Broker, amqp, read, text
from tests.client.rabbitmq.scripted import (
    Chunks,
    S,
    Scripted,
    Wire,
    answers,
    deliver,
    metadata,
    metadata_of,
    silence,
    stats,
)
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import array

# --- every broker


def test_an_empty_stream(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        bounds = client.describe(stream).partitions[stream]
        assert (bounds.earliest, bounds.latest, bounds.truncated, bounds.tells_truncated) == (None, None, None, True)
        assert client.first_at_time(stream, stream, 0) is None
        assert client.log_identity(stream, {stream: text(0)}) == {stream: None}
        assert client.remaining(stream, {stream: EARLIEST}) == {stream: 0}


def test_times_are_those_of_chunks(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        for _ in range(3):
            broker.publish(stream, [amqp(b"x")] * 10)
            time.sleep(0.02)  # so that each has a time of its own
        rows = read(client, stream, 29, columns=("offset", "timestamp")).to_pylist()
        times = [(int(row["timestamp"].timestamp() * 1_000 + 0.5), row["offset"]) for row in rows]
        for wanted in (-(2**62), -1, 0, 1, times[0][0], times[0][0] + 1, times[15][0], times[-1][0]):
            expected = next(offset for at, offset in times if at >= wanted)
            assert client.first_at_time(stream, stream, wanted) == expected, wanted
        assert client.first_at_time(stream, stream, times[-1][0] + 1) is None
        assert client.first_at_time(stream, stream, 2**62) is None


def test_what_remains_is_arithmetic(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [amqp(b"x")] * 100)
        for position, left in ((EARLIEST, 100), (At(text(10)), 90), (After(text(10)), 89), (After(text(99)), 0)):
            assert client.remaining(stream, {stream: position}) == {stream: left}
        assert client.remaining(stream, {stream: LATEST, "other": EARLIEST}) == {stream: None, "other": None}


def test_no_such_stream(broker: Broker) -> None:
    with broker.client() as client:
        for ask in (client.describe, client.check):
            with pytest.raises(NotFound, match=r"stream 'nobodys.*does-not-exist"):
                ask("nobodys")
        with pytest.raises(NotFound):
            client.first_at_time("nobodys", "nobodys", 5)
    with broker.client(super_stream=True) as client, pytest.raises(NotFound, match="super stream 'nobodys'"):
        client.describe("nobodys")


@pytest.mark.parametrize("broker", ["door", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)], indirect=True)
def test_partitions_of_a_super_stream(broker: Broker) -> None:
    names = [f"{broker.kind}-{time.monotonic_ns()}-{i}" for i in (2, 0, 10, 1)]
    name = names[0].rsplit("-", 1)[0]
    with broker.peer() as peer:
        keys = array([key.text(str(i)) for i in range(4)])
        made = peer.ask(
            key.CREATE_SUPER_STREAM, key.text(name) + array([key.text(n) for n in names]) + keys + array([])
        )
        assert made.code == 1
        broker.publish(names[2], [amqp(b"x")] * 5)
        with broker.client(super_stream=True) as client:
            assert list(client.describe(name).partitions) == names
            assert client.describe(name).partitions[names[2]].latest == text(4)
            table = read(client, names[2], 4, super_stream=name, columns=("stream", "partition"))
            assert table.to_pylist()[0] == {"stream": name, "partition": names[2]}
            for ask in (client.describe, client.check):
                with pytest.raises(NotFound, match=r"is that of a stream: give it as option 'stream' in place of"):
                    ask(names[2])
        with broker.client() as client:
            for ask in (client.describe, client.check):
                with pytest.raises(NotFound, match=rf"stream '{name}': .*is that of a super stream, of 4 .*'superS"):
                    ask(name)
        assert peer.ask(key.DELETE_SUPER_STREAM, key.text(name)).code == 1


def test_storing_offsets(broker: Broker) -> None:
    with broker.stream() as stream:
        broker.publish(stream, [amqp(b"x")] * 50)
        with broker.client(consumer=Consumer("me", False)) as client:
            client.store_offsets({stream: text(33)})
        with broker.peer() as peer:
            for _ in range(200):
                answer = peer.ask(key.QUERY_OFFSET, key.text("me") + key.text(stream))
                if answer.code == 1:
                    break
                time.sleep(0.02)  # it is not answered, and durable a little later
            assert struct.unpack(">HQ", answer.body) == (1, 33)
        with broker.client() as client, pytest.raises(LocalProtocolError, match="name"):
            client.store_offsets({stream: text(33)})
        with (
            broker.client(consumer=Consumer("é" * 128, False)) as client,
            pytest.raises(OptionError, match="255 bytes"),
        ):
            client.store_offsets({stream: text(33)})


# --- scripted brokers


EXACT = stats(first_chunk_id=0, last_chunk_id=0, committed_chunk_id=0, committed_offset=9)


def test_a_broker_between_3_11_and_4_3_is_asked_for_its_last_chunk() -> None:
    """Stats without committed_offset: the newest chunk is looked at."""
    asked: list[bytes] = []

    def subscribe(wire: Wire, number: int, body: bytes) -> None:
        asked.append(body)
        wire.answer(key.SUBSCRIBE, number)
        wire.send(key.DELIVER, deliver(40, [b"a", b"b", b"c"], subscription=body[0]))

    inexact = stats(first_chunk_id=7, last_chunk_id=55, committed_chunk_id=40)
    script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, inexact)), key.SUBSCRIBE: subscribe}
    with Scripted({**script, key.METADATA: metadata_of}) as broker, broker.client() as client:
        bounds = client.describe(S).partitions[S]
        assert (bounds.earliest, bounds.latest, bounds.truncated) == (text(7), text(42), text(6))
        assert asked[0][1:] == key.text(S) + key.LAST + b"\0\1"


@pytest.mark.parametrize("committed", [-1, 999])
@pytest.mark.parametrize("first", [0, 1_000], ids=["resolved as if from 0", "resolved"])
@pytest.mark.parametrize("certain", [False, True], ids=["any node", "leader"])
def test_an_empty_stream_that_begins_above_0_is_empty(committed: int, first: int, certain: bool) -> None:
    """RabbitMQ 4.4, argument ``initial-offset`` of 1,000: osiris_log.erl sets both chunks to the offset before it."""
    empty = dict.fromkeys(("committed_chunk_id", "committed_offset"), committed)
    said = answers(key.STREAM_STATS, (1, stats(first_chunk_id=999, last_chunk_id=999, **empty)))
    resolved = answers(key.RESOLVE_OFFSET, (1, struct.pack(">HQ", 4, first)))
    chunks = Chunks()
    script = {**chunks.script(0), key.STREAM_STATS: said, key.RESOLVE_OFFSET: resolved}
    with Scripted(script) as broker, broker.client() as client:
        broker.handlers[key.METADATA] = lambda wire, number, _: wire.send(
            key.METADATA | key.RESPONSE, struct.pack(">I", number) + metadata(S, port=broker.port)
        )
        bounds = client.describe(S, certain=[S] if certain else ()).partitions[S]
        assert (bounds.earliest, bounds.latest, bounds.truncated) == (None, None, text(999))
        assert client.first_matching(S, S, read_filter("key = 'a'")) is None
        # The first events, and a query that stood at the beginning.
        then = stats(first_chunk_id=1_000, last_chunk_id=1_000, committed_chunk_id=1_000, committed_offset=1_002)
        broker.handlers[key.STREAM_STATS] = answers(key.STREAM_STATS, (1, then))
        chunks.chunks = (deliver(1_000, [b"a", b"b", b"c"]),)
        now = client.describe(S).partitions[S]
        assert instead_of(beginning(bounds), now) is None
        assert read(client, S, 1_002, After(text(999)))["value"].to_pylist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("committed", [-1, 7])
def test_a_stream_of_one_chunk_is_not_taken_for_an_empty_one(committed: int) -> None:
    known = dict.fromkeys(("committed_chunk_id", "committed_offset"), 7)
    one, then = ({**dict.fromkeys(("first_chunk_id", "last_chunk_id"), 7), **each} for each in (
        dict.fromkeys(known, committed), known
    ))  # fmt: skip
    script = {
        key.STREAM_STATS: answers(key.STREAM_STATS, (1, stats(**one)), (1, stats(**one)), (1, stats(**then))),
        key.RESOLVE_OFFSET: answers(key.RESOLVE_OFFSET, (1, struct.pack(">HQ", 4, 7))),
        key.METADATA: metadata_of,
    }
    with Scripted(script) as broker, broker.client() as client:
        bounds = client.describe(S).partitions[S]
        assert (bounds.earliest, bounds.latest) == (text(7), text(7))


@pytest.mark.parametrize("tells", [{"last_chunk_id": 9, "committed_offset": -1}, {}], ids=["4.3", "3.11"])
@pytest.mark.parametrize("ask", ["describe", "remaining", "first_at_time"])
def test_a_node_that_does_not_know_yet_what_is_committed_is_asked_again(tells: dict[str, int], ask: str) -> None:
    """As RabbitMQ 4.3.6 answers for some milliseconds after a member was started or elected."""
    unknown = stats(first_chunk_id=0, committed_chunk_id=-1, **tells)
    script = {
        key.STREAM_STATS: answers(key.STREAM_STATS, (1, unknown), (1, unknown), (1, EXACT)),
        key.METADATA: metadata_of,
        key.RESOLVE_OFFSET: lambda wire, n, _: wire.answer(key.RESOLVE_OFFSET, n, 1, struct.pack(">HQ", 4, 3)),
    }
    with Scripted(script) as broker, broker.client() as client:
        if ask == "describe":
            assert client.describe(S).partitions[S].latest == text(9)
        elif ask == "remaining":
            assert client.remaining(S, {S: EARLIEST}) == {S: 10}
        else:
            assert client.first_at_time(S, S, 5) == text(3)
        assert [kind for kind, _ in broker.seen].count(key.STREAM_STATS) == 3


@pytest.mark.usefixtures("hasty")
def test_a_node_that_never_knows_what_is_committed_is_an_error() -> None:
    """As it is while most members of the stream are down."""
    unknown = stats(first_chunk_id=0, last_chunk_id=9, committed_chunk_id=-1, committed_offset=-1)
    script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, unknown)), key.METADATA: metadata_of}
    with Scripted(script) as broker, broker.client() as client, pytest.raises(Refused, match="does not know yet which"):
        client.describe(S)


def test_tracking_behind_the_last_user_chunk_counts() -> None:
    def subscribe(wire: Wire, number: int, body: bytes) -> None:
        wire.answer(key.SUBSCRIBE, number)
        wire.send(key.DELIVER, deliver(40, [b"a"], subscription=body[0]))

    inexact = stats(first_chunk_id=0, committed_chunk_id=44)
    script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, inexact)), key.SUBSCRIBE: subscribe}
    with Scripted({**script, key.METADATA: metadata_of}) as broker, broker.client() as client:
        assert client.describe(S).partitions[S].latest == text(44)


def test_offsets_that_longs_cannot_hold() -> None:
    script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, stats(first_chunk_id=0, committed_offset=2**63 - 1)))}
    with Scripted(script) as broker, broker.client() as client:
        assert client.describe(S).partitions[S].latest == text(2**63 - 1)
        with pytest.raises(LocalProtocolError, match="no offset"):
            client.log_identity(S, {S: str(2**63)})


@pytest.mark.parametrize("code", [0x02, 0x06])
def test_a_partition_that_is_missing_for_a_moment_is_waited_for(code: int) -> None:
    script = {
        key.PARTITIONS: answers(key.PARTITIONS, (1, array([key.text("s-0"), key.text("s-1")]))),
        key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT), (code, array([])), (1, EXACT)),
        key.METADATA: metadata_of,
    }
    with Scripted(script) as broker:
        client = client_module.RabbitClient(broker.endpoint, super_stream=True, timeout_ms=120_000)
        with client:
            assert [*client.describe(S).partitions] == ["s-0", "s-1"]


def a_super_stream(codes: dict[str, int]) -> Scripted:
    """One that has partitions, each of which has what EXACT says or is refused with a code; ``codes`` may change."""

    def tell(wire: Wire, correlation: int, body: bytes) -> None:
        code = next(code for name, code in codes.items() if body.endswith(name.encode()))
        wire.answer(key.STREAM_STATS, correlation, code, EXACT if code == 1 else array([]))

    names = array([key.text(name) for name in codes])
    return Scripted(
        {key.PARTITIONS: answers(key.PARTITIONS, (1, names)), key.STREAM_STATS: tell, key.METADATA: metadata_of}
    )


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("codes", "fault"),
    [((0x02, 0x02), NotFound), ((0x06, 0x06), Refused), ((1, 0x06), Refused), ((0x06, 0x02), Refused)],
)
def test_partitions_that_cannot_be_reached_or_are_all_gone_are_an_error(
    codes: tuple[int, int], fault: type[Exception]
) -> None:
    with a_super_stream({"s-0": codes[0], "s-1": codes[1]}) as broker:
        client = client_module.RabbitClient(broker.endpoint, super_stream=True, timeout_ms=120_000)
        with client, pytest.raises(fault, match=r"stream 's-\d'"):
            client.describe(S)


@pytest.mark.usefixtures("hasty")
def test_a_partition_that_stays_missing_is_told_and_never_left_out() -> None:
    codes = {"s-0": 1, "s-1": 0x02, "s-2": 1}
    with a_super_stream(codes) as broker:

        def asked() -> int:
            return sum(kind == key.STREAM_STATS and body.endswith(b"s-1") for kind, body in broker.seen)

        with client_module.RabbitClient(broker.endpoint, super_stream=True, timeout_ms=120_000) as client:
            described = client.describe(S)
            assert [*described.partitions] == ["s-0", "s-2"]
            assert described.unavailable == {"s-1": "stream-does-not-exist (0x02)"}
            assert asked() == 4, "it was waited for"
            assert client.describe(S) == described
            assert asked() == 5, "once"
            codes["s-1"] = 1
            assert [*client.describe(S).partitions] == ["s-0", "s-1", "s-2"]
            codes["s-1"] = 0x02
            assert [*client.describe(S).unavailable] == ["s-1"]
            assert asked() == 10, "it had been back, so it is waited for again"


def test_a_partition_that_may_not_be_read_is_told_at_once() -> None:
    script = {
        key.PARTITIONS: answers(key.PARTITIONS, (1, array([key.text("s-0")]))),
        key.STREAM_STATS: answers(key.STREAM_STATS, (0x10, array([]))),
    }
    with Scripted(script) as broker:
        client = client_module.RabbitClient(broker.endpoint, super_stream=True, timeout_ms=120_000)
        with client, pytest.raises(Refused, match="access-refused"):
            client.describe(S)
        assert [kind for kind, _ in broker.seen].count(key.STREAM_STATS) == 1


def test_a_time_that_is_not_answered_is_no_answer() -> None:
    for step in (key.STREAM_STATS, key.RESOLVE_OFFSET):
        script = {
            key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT)),
            step: silence,
        }
        with Scripted(script) as broker, broker.client(300) as client, pytest.raises(DeadlineExceeded):
            client.first_at_time(S, S, 5)


def test_a_probe_that_is_not_answered_is_no_answer() -> None:
    """The barrier behind it is not answered: nothing is known."""
    script = {key.SUBSCRIBE: lambda wire, n, _: wire.answer(key.SUBSCRIBE, n), key.METADATA: silence}
    with Scripted(script) as broker, broker.client(300) as client, pytest.raises(DeadlineExceeded):
        client.log_identity(S, {S: text(5)})


def test_a_stream_without_a_member_on_this_node_is_read_where_it_has_one() -> None:
    with Scripted({key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT))}) as member:

        def where(wire: Wire, number: int, _: bytes) -> None:
            wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + metadata(S, port=member.port))

        script = {key.STREAM_STATS: answers(key.STREAM_STATS, (0x06, array([]))), key.METADATA: where}
        with Scripted(script) as broker, broker.client() as client:
            assert client.describe(S).partitions[S].latest == text(9)
            assert client.describe(S).partitions[S].latest == text(9)
            assert [kind for kind, _ in broker.seen].count(key.STREAM_STATS) == 1, "it is known now"
            assert (broker.connections, member.connections) == (1, 1)


def led(by: int, *others: int) -> bytes:
    """The answer to Metadata about a stream whose members listen on these ports."""
    nodes = [
        struct.pack(">H", n) + key.text("127.0.0.1") + struct.pack(">I", port) for n, port in enumerate((by, *others))
    ]
    replicas = array([struct.pack(">H", n + 1) for n in range(len(others))])
    return array(nodes) + array([key.text(S) + struct.pack(">HH", 1, 0) + replicas])


def alone(wire: Wire, number: int, _: bytes) -> None:
    """Answer Metadata: the stream has one member, at an address where nobody listens."""
    wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + led(1))


def test_the_leader_is_asked_what_is_certain() -> None:
    """The node that we know may be behind."""
    old = stats(first_chunk_id=0, last_chunk_id=0, committed_chunk_id=0, committed_offset=3)
    with Scripted({key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT))}) as leader:

        def where(wire: Wire, number: int, _: bytes) -> None:
            wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + led(leader.port, broker.port))

        script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, old)), key.METADATA: where}
        with Scripted(script) as broker, broker.client() as client:
            assert client.describe(S).partitions[S].latest == text(3)
            assert leader.connections == 0
            assert client.describe(S, certain=[S]).partitions[S].latest == text(9)
            assert client.describe(S).partitions[S].latest == text(3)


def test_a_leader_that_was_just_elected_is_asked_until_it_has_again_what_it_had() -> None:
    """What is committed it learns from the others, of which one may be behind; nobody waits for what comes later."""

    def told(committed: int, last: int) -> tuple[int, bytes]:
        chunks = {"committed_chunk_id": committed, "last_chunk_id": last}
        return 1, stats(first_chunk_id=0, **chunks, committed_offset=committed + 4)

    script = {
        key.STREAM_STATS: answers(key.STREAM_STATS, told(10, 40), told(20, 70), told(40, 90)),
        key.METADATA: alone,
    }
    with Scripted(script) as broker, broker.client() as client:
        assert client.describe(S, certain=[S]).partitions[S].latest == text(44)


@pytest.mark.usefixtures("hasty")
def test_a_leader_that_finds_no_majority_proves_no_loss() -> None:
    few = stats(first_chunk_id=0, committed_chunk_id=10, committed_offset=14, last_chunk_id=40)
    script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, few)), key.METADATA: alone}
    with Scripted(script) as broker, broker.client() as client, pytest.raises(Refused, match="too few members"):
        client.describe(S, certain=[S])


@pytest.mark.usefixtures("hasty")
def test_a_leader_that_cannot_be_reached_is_an_error_where_others_may_be_behind() -> None:
    script = {
        key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT)),
        key.METADATA: lambda wire, n, _: wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", n) + led(1, 2)),
    }
    with Scripted(script) as broker, broker.client() as client, pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1\b"):
        client.describe(S, certain=[S])


def test_the_only_member_of_a_stream_is_its_leader() -> None:
    """Whatever it advertises: in a container, often nothing that can be reached."""
    script = {key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT)), key.METADATA: alone}
    with Scripted(script) as broker, broker.client() as client:
        assert client.describe(S, certain=[S]).partitions[S].latest == text(9)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("code", "fault"), [(1, "stream-not-available"), (6, "stream-not-available"), (2, "does-not")])
def test_without_a_leader_nothing_is_certain(code: int, fault: str) -> None:
    nodes = [struct.pack(">H", 1) + key.text("127.0.0.1") + struct.pack(">I", 1)]
    replicas = array([struct.pack(">H", 1)])
    told = array(nodes) + array([key.text(S) + struct.pack(">HH", code, 0xFFFF) + replicas])
    script = {
        key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT)),
        key.METADATA: lambda wire, n, _: wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", n) + told),
    }
    with Scripted(script) as broker, broker.client() as client:
        with pytest.raises(PeerError, match=fault):
            client.describe(S, certain=[S])
        assert client.describe(S).partitions[S].latest == text(9)


def test_a_node_that_went_away_is_forgotten() -> None:
    with Scripted({key.STREAM_STATS: answers(key.STREAM_STATS, (1, EXACT))}) as member:

        def where(wire: Wire, number: int, _: bytes) -> None:
            wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + metadata(S, port=member.port))

        stats_here = answers(key.STREAM_STATS, (0x06, array([])), (1, EXACT))
        script = {key.STREAM_STATS: stats_here, key.METADATA: where}
        with Scripted(script) as broker, broker.client() as client:
            client.describe(S)
            member.__exit__()
            assert client.describe(S).partitions[S].latest == text(9)
