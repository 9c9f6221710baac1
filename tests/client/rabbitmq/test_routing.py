"""Which partition of a super stream a row goes to: as RabbitMQ's clients choose it, or as the broker answers."""

from __future__ import annotations

import secrets
import struct
from collections import Counter

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.client.rabbitmq.routing import Router, Routing, open_router
from spark_streams.errors import DeliveryFailed, NotFound, Refused
from tests.client.rabbitmq.brokers import Broker
from tests.client.rabbitmq.publishing import body, named, write
from tests.client.rabbitmq.scripted import OK, Handler, Scripted, Wire
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import array, pairs, text

SEED = 104_729
"""What all clients hash with."""


def placed(router: Router, keys: list[str | None]) -> dict[int, str]:
    """Row to its only stream."""
    routed = router.route(pa.array(keys, pa.string()), named(0))
    assert all((np.diff(rows) > 0).all() for rows in routed.values())
    found = {row: stream for stream, rows in routed.items() for row in rows.tolist()}
    assert sum(len(rows) for rows in routed.values()) == len(found)
    return found


@settings(deadline=None)
@given(keys=st.lists(st.text(max_size=30), min_size=1, max_size=40), count=st.integers(1, 12))
def test_the_hash_is_murmur3_unsigned_modulo_the_partitions(keys: list[str], count: int) -> None:
    partitions = tuple(f"p{n}" for n in range(count))
    expected = [partitions[mmh3.hash(k.encode(), SEED, signed=False) % count] for k in keys]
    assert placed(Router("s", partitions), list(keys)) == dict(enumerate(expected))


@pytest.mark.parametrize(
    ("name", "of_3", "of_5"),
    # The hashes are those that the Java client's own tests list (S-135).
    [("customer-42", 2, 3), ("hello", 1321743225 % 3, 1321743225 % 5), ("brave", 3825276426 % 3, 3825276426 % 5),
     ("", 3329588566 % 3, 3329588566 % 5), ("é", 2922484690 % 3, 2922484690 % 5)],
)  # fmt: skip
def test_known_keys(name: str, of_3: int, of_5: int) -> None:
    for count, expected in ((3, of_3), (5, of_5)):
        assert placed(Router("s", tuple(f"p{n}" for n in range(count))), [name]) == {0: f"p{expected}"}


def test_keys_go_where_the_dotnet_client_sends_them() -> None:
    """What ValidateHashRoutingStrategy of its SuperStreamProducerTests expects, at 1.11."""
    keys = [*(f"hello{n}" for n in range(1, 11)), "hello88"]
    expected = [2, 1, 2, 3, 1, 3, 1, 2, 1, 3, 2]
    router = Router("invoices", ("invoices-01", "invoices-02", "invoices-03"))
    assert placed(router, list(keys)) == {row: f"invoices-0{number}" for row, number in enumerate(expected)}


def test_rstream_sends_keys_elsewhere_unless_it_is_told() -> None:
    keys: list[str | None] = [f"customer-{n}" for n in range(97)]
    partitions = [f"p{n}" for n in range(12)]
    script = {key.PARTITIONS: listed(partitions)}
    with Scripted(script) as broker, open_connection(broker.endpoint, timeout_ms=120_000) as connected:
        others = placed(open_router(connected, "s", routing="hash"), keys)
        found = placed(open_router(connected, "s", routing="rstream"), keys)
    expected = [int.from_bytes(mmh3.hash_bytes(str(k).encode("utf-16"), SEED), "little") % 12 for k in keys]
    assert found == {row: partitions[number] for row, number in enumerate(expected)}
    assert sum(found[row] == others[row] for row in found) < 20


def test_keys_spread_over_all_partitions() -> None:
    found = Counter(placed(Router("s", tuple("abcdefg")), [f"customer-{n}" for n in range(7_000)]).values())
    assert len(found) == 7
    assert all(800 < count < 1_200 for count in found.values())


# --- a scripted broker


def listed(names: list[str], code: int = OK) -> Handler:
    def handle(wire: Wire, number: int, _: bytes) -> None:
        wire.answer(key.PARTITIONS, number, code, array([text(name) for name in names]))

    return handle


class Routes:
    """Answers Route from a table, and counts the questions."""

    def __init__(self, table: dict[str, list[str]]) -> None:
        self.table = table
        self.asked: list[str] = []

    def __call__(self, wire: Wire, number: int, content: bytes) -> None:
        (size,) = struct.unpack_from(">H", content)
        asked = content[2 : 2 + size].decode()
        self.asked.append(asked)
        wire.answer(key.ROUTE, number, OK, array([text(name) for name in self.table.get(asked, [])]))


def test_partitions_are_in_the_order_that_the_broker_tells() -> None:
    names = ["s-10", "s-2", "s-1"]
    with (
        Scripted({key.PARTITIONS: listed(names)}) as broker,
        open_connection(broker.endpoint, timeout_ms=120_000) as connected,
    ):
        router = open_router(connected, "s", routing="hash")
        assert router.partitions == tuple(names)
        assert placed(router, ["customer-42"]) == {0: "s-1"}


@pytest.mark.parametrize(
    ("code", "error"), [(0x02, NotFound), (0x10, Refused), (OK, NotFound)], ids=["absent", "forbidden", "empty"]
)
@pytest.mark.parametrize("routing", ["hash", "rstream", "key"])
def test_a_super_stream_that_cannot_be_used(code: int, error: type[Exception], routing: Routing) -> None:
    with (
        Scripted({key.PARTITIONS: listed([], code)}) as broker,
        open_connection(broker.endpoint, timeout_ms=120_000) as connected,
        pytest.raises(error, match="super stream 'orders'"),
    ):
        open_router(connected, "orders", routing)


def test_each_binding_key_is_asked_for_once() -> None:
    routes = Routes({"eu": ["s-0"], "us": ["s-1"], "all": ["s-0", "s-1"]})
    script = {key.PARTITIONS: listed(["s-0", "s-1"]), key.ROUTE: routes}
    with Scripted(script) as broker, open_connection(broker.endpoint, timeout_ms=120_000) as connected:
        router = open_router(connected, "s", routing="key")
        for _ in range(2):
            routed = router.route(pa.array(["eu", "us", "eu", "all", "us"]), named(0))
            assert {name: rows.tolist() for name, rows in routed.items()} == {"s-0": [0, 2, 3], "s-1": [1, 3, 4]}
    assert sorted(routes.asked) == ["all", "eu", "us"]


def test_a_binding_key_that_leads_nowhere_names_its_first_row() -> None:
    script = {key.PARTITIONS: listed(["s-0"]), key.ROUTE: Routes({"eu": ["s-0"]})}
    with Scripted(script) as broker, open_connection(broker.endpoint, timeout_ms=120_000) as connected:
        router = open_router(connected, "orders", routing="key")
        for _ in range(2):
            with pytest.raises(DeliveryFailed) as caught:
                router.route(pa.array(["eu", "eu", "mars", "mars"]), named(100))
            assert (caught.value.row, caught.value.condition, caught.value.stream) == (
                "row 102",
                "unroutable",
                "orders",
            )
            assert "'mars'" in caught.value.description


@pytest.mark.parametrize("routing", ["hash", "rstream", "key"])
def test_a_null_key_names_its_row(routing: Routing) -> None:
    script = {key.PARTITIONS: listed(["s-0"]), key.ROUTE: Routes({"eu": ["s-0"]})}
    with Scripted(script) as broker, open_connection(broker.endpoint, timeout_ms=120_000) as connected:
        router = open_router(connected, "orders", routing)
        with pytest.raises(
            DeliveryFailed, match=r"row 7 was not routed by stream 'orders': unroutable: its key is null"
        ):
            router.route(pa.array(["eu", "eu", None, None]), named(5))


# --- brokers


def test_super_streams_of_a_broker(broker: Broker) -> None:
    if broker.is_old:
        pytest.skip("the command that creates super streams came with RabbitMQ 3.13")
    name = f"routing-{secrets.token_hex(4)}"
    names, keys = [f"{name}-b", f"{name}-a"], ["eu", "us"]
    with broker.peer() as peer:
        content = text(name) + array([text(n) for n in names]) + array([text(k) for k in keys]) + pairs({})
        assert peer.ask(key.CREATE_SUPER_STREAM, content).code == 1
        try:
            with open_connection(broker.endpoint, timeout_ms=120_000) as connected:
                bound = open_router(connected, name, routing="key")
                assert bound.partitions == tuple(names)
                assert placed(bound, ["us", "eu", "us"]) == {0: names[1], 1: names[0], 2: names[1]}
                with pytest.raises(DeliveryFailed, match=r"row 1 .*no partition is bound with its key '0'"):
                    placed(bound, ["us", "0"])
                hashed = open_router(connected, name, routing="hash")
                assert placed(hashed, ["customer-42"]) == {0: names[80594573 % 2]}
                with pytest.raises(NotFound, match="stream-does-not-exist"):
                    open_router(connected, f"{name}-absent", routing="key")
            with pytest.raises(DeliveryFailed, match=r"row 2 .*'mars'"):
                rows = [body("x")] * 3
                write(broker.endpoint, rows, ["eu", "us", "mars"], super_stream=name, routing="key")
        finally:
            peer.ask(key.DELETE_SUPER_STREAM, text(name))
