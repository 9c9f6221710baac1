"""What a user may do: permissions by the names of streams, in the same words as at the other doors."""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.server import BearerToken, Permissions
from tests.certificate_authority import Authority
from tests.server.amqp.raw_peer import EARLIEST, GROUP, Refused

USERS = {"admin": "a", "reader": "r", "writer": "w"}
PERMISSIONS = {"reader": Permissions("", "", "orders.*"), "writer": Permissions("", "orders", "")}


@pytest.fixture
def restricted(nodes: Any) -> Any:
    """A node with an admin, who may do everything, a reader and a writer, and streams orders, orders-2 and payroll."""
    node = nodes(users=USERS, permissions=PERMISSIONS)
    for name in ("orders", "orders-2", "payroll"):
        node.create(name)
    return node


def refusal(attach: Any, address: str, **options: Any) -> tuple[str | None, str]:
    with pytest.raises(Refused) as refused:
        attach(address, **options)
    return refused.value.args[0], str(refused.value.args[1])


def test_a_reader_reads_what_it_may_and_writes_nothing(restricted: Any) -> None:
    restricted.peer(username="admin", password="a").sender("orders").send(b"x")
    peer = restricted.peer(username="reader", password="r")
    assert peer.receiver("orders", filter=EARLIEST).take(1)[0].body == b"x"
    assert peer.receiver("orders/$info").take(1)
    for stream in ("orders", "payroll"):
        assert refusal(peer.sender, stream) == (
            "amqp:unauthorized-access",
            f"user 'reader' may not write stream '{stream}'",
        )
    for address in ("payroll", "/payroll", "%70ayroll", "payroll/$info"):
        assert refusal(peer.receiver, address)[0] == "amqp:unauthorized-access"
    assert refusal(peer.receiver, "payroll", properties={GROUP: "g"})[0] == "amqp:unauthorized-access"
    assert peer.receiver("orders-2"), "a refusal costs the link, not the connection"


def test_a_writer_writes_what_it_may_and_reads_nothing(restricted: Any) -> None:
    peer = restricted.peer(username="writer", password="w")
    peer.sender("orders").send(b"x")
    peer.sender("/orders").send(b"y")
    for address in ("orders", "orders/$info"):
        assert refusal(peer.receiver, address) == (
            "amqp:unauthorized-access",
            "user 'writer' may not read stream 'orders'",
        )
    assert refusal(peer.sender, "orders-2")[0] == "amqp:unauthorized-access", "the whole name has to match"
    assert refusal(peer.sender, "orders/$info")[0] == "amqp:unauthorized-access"


def test_whoever_may_not_is_not_told_whether_a_stream_is_there(restricted: Any) -> None:
    peer = restricted.peer(username="reader", password="r")
    there, not_there = (refusal(peer.receiver, name) for name in ("payroll", "nothing"))
    assert there[0] == not_there[0] and there[1].replace("payroll", "nothing") == not_there[1]
    assert refusal(peer.receiver, "orders-9")[0] == "amqp:not-found", "it may read that one, if it were there"


def test_a_user_without_permissions_may_do_everything(restricted: Any) -> None:
    peer = restricted.peer(username="admin", password="a")
    peer.sender("payroll").send(b"x")
    assert peer.receiver("payroll", filter=EARLIEST).take(1)[0].body == b"x"


def test_everybody_else_is_one_name(nodes: Any) -> None:
    permissions = {"admin": Permissions(), "*": Permissions("", "", "orders")}
    node = nodes(users=USERS, permissions=permissions)
    node.create("orders")
    assert node.peer(username="admin", password="a").sender("orders")
    peer = node.peer(username="reader", password="r")
    assert peer.receiver("orders")
    assert refusal(peer.sender, "orders")[0] == "amqp:unauthorized-access"


def test_peers_without_credentials_are_anonymous(nodes: Any) -> None:
    node = nodes(allow_anonymous=True, permissions={"anonymous": Permissions("", "", ".*")})
    node.create()
    peer = node.peer(username=None, mechanisms="ANONYMOUS")
    assert peer.receiver("orders")
    assert refusal(peer.sender, "orders") == (
        "amqp:unauthorized-access",
        "user 'anonymous' may not write stream 'orders'",
    )
    assert node.peer().sender("orders"), "guest is another"


def test_a_certificates_common_name_is_the_user(nodes: Any, tmp_path: Any) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    node = nodes(
        tls_cert=certificate, tls_key=key, tls_client_ca=str(authority.file), permissions={"ann": Permissions(write="")}
    )
    node.create()
    peer = node.peer(username=None, mechanisms="EXTERNAL", tls=authority.context(authority.issue("ann")))
    assert peer.receiver("orders")
    assert refusal(peer.sender, "orders")[0] == "amqp:unauthorized-access"


def test_a_terminus_of_another_user_is_not_taken_away(restricted: Any) -> None:
    """A durable link is known by container and name, which are no secret: the permission comes first."""
    durable = {"name": "link", "durability": 2, "expiry": 3}
    mine = restricted.peer(username="reader", password="r", container="c").receiver(
        "orders", filter=EARLIEST, **durable
    )
    taker = restricted.peer(username="writer", password="w", container="c")
    assert refusal(taker.receiver, "orders", filter=EARLIEST, **durable)[0] == "amqp:unauthorized-access"
    restricted.peer(username="admin", password="a").sender("orders").send(b"x")
    assert mine.take(1)[0].body == b"x"


@pytest.mark.parametrize("pattern", ["", ".*", "orders", "orders.*", "orders|payroll"])
def test_the_words_of_all_doors_agree(pattern: str) -> None:
    for action in ("configure", "write", "read"):
        ours, feeds = Permissions(**{action: pattern}), BearerToken("t", **{action: pattern})
        for name in ("orders", "orders-2", "payroll", "x-orders", ""):
            for asked in ("configure", "write", "read"):
                assert ours.allow(asked, name) == feeds.allow(asked, name)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"read is '\(', no regular expression"):
        Permissions(read="(")


@pytest.mark.parametrize(
    ("user", "streams"),
    [("admin", ["orders", "orders-2", "payroll"]), ("reader", ["orders", "orders-2"]), ("writer", [])],
)
def test_the_list_of_streams_has_those_that_the_user_may_read(restricted: Any, user: str, streams: list[str]) -> None:
    receiver = restricted.peer(username=user, password=USERS[user]).receiver("$streams")
    assert receiver.take(1)[0].body == {"x-opt-streams": streams}
    restricted.create("orders-3")
    assert receiver.take(1)[0].body == {"x-opt-streams": sorted({*streams, "orders-3"}) if streams else []}


def test_the_list_of_streams_is_only_read_and_hides_no_stream_of_that_name(restricted: Any) -> None:
    peer = restricted.peer(username="admin", password="a")
    assert refusal(peer.sender, "$streams")[0] == "amqp:not-found"
    restricted.create("$streams")
    peer.sender("$streams").send(b"x")
    assert peer.receiver("/$streams", filter=EARLIEST).take(1)[0].body == b"x"
    assert "$streams" in peer.receiver("$streams").take(1)[0].body["x-opt-streams"]
