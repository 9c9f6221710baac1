"""Signing in at Event Hubs: by password, by signatures and by tokens, and what a user is told when it fails."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, quote_plus

import pytest

from spark_streams.client import AmqpClient
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.links import Binding, attach_sender
from spark_streams.client.amqp.sign_in import TokenSource, sign_in
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import open_socket
from spark_streams.endpoint import Endpoint, Secret, Tls
from spark_streams.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    NotFound,
    OptionError,
    Refused,
    SparkStreamsError,
)
from spark_streams.secrets import CalledSecret, FileSecret
from spark_streams.wire.amqp.dialects import EVENT_HUBS, EVENT_STREAMS, RABBITMQ
from spark_streams.wire.amqp.sasl import SaslClient, SaslLogin, SaslServer
from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from tests.client.amqp.fake_namespace import KEY, RULE, FakeNamespace, Namespace
from tests.client.amqp.fake_node import refuse
from tests.wire.amqp.test_cbs import jwt

WITHOUT_PLAIN = ("MSSBCBS", "ANONYMOUS", "EXTERNAL")
LATER_S = int(time.time()) + 7_200
provided = ""


def provide() -> str:
    """Return the token of the moment."""
    return provided


def with_key(server: FakeNamespace, key: str = KEY) -> Endpoint:
    return Endpoint("amqp", "127.0.0.1", server.port, RULE, Secret(key), option="connectionString")


def with_token(server: FakeNamespace, token: Secret | str, option: str = "url") -> Endpoint:
    secret = Secret(token) if isinstance(token, str) else token
    return Endpoint("amqp", "127.0.0.1", server.port, token=secret, option=option)


def signature(uri: str = "sb://127.0.0.1/orders", expires_s: int = LATER_S) -> str:
    return SharedAccessSignature.signed(uri, RULE, KEY, expires_s).text


def attached(endpoint: Endpoint, *addresses: str, timeout_ms: int = 60_000) -> Connection:
    """Connect, attach a sender to each address, and close; return the connection."""
    connection = Connection(endpoint, timeout_ms=timeout_ms)
    try:
        for address in addresses or ("orders",):
            attach_sender(connection, address, Binding(address)).close()
    finally:
        connection.close()
    return connection


def failure(endpoint: Endpoint, *addresses: str, timeout_ms: int = 60_000) -> SparkStreamsError:
    """Return the error of ``attached``, which shows no secret."""
    with pytest.raises(SparkStreamsError) as caught:
        attached(endpoint, *addresses, timeout_ms=timeout_ms)
    words = f"{caught.value} {caught.value!r}"
    for secret in (KEY, "geheim"):
        assert secret not in words
    assert isinstance(caught.value, OptionError) or endpoint.address in words
    return caught.value


def test_a_key_signs_in_by_plain() -> None:
    with FakeNamespace() as server:
        connection = attached(with_key(server))
        assert connection.peer.mechanisms == ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
        assert (server.signed_in, server.put, server.cbs_links) == ([f"PLAIN {RULE}"], [], [])
        assert [each.address for each in server.attaches] == ["orders"]


def test_a_wrong_key_names_the_option() -> None:
    with FakeNamespace() as server:
        fault = failure(with_key(server, "geheim-2"))
        assert isinstance(fault, AuthenticationFailed) and not fault.retriable
        assert f"not accepted for user '{RULE}' (PLAIN): check option 'connectionString'" in str(fault)


def test_without_plain_a_key_makes_signatures() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN)) as server:
        attached(with_key(server), "orders", "orders/Partitions/0")
        assert server.signed_in == ["ANONYMOUS anonymous"]
        (put,) = server.put
    assert (put.name, put.kind) == ("sb://127.0.0.1/orders", "servicebus.windows.net:sastoken")
    scheme, _, rest = put.token.partition(" ")
    parts = {name: value for name, (value,) in parse_qs(rest).items()}
    assert (scheme, parts["sr"], parts["skn"]) == ("SharedAccessSignature", "sb://127.0.0.1/orders", RULE)
    assert abs(int(parts["se"]) - time.time() - 3_600) < 600 and put.expires_ms == 1_000 * int(parts["se"])
    signed = hmac.new(KEY.encode(), f"{quote_plus(parts['sr'])}\n{parts['se']}".encode(), hashlib.sha256)
    assert parts["sig"] == base64.b64encode(signed.digest()).decode()


def test_each_hub_has_its_token_and_service_addresses_have_none() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN)) as server:
        connection = Connection(with_key(server), timeout_ms=60_000)
        for address in ("orders", "returns/ConsumerGroups/$Default/Partitions/1", "$management", "", "returns"):
            connection.grant(address)
        connection.close()
        assert [put.name for put in server.put] == ["sb://127.0.0.1/orders", "sb://127.0.0.1/returns"]
        assert len(server.cbs_links) == 2, "one pair for all"


def test_the_services_own_mechanism_is_taken_where_there_is_no_anonymous() -> None:
    with FakeNamespace(Namespace(mechanisms=("MSSBCBS",))) as server:
        attached(with_key(server))
        assert server.signed_in == ["MSSBCBS anonymous"] and len(server.put) == 1


def test_a_key_never_goes_another_way_where_the_peer_is_no_event_hubs() -> None:
    with FakeNamespace(Namespace(mechanisms=("ANONYMOUS",))) as server:
        fault = failure(with_key(server))
        assert isinstance(fault, AuthenticationFailed) and "does not offer PLAIN" in str(fault)


# --- signatures and tokens of the user


def test_a_signature_is_handed_over_as_it_is() -> None:
    text = signature()
    for option in ("url", "connectionString"):
        with FakeNamespace(Namespace(mechanisms=("PLAIN", "ANONYMOUS"))) as server:  # not known as an Event Hubs
            attached(with_token(server, text, option), "orders/Partitions/0")
            assert server.signed_in == ["ANONYMOUS anonymous"]
            assert [(put.kind, put.token, put.expires_ms) for put in server.put] == [
                ("servicebus.windows.net:sastoken", text, LATER_S * 1_000)
            ]


def test_a_signature_that_has_expired() -> None:
    with FakeNamespace() as server:
        fault = failure(with_token(server, signature(expires_s=1_700_000_000), "connectionString"))
        assert isinstance(fault, AuthenticationFailed)
        assert "the token has expired: check options 'connectionString' and 'token'" in str(fault)
        assert server.put == [], "the peer is not asked"


def test_a_signature_for_another_hub() -> None:
    with FakeNamespace() as server:
        fault = failure(with_token(server, signature("sb://127.0.0.1/returns")))
        assert isinstance(fault, AuthenticationFailed) and server.put == []
        assert "the signature is for 'sb://127.0.0.1/returns': check option 'token'" in str(fault)


def test_a_signature_of_the_namespace_is_for_all_hubs() -> None:
    with FakeNamespace() as server:
        attached(with_token(server, signature("sb://127.0.0.1/")), "orders", "returns")
        assert [put.name for put in server.put] == ["sb://127.0.0.1/orders", "sb://127.0.0.1/returns"]


def test_a_malformed_signature(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("SharedAccessSignature sr=a&sig=geheim\n")
    with FakeNamespace() as server:
        fault = failure(with_token(server, FileSecret(str(file), "tokenFile")))
        assert isinstance(fault, OptionError) and fault.option == "tokenFile"
        assert "without se, skn" in str(fault)


@pytest.mark.parametrize("how", ["token", "tokenFile", "tokenProvider"])
def test_a_token_of_entra(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = jwt(exp=LATER_S, aud="https://eventhubs.azure.net")
    file = tmp_path / "token"
    file.write_text(text)
    monkeypatch.setitem(globals(), "provided", text)
    secrets = {
        "token": Secret(text),
        "tokenFile": FileSecret(str(file), "tokenFile"),
        "tokenProvider": CalledSecret(f"{__name__}:provide", "tokenProvider"),
    }
    with FakeNamespace() as server:
        attached(with_token(server, secrets[how]), "orders", "returns")
        assert server.signed_in == ["ANONYMOUS anonymous"]
        assert [(put.name, put.kind, put.token) for put in server.put] == [
            ("sb://127.0.0.1/orders", "jwt", text),
            ("sb://127.0.0.1/returns", "jwt", text),
        ]


def test_a_token_that_the_peer_refuses() -> None:
    text = "geheim." + jwt(exp=LATER_S)
    said = Namespace(answer=lambda put: (401, f"InvalidSignature: {put.token} is wrong"))
    with FakeNamespace(said) as server:
        fault = failure(with_token(server, CalledSecret(f"{__name__}:provide", "tokenProvider")))
        assert isinstance(fault, OptionError), "the function returns nothing"
        fault = failure(with_token(server, text))
    assert isinstance(fault, AuthenticationFailed) and not fault.retriable
    assert "the peer refused the token (status 401, InvalidSignature: *** is wrong): check option 'token'" in str(fault)


def test_a_key_whose_signature_the_peer_refuses() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, answer=lambda put: (401, put.token))) as server:
        fault = failure(with_key(server))
    assert isinstance(fault, AuthenticationFailed) and "check option 'connectionString'" in str(fault)


def test_a_hub_that_there_is_not_leaves_the_connection_open() -> None:
    def answer(put: object) -> tuple[int, str]:
        return (404, "no such entity") if "nowhere" in str(put) else (202, "")

    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, answer=answer)) as server:
        connection = Connection(with_key(server), timeout_ms=60_000)
        for _ in range(2):
            with pytest.raises(NotFound, match=r"'nowhere'.*status 404, no such entity"):
                connection.grant("nowhere/Partitions/0")
        connection.grant("orders")
        assert not connection.broken and server.connections == 1
        connection.close()


def test_a_peer_that_is_busy_may_be_asked_again() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, answer=lambda put: (503, "busy"))) as server:
        fault = failure(with_key(server))
        assert isinstance(fault, Refused) and fault.retriable and "status 503: busy" in str(fault)


def test_a_peer_without_cbs() -> None:
    def no_cbs(link: object) -> bool:
        return refuse(link, "amqp:not-found", "there is no stream '$cbs' here")

    with FakeNamespace(Namespace(cbs=no_cbs)) as server:
        fault = failure(with_token(server, jwt()))
        assert isinstance(fault, AuthenticationFailed)
        assert "the peer takes no tokens over '$cbs'" in str(fault) and "there is no stream '$cbs' here" in str(fault)


def test_a_peer_that_does_not_answer() -> None:
    with FakeNamespace(Namespace(answer=lambda put: None)) as server:
        fault = failure(with_token(server, jwt()), timeout_ms=1_500)
        assert isinstance(fault, DeadlineExceeded) and "no answer from '$cbs' within 1500 ms" in str(fault)


# --- other peers


def test_rabbitmq_takes_a_token_as_password() -> None:
    text = jwt(exp=LATER_S)
    with FakeNamespace(Namespace(mechanisms=("PLAIN", "AMQPLAIN", "ANONYMOUS"), password=text)) as server:
        attached(with_token(server, text))
        assert server.signed_in == ["PLAIN token"] and server.put == []
        fault = failure(with_token(server, "geheim"))
        assert isinstance(fault, AuthenticationFailed)
        assert "check option 'token'; of the peers without '$cbs' only RabbitMQ takes tokens" in str(fault)


@pytest.mark.parametrize("size", [8_192, 8_193])
def test_a_password_that_no_frame_of_rabbitmq_holds_is_told_by_its_size_at_once(size: int) -> None:
    """RabbitMQ 4.3.6 closes the connection at a SASL frame of more than 8,192 bytes, and answers smaller ones."""
    sizes: list[int] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener is closed in the end
            while True:
                opened, _ = listener.accept()
                with opened:
                    sasl = SaslServer(("PLAIN",), lambda user, password: False)
                    opened.sendall(sasl.receive(opened.recv(8, socket.MSG_WAITALL)))
                    head = opened.recv(4, socket.MSG_WAITALL)
                    sizes.append(int.from_bytes(head, "big"))
                    if sizes[-1] <= 8_192:
                        opened.recv(sizes[-1] - 4, socket.MSG_WAITALL)
                        opened.sendall(bytes.fromhex("00000010020100000053 44c003015001"))  # sasl-outcome, code auth
                        opened.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        empty = SaslClient(lambda _: SaslLogin.plain("guest", "x" * 300), "127.0.0.1")
        offered = SaslServer(("PLAIN",), lambda user, password: False).receive(empty.start())
        password = "x" * (300 + size - len(empty.receive(offered)))
        endpoint = Endpoint("amqp", "127.0.0.1", port, "guest", Secret(password))
        with AmqpClient(endpoint) as client, pytest.raises(AuthenticationFailed) as caught:
            client.describe("orders")
    assert sizes == [size], "nothing is tried again"
    told = f"a frame of {size} bytes with user and password; RabbitMQ takes 8192 there: check options 'username'"
    assert (told in str(caught.value)) is (size > 8_192)


def test_the_dialect_that_is_told_decides() -> None:
    text = jwt(exp=LATER_S)

    def signed(server: FakeNamespace, dialect: object) -> tuple[str, bool]:
        endpoint = with_token(server, text)
        connected = open_socket(endpoint, Deadline(60_000))
        with connected:
            found = sign_in(connected, endpoint, "127.0.0.1", Deadline(60_000), dialect)  # type: ignore[arg-type]
        return server.signed_in[-1], found.tokens is not None

    with FakeNamespace(Namespace(password=text)) as server:
        assert signed(server, RABBITMQ) == ("PLAIN token", False)
    with FakeNamespace(Namespace(mechanisms=("PLAIN", "ANONYMOUS"), password=text)) as server:
        assert signed(server, EVENT_HUBS) == ("ANONYMOUS anonymous", True)
        with pytest.raises(OptionError, match="option 'token': peers of dialect 'event-streams' take no tokens"):
            signed(server, EVENT_STREAMS)


def test_tokens_of_a_source_are_remembered_before_they_are_sent() -> None:
    from spark_streams.redaction import hidden

    endpoint = Endpoint("amqp", "h", 5672, RULE, Secret("geheim-key-of-a-source"))
    token = TokenSource(endpoint, "h", lambda: 1_790_000_000.5).token("orders")
    assert token.expires_s == 1_790_003_600
    assert "geheim" not in hidden("geheim-key-of-a-source") and "sig" not in hidden(f"got {token.text}")


def test_a_certificate_of_nobody() -> None:
    """The peer trusts it, and knows no user of the name in it."""
    ours, theirs = socket.socketpair()
    mechanisms = b"\0\0\0\x1b\2\1\0\0\0S@\xc0\x0e\1\xe0\x0b\1\xa3\x08EXTERNAL"
    not_accepted = b"\0\0\0\x10\2\1\0\0\0SD\xc0\3\1P\1"
    with ours, theirs:
        theirs.sendall(b"AMQP\3\1\0\0" + mechanisms + not_accepted)
        certified = Endpoint("amqps", "localhost", 5671, tls=Tls(cert_file="ann.pem"))
        with pytest.raises(AuthenticationFailed) as raised:
            sign_in(ours, certified, "localhost", Deadline(60_000))
    assert "lets in no user of the name in it" in str(raised.value) and "'username'" not in str(raised.value)
