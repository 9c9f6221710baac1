"""Who may in: SASL PLAIN, ANONYMOUS and EXTERNAL, and TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.certificate_authority import Authority
from tests.server.amqp.raw_peer import EARLIEST, Ended


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "authority")


@pytest.fixture
def tls_node(nodes: Any, ca: Authority) -> Any:
    """A node that speaks TLS and trusts client certificates of ``ca``."""
    certificate, key = ca.issue("server")
    node = nodes(tls_cert=certificate, tls_key=key, tls_client_ca=str(ca.file))
    node.create()
    return node


def works(peer: Any) -> bool:
    peer.sender("orders").send(b"x")
    return bool(peer.receiver("orders", filter=EARLIEST).take(1)[0].body == b"x")


def test_plain_with_the_right_password(nodes: Any) -> None:
    node = nodes(users={"ann": "geheim: ß", "bob": ""})
    node.create()
    assert works(node.peer(username="ann", password="geheim: ß"))
    for name, password in (("guest", "guest"), ("ann", "geheim"), ("ann", ""), ("", "")):
        with pytest.raises(Ended):
            node.peer(username=name, password=password)


@pytest.mark.parametrize(("name", "password"), [("guest", "wrong"), ("nobody", "guest"), ("GUEST", "guest")])
def test_plain_with_a_wrong_password_is_refused(node: Any, name: str, password: str) -> None:
    with pytest.raises(Ended) as ended:
        node.peer(username=name, password=password)
    assert ended.value.condition == "amqp:unauthorized-access"
    node.create()
    assert works(node.peer())


def test_anonymous_only_where_configured(nodes: Any) -> None:
    with pytest.raises(Ended) as ended:
        nodes(folder="a").peer(username=None, mechanisms="ANONYMOUS")
    assert ended.value.condition == "amqp:unauthorized-access"
    node = nodes(folder="b", allow_anonymous=True)
    node.create()
    assert works(node.peer(username=None, mechanisms="ANONYMOUS"))
    assert works(node.peer())


def exchange(node: Any, sent: bytes, *, reply: int = 1 << 16) -> bytes:
    """Send bytes on a fresh socket and return all that comes until the node closes it."""
    parts = urlsplit(node.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=120) as plain:
        plain.sendall(sent)
        received = b""
        while len(received) < reply:
            try:
                chunk = plain.recv(65536)
            except ConnectionResetError:
                break
            if not chunk:
                break
            received += chunk
        return received


def test_without_sasl_there_is_no_way_in(node: Any) -> None:
    node.create()
    answer = exchange(node, b"AMQP\x00\x01\x00\x00")
    assert answer == b"AMQP\x03\x01\x00\x00"  # what the node wants instead (AMQP 1.0 part 2 §2.2)
    assert works(node.peer())


def test_another_version_is_answered_with_ours(node: Any) -> None:
    """A client of AMQP 0-9-1, and one of a protocol id that there is not."""
    node.create()
    for header in (b"AMQP\x00\x00\x09\x01", b"AMQP\x07\x01\x00\x00", b"AMQP\x02\x01\x00\x00"):
        assert exchange(node, header).startswith(b"AMQP\x03\x01\x00\x00")
    assert works(node.peer())


def test_tls_with_plain(tls_node: Any, ca: Authority) -> None:
    assert tls_node.url.startswith("amqps://")
    assert works(tls_node.peer(tls=ca.context()))
    with pytest.raises(Ended):
        tls_node.peer(tls=ca.context(), password="wrong")


def test_external_with_a_client_certificate(tls_node: Any, ca: Authority) -> None:
    ann = ca.context(ca.issue("ann"))
    assert works(tls_node.peer(username=None, mechanisms="EXTERNAL", tls=ann))
    assert works(tls_node.peer(tls=ann))  # PLAIN stays possible


def test_guest_comes_from_loopback_alone_however_it_signs_in(nodes: Any, ca: Authority) -> None:
    certificate, key = ca.issue("server")
    tls = {"tls_cert": certificate, "tls_key": key, "tls_client_ca": str(ca.file)}
    users = {"guest": "guest", "ann": "secret"}
    node = nodes(users=users, loopback=frozenset({"192.0.2.0/24"}), **tls)  # where this test is, is not
    node.create()
    guest, ann = ca.context(ca.issue("guest")), ca.context(ca.issue("ann"))
    for sign_in in ({"tls": ann}, {"tls": guest, "username": None, "mechanisms": "EXTERNAL"}):
        with pytest.raises(Ended) as ended:
            node.peer(**sign_in)
        assert ended.value.condition == "amqp:unauthorized-access"
    assert works(node.peer(username="ann", password="secret", tls=guest))
    assert works(node.peer(username=None, mechanisms="EXTERNAL", tls=ann))
    everywhere = nodes(folder="insecure", users=users, loopback=frozenset({"192.0.2.0/24"}), insecure=True, **tls)
    everywhere.create()
    assert works(everywhere.peer(tls=ann))
    assert works(everywhere.peer(username=None, mechanisms="EXTERNAL", tls=guest))


def test_external_without_a_certificate_is_refused(tls_node: Any, ca: Authority) -> None:
    with pytest.raises(Ended) as ended:
        tls_node.peer(username=None, mechanisms="EXTERNAL", tls=ca.context())
    assert ended.value.condition == "amqp:unauthorized-access"


def test_external_is_not_offered_on_a_plain_connection(node: Any) -> None:
    with pytest.raises(Ended):
        node.peer(username=None, mechanisms="EXTERNAL")


def test_a_certificate_of_another_authority_is_refused(tls_node: Any, ca: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    context = ca.context(stranger.issue("mallory"))
    with pytest.raises((Ended, ssl.SSLError, ConnectionError)):
        tls_node.peer(username=None, mechanisms="EXTERNAL", tls=context)
    assert works(tls_node.peer(tls=ca.context()))


def test_the_servers_certificate_is_its_own(tls_node: Any, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        tls_node.peer(tls=Authority(tmp_path, "stranger").context())


def test_a_plain_client_on_a_tls_port_is_turned_away(tls_node: Any, ca: Authority) -> None:
    assert b"AMQP" not in exchange(tls_node, b"AMQP\x03\x01\x00\x00")
    assert works(tls_node.peer(tls=ca.context()))
