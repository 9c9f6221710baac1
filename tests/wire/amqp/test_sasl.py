"""The SASL layer: frames byte for byte, each role against our other role and against qpid-proton, and garbage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import SASL, Connection, Transport

from spark_streams.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from spark_streams.wire.amqp.sasl import AMQP_HEADER, SASL_HEADER, SaslClient, SaslLogin, SaslServer
from tests.examples import examples

# By hand from AMQP 1.0 part 5 §5.3: size, doff 2, type 1, two ignored bytes, described list.
MECHANISMS = bytes.fromhex("0000002102010000005340c01401e01102a305504c41494e0845585445524e414c")
MECHANISM_PLAIN = bytes.fromhex("0000001502010000005340c00801a305504c41494e")
INIT_GUEST = bytes.fromhex("0000002302010000005341c01602a305504c41494ea00c006775657374006775657374")
OUTCOME_OK = bytes.fromhex("0000001002010000005344c003015000")
OUTCOME_AUTH = bytes.fromhex("0000001002010000005344c003015001")


def users(user: str, password: str) -> bool:
    return (user, password) in {("guest", "guest"), ("žofie", "heslo☃")}


def server(*mechanisms: str, identity: str | None = None) -> SaslServer:
    return SaslServer(mechanisms or ("PLAIN",), users, identity)


def client_of(
    username: str | None = None, password: str = "", *, external: bool = False, hostname: str | None = None
) -> SaslClient:
    """Return a client that signs in by EXTERNAL, by PLAIN with a username, or else by ANONYMOUS."""
    login = SaslLogin("EXTERNAL" if external else "ANONYMOUS")
    if username is not None:
        login = SaslLogin.plain(username, password)
    return SaslClient(lambda offered: login, hostname)


def run(one: SaslClient, other: SaslServer, step: int = 1000) -> None:
    """Let two layers talk through a buffer of ``step`` bytes."""
    to_server, to_client = one.start(), b""
    while to_server or to_client:
        part, to_server = to_server[:step], to_server[step:]
        to_client += other.receive(part)
        part, to_client = to_client[:step], to_client[step:]
        to_server += one.receive(part)


def test_plain_byte_for_byte() -> None:
    peer = server("PLAIN", "EXTERNAL", identity="CN=client")
    assert SASL_HEADER == b"AMQP\x03\x01\x00\x00"
    assert peer.receive(SASL_HEADER) == SASL_HEADER + MECHANISMS
    client = client_of("guest", "guest")
    assert client.start() == SASL_HEADER
    assert client.receive(SASL_HEADER + MECHANISM_PLAIN) == INIT_GUEST
    assert peer.receive(INIT_GUEST + AMQP_HEADER) == OUTCOME_OK
    assert (peer.done, peer.identity, peer.mechanism, peer.leftover) == (True, "guest", "PLAIN", AMQP_HEADER)
    assert client.receive(OUTCOME_OK + AMQP_HEADER + b"\x00") == b""
    assert client.done and client.leftover == AMQP_HEADER + b"\x00"


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    ("client", "peer", "identity", "mechanism"),
    [
        (client_of, ("PLAIN", "ANONYMOUS"), "anonymous", "ANONYMOUS"),
        (lambda: client_of("guest", "guest", hostname="h"), ("PLAIN",), "guest", "PLAIN"),
        (lambda: client_of("žofie", "heslo☃"), ("EXTERNAL", "PLAIN"), "žofie", "PLAIN"),
        (lambda: client_of(external=True), ("EXTERNAL", "PLAIN"), "CN=client", "EXTERNAL"),
    ],
)
def test_both_roles(client, peer, identity, mechanism, step) -> None:  # type: ignore[no-untyped-def]
    one, other = client(), server(*peer, identity="CN=client")
    run(one, other, step)
    assert one.done and other.done and not other.failed
    assert (other.identity, other.mechanism) == (identity, mechanism)


@pytest.mark.parametrize("step", [1, 1000])
def test_a_wrong_password(step: int) -> None:
    one, other = client_of("guest", "wr0ng"), server()
    with pytest.raises(AuthenticationFailed, match="the credentials were not accepted for user 'guest'") as caught:
        run(one, other, step)
    assert "wr0ng" not in str(caught.value) + repr(caught.value) + repr(vars(caught.value))
    assert other.failed and not other.done and other.identity is None
    assert not one.done


def test_outcome_of_a_wrong_password_is_auth() -> None:
    peer = server()
    peer.receive(SASL_HEADER)
    assert peer.receive(INIT_GUEST[:-1] + b"x") == OUTCOME_AUTH
    assert peer.failed
    assert peer.receive(INIT_GUEST) == b"" and not peer.done


@pytest.mark.parametrize(
    "response", [b"", b"guest", b"guest\0guest", b"\0\0guest", b"other\0guest\0guest", b"\0guest\0gu\xff", b"\0a\0b\0c"]
)
def test_plain_responses_that_prove_nothing(response: bytes) -> None:
    body = (
        b"\x00\x53\x41"
        + bytes((0xC0, 10 + len(response), 2))
        + b"\xa3\x05PLAIN\xa0"
        + bytes((len(response),))
        + response
    )
    peer = server()
    peer.receive(SASL_HEADER)
    assert peer.receive((len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body) == OUTCOME_AUTH


def test_external_acts_for_nobody_else() -> None:
    body = b"\x00\x53\x41\xc0\x12\x02\xa3\x08EXTERNAL\xa0\x05admin"
    peer = server("EXTERNAL", identity="CN=client")
    peer.receive(SASL_HEADER)
    assert peer.receive((len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body) == OUTCOME_AUTH


def test_external_needs_a_certificate_and_anonymous_is_not_taken_unasked() -> None:
    assert server("EXTERNAL", "PLAIN").mechanisms == ("PLAIN",)
    with pytest.raises(AuthenticationFailed, match="does not offer EXTERNAL, it offers PLAIN"):
        run(client_of(external=True), server("EXTERNAL", "PLAIN"))
    with pytest.raises(AuthenticationFailed, match="does not offer ANONYMOUS, it offers PLAIN; give a username"):
        run(client_of(), server())
    one, other = client_of("guest", "guest"), server("ANONYMOUS")
    with pytest.raises(AuthenticationFailed, match="does not offer PLAIN, it offers ANONYMOUS"):
        run(one, other)
    with pytest.raises(AuthenticationFailed, match="it offers nothing"):
        run(client_of("guest", "guest"), SaslServer((), users))
    peer = server()
    peer.receive(SASL_HEADER)
    anonymous = b"\x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
    assert peer.receive(anonymous) == OUTCOME_AUTH


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(("offered", "identity"), [(("PLAIN", "ANONYMOUS"), "guest"), (("ANONYMOUS",), "anonymous")])
def test_a_client_chooses_by_what_is_offered(step: int, offered: tuple[str, ...], identity: str) -> None:
    def choose(mechanisms: tuple[str, ...]) -> SaslLogin:
        return SaslLogin.plain("guest", "guest") if "PLAIN" in mechanisms else SaslLogin("ANONYMOUS")

    one, other = SaslClient(choose), server(*offered)
    assert one.mechanism is None and one.offered == ()
    run(one, other, step)
    assert one.done and other.identity == identity
    assert (one.offered, one.mechanism) == (offered, other.mechanism)


def test_a_login_shows_no_password() -> None:
    assert "geheim" not in repr(SaslLogin.plain("guest", "geheim"))
    with pytest.raises(LocalProtocolError, match="holds a NUL"):
        SaslLogin.plain("guest", "a\0b")


def test_a_client_without_sasl_is_told_apart() -> None:
    peer = server()
    assert peer.receive(AMQP_HEADER[:5]) == b"" and not peer.done
    assert peer.receive(AMQP_HEADER[5:] + b"\x00\x00") == b""
    assert peer.done and peer.skipped and peer.identity is None
    assert peer.leftover == AMQP_HEADER + b"\x00\x00"
    with pytest.raises(AuthenticationFailed, match="another protocol header"):
        client_of("guest", "guest").receive(AMQP_HEADER)


@pytest.mark.parametrize(
    ("received", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak AMQP"),
        (b"X", "does not speak AMQP"),
        (b"AMQP\x01\x01\x00\x00", "protocol header"),
        (b"AMQP\x03\x00\x09\x01", "protocol header"),
        (SASL_HEADER + b"\x00\x00\x00\x07\x02\x01\x00\x00", "SASL frame of 7 bytes"),
        (SASL_HEADER + b"\x00\x10\x00\x00\x02\x01\x00\x00", "SASL frame of 1048576 bytes: expected 8 to 4096"),
        (SASL_HEADER + b"\x00\x00\x00\x08\x02\x00\x00\x00", "type 0"),
        (SASL_HEADER + b"\x00\x00\x00\x08\x03\x01\x00\x00", "data offset 3"),
        (SASL_HEADER + b"\x00\x00\x00\x09\x02\x01\x00\x00\x40", "is none of SASL"),
        (SASL_HEADER + b"\x00\x00\x00\x0d\x02\x01\x00\x00\x00\x53\x10\x45\x00", "is none of SASL"),
        (SASL_HEADER + b"\x00\x00\x00\x0d\x02\x01\x00\x00\x00\x53\x41\x45\x00", "1 bytes after"),
        (SASL_HEADER + OUTCOME_OK, "sasl-outcome from a SASL client"),
        (SASL_HEADER + b"\x00\x00\x00\x0f\x02\x01\x00\x00\x00\x53\x41\xc0\x02\x01\x41", "sasl-init mechanism: a bool"),
    ],
)
def test_a_client_that_breaks_the_protocol(received: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        server().receive(received)
    peer = server()
    with pytest.raises(RemoteProtocolError, match=reason):
        for i in range(len(received)):
            peer.receive(received[i : i + 1])


def test_a_server_that_breaks_the_protocol() -> None:
    for received, reason in [
        (SASL_HEADER + OUTCOME_OK, "when it was not due"),
        (SASL_HEADER + MECHANISM_PLAIN + MECHANISM_PLAIN, "when it was not due"),
        (SASL_HEADER + b"\x00\x00\x00\x0f\x02\x01\x00\x00\x00\x53\x40\xc0\x02\x01\x41", "sasl-mechanisms: a bool"),
        (SASL_HEADER + MECHANISM_PLAIN + b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x44\x45", "has no code"),
    ]:
        with pytest.raises(RemoteProtocolError, match=reason):
            client_of("guest", "guest").receive(received)


@pytest.mark.parametrize(("code", "words"), [(2, "system error"), (3, "permanent"), (4, "transient"), (9, "outcome 9")])
def test_other_outcomes(code: int, words: str) -> None:
    client = client_of("guest", "guest")
    client.receive(SASL_HEADER + MECHANISM_PLAIN)
    with pytest.raises(AuthenticationFailed, match=words):
        client.receive(OUTCOME_OK[:-1] + bytes((code,)))


def test_our_own_faults() -> None:
    with pytest.raises(LocalProtocolError):
        SaslServer(("GSSAPI",), users)
    with pytest.raises(LocalProtocolError):
        SaslServer(("PLAIN", "SCRAM"), users)
    with pytest.raises(LocalProtocolError) as caught:
        client_of("guest", "se\0cret")
    assert "cret" not in str(caught.value)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=80), st.booleans(), st.integers(0, 60))
def test_garbage_is_a_protocol_error_or_nothing(garbage: bytes, framed: bool, cut: int) -> None:
    if framed:
        garbage = SASL_HEADER + (8 + len(garbage)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + garbage
    for peer in (server(), client_of("guest", "guest")):
        try:
            peer.receive(garbage[:cut])
            peer.receive(garbage[cut:])
        except (RemoteProtocolError, AuthenticationFailed):
            continue
        assert isinstance(peer, SaslServer) or not peer.done


# ------------------------------------------------------------ qpid-proton as the peer


def proton_client(user: str | None, password: str | None, mechanism: str) -> Transport:
    transport = Transport(Transport.CLIENT)
    sasl = transport.sasl()
    sasl.allow_insecure_mechs = True
    sasl.allowed_mechs(mechanism)
    connection = Connection()
    if user is not None:
        connection.user, connection.password = user, password
    connection.hostname = "localhost"
    transport.bind(connection)
    connection.open()
    return transport


def taken(transport: Transport) -> bytes:
    pending = transport.pending()
    if pending <= 0:
        return b""
    out = bytes(transport.peek(pending))
    transport.pop(len(out))
    return out


@pytest.mark.parametrize(
    ("user", "password", "mechanism", "identity"),
    [
        ("guest", "guest", "PLAIN", "guest"),
        ("žofie", "heslo☃", "PLAIN", "žofie"),
        (None, None, "ANONYMOUS", "anonymous"),
    ],
)
def test_a_proton_client(user: str | None, password: str | None, mechanism: str, identity: str) -> None:
    transport, peer = proton_client(user, password, mechanism), server("PLAIN", "ANONYMOUS")
    for _ in range(10):
        answer = peer.receive(taken(transport))
        if answer:
            transport.push(answer)
    assert peer.done and (peer.identity, peer.mechanism) == (identity, mechanism)
    assert transport.sasl().outcome == SASL.OK
    assert (peer.leftover + taken(transport)).startswith(AMQP_HEADER)


def test_a_proton_client_with_a_wrong_password() -> None:
    transport, peer = proton_client("guest", "wrong", "PLAIN"), server("PLAIN")
    for _ in range(10):
        answer = peer.receive(taken(transport))
        if answer:
            transport.push(answer)
    assert peer.failed and not peer.done
    assert transport.sasl().outcome == SASL.AUTH


def test_a_proton_server() -> None:
    transport = Transport(Transport.SERVER)
    sasl = transport.sasl()
    sasl.allowed_mechs("ANONYMOUS")
    transport.bind(Connection())
    client = client_of()
    transport.push(client.start())
    for _ in range(10):
        answer = client.receive(taken(transport))
        if answer:
            transport.push(answer)
    assert client.done
    assert sasl.outcome == SASL.OK
