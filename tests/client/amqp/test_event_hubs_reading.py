"""A hub of Event Hubs: what it has, any range of it, losses, and a peer that answers no drain."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import credit
from spark_streams.endpoint import Secret, parse_url
from spark_streams.errors import AuthenticationFailed, NotFound, OwnershipLost, PositionLost
from spark_streams.filters import read_filter
from spark_streams.position import EARLIEST, After, At
from spark_streams.wire.amqp.dialects import EVENT_HUBS
from tests.client.amqp.fake_hub import CREATED_MS, HUB, FakeHub, Partition
from tests.client.amqp.fake_namespace import KEY, RULE
from tests.client.amqp.fake_node import refuse


def offset(number: int) -> str:
    return f"{number:020d}"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    parts = {"0": Partition(0, [b"e%d" % n for n in range(700)]), "1": Partition(5), "2": Partition(40, [b"x"] * 20)}
    with FakeHub(parts) as served:
        yield served


def client_of(hub: FakeHub, **more: Any) -> AmqpClient:
    endpoint = parse_url(hub.url).with_credentials(RULE, Secret(KEY))
    return AmqpClient(endpoint, **{"timeout_ms": 120_000, **more})


def rows(client: AmqpClient, partition: str, start: Any, end: int, **more: Any) -> list[dict[str, Any]]:
    read = RangeRead(HUB, partition, start, offset(end), ("offset", "value", "key", "timestamp"), **more)
    return [row for batch in client.fetch(read, max_rows=97) for row in batch.to_pylist()]


def test_what_a_hub_has(hub: FakeHub) -> None:
    with client_of(hub) as client:
        described = client.describe(HUB)
        assert client.dialect is EVENT_HUBS and client.numeric_offsets and client.streams() is None
        assert (described.incarnation, described.offset_digits) == (str(CREATED_MS), 20)
        bounds = {p: (b.earliest, b.latest, b.truncated, b.tells_truncated) for p, b in described.partitions.items()}
        assert bounds == {
            "0": (offset(0), offset(699), None, True),
            "1": (None, None, offset(4), True),
            "2": (offset(40), offset(59), offset(39), True),
        }
        assert client.remaining(HUB, {"0": After(offset(99)), "1": EARLIEST, "2": EARLIEST}) == {
            "0": 600,
            "1": 0,
            "2": 20,
        }
        for _ in range(3):
            client.describe(HUB)
        sessions = {read["type"] for read in hub.reads}
        assert sessions == {"com.microsoft:eventhub", "com.microsoft:partition"}


@pytest.mark.parametrize(
    ("start", "end", "first"), [(EARLIEST, 699, 0), (At(offset(30)), 30, 30), (After(offset(30)), 399, 31)]
)
def test_any_range(hub: FakeHub, start: Any, end: int, first: int) -> None:
    with client_of(hub) as client:
        found = rows(client, "0", start, end)
    assert [row["value"] for row in found] == [b"e%d" % n for n in range(first, end + 1)]
    assert [row["offset"] for row in found] == [offset(n) for n in range(first, end + 1)]
    assert found[0]["key"] == f"k{first % 3}" and found[0]["timestamp"].timestamp() == first


def test_groups_and_epochs_are_where_the_service_wants_them(hub: FakeHub) -> None:
    with client_of(hub, consumer_group="spark", epoch=7) as client:
        assert len(rows(client, "0", EARLIEST, 9)) == 10
    (attach,) = hub.attaches
    assert attach.address == "orders/ConsumerGroups/spark/Partitions/0"
    assert attach.properties == {"com.microsoft:epoch": 7}


def test_a_higher_epoch_takes_the_partition(hub: FakeHub) -> None:
    words = "New receiver 'x' with higher epoch of '9' is created hence current receiver 'y' is getting disconnected."
    hub.script.on_attach = lambda link, _: refuse(link, "amqp:link:stolen", words)
    with client_of(hub, epoch=2) as client, pytest.raises(OwnershipLost) as caught:
        rows(client, "0", EARLIEST, 9)
    assert caught.value.epoch == 9


def test_retention_is_noticed_where_the_service_says_nothing(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(hub) as client:
        for start in (At(offset(10)), After(offset(10))):
            with pytest.raises(PositionLost, match=f"events from '{offset(40)}' to '{offset(59)}'"):
                rows(client, "2", start, 50)
        with caplog.at_level(logging.WARNING):
            assert len(rows(client, "2", After(offset(10)), 50, fail_on_data_loss=False)) == 11
        assert "Events may have been lost" in caplog.text
        assert len(rows(client, "2", After(offset(39)), 50)) == 11


def test_a_start_beyond_the_end_is_a_loss(hub: FakeHub) -> None:
    with client_of(hub) as client, pytest.raises(PositionLost, match="supplied sequence number '900' is invalid"):
        rows(client, "0", At(offset(900)), 950)


def test_a_range_that_is_gone_while_it_is_read_ends(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is silent then, and answers no drain: the reader looks what is there."""
    monkeypatch.setattr(credit, "LOOK_AFTER_S", 0.05)
    with client_of(hub) as client:
        read = RangeRead(HUB, "0", EARLIEST, offset(699), ("offset",))
        batches = client.fetch(read, max_rows=50)
        next(batches)
        with hub.lock:
            hub.partitions["0"].first, hub.partitions["0"].bodies = 700, []
        with pytest.raises(PositionLost, match=f"'{offset(699)}'"):
            list(batches)


def test_times(hub: FakeHub) -> None:
    with client_of(hub) as client:
        assert client.first_at_time(HUB, "0", 20_000) == offset(20)
        assert client.first_at_time(HUB, "0", 20_001) == offset(21)
        assert client.first_at_time(HUB, "0", -7) == offset(0)
        assert client.first_at_time(HUB, "0", 700_000) is None
        assert client.first_at_time(HUB, "1", 0) is None


def test_filters_stay_with_the_client(hub: FakeHub) -> None:
    expression = read_filter("key = 'k1'")
    with client_of(hub) as client:
        assert client.pushdown(HUB, expression).pushed is None
        assert [row["offset"] for row in rows(client, "0", EARLIEST, 10, filter=expression)] == [
            offset(n) for n in (1, 4, 7, 10)
        ]
        assert client.first_matching(HUB, "0", expression) == offset(1)


def test_what_is_not_there(hub: FakeHub) -> None:
    with client_of(hub) as client:
        with pytest.raises(NotFound, match="hub 'nothing'"):
            client.describe("nothing")
        with pytest.raises(NotFound, match="no partition '9'"):
            rows(client, "9", EARLIEST, 3, fail_on_data_loss=True)
        hub.denies = 401
        with pytest.raises(AuthenticationFailed, match="hub 'orders'"):
            client.describe(HUB)


def test_questions_have_the_token_where_the_service_wants_tokens(hub: FakeHub) -> None:
    with client_of(hub) as client:
        client.describe(HUB)
    assert all("security_token" not in read for read in hub.reads), "PLAIN has signed in for all"
    hub.reads.clear()
    hub.namespace.mechanisms = ("MSSBCBS", "ANONYMOUS")
    with client_of(hub) as client:
        client.describe(HUB)
    assert {read["security_token"] for read in hub.reads} == {hub.put[-1].token}


def test_management_links_are_attached_again(hub: FakeHub) -> None:
    with client_of(hub) as client:
        client.describe(HUB)
        client._connections._open[0].abandon()
        assert len(client.describe(HUB).partitions) == 3
