"""Names what answers at a port by its first bytes, and says which url to use, where a client expected something else.

::

    "AMQP" 0|2|3 1 0 0           AMQP 1.0, and SASL or TLS below it (part 2 §2.2)
    "AMQP" any other four        an older AMQP, such as "AMQP" 0 0 9 1 (AMQP 0-9-1 §4.2.2)
    size(4) 0x8011|0x8012 0 1    RabbitMQ's stream protocol: the answer to PeerProperties or SaslHandshake
    "HTTP/"                      HTTP (RFC 9112 §4)
    0x14…0x16 0x03               a record of TLS (RFC 8446 §5.1): an alert, or the answer to a hello
    size(4) "sprk"               Kafka: the answer to our ApiVersions, with its correlation id
    "SSH-", "220 ", "220-"       servers that speak first: SSH (RFC 4253 §4.2), SMTP (RFC 5321 §4.2) or FTP

Some peers say nothing to foreign bytes: RabbitMQ's stream protocol hangs up, and HTTP waits for the end of a line. So a
client that heard nothing takes one ``look``: it says hello in every protocol at the same time, on connections that
carry no credentials, and ends it with the first answer that is known. A port that speaks TLS is asked again within it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_streams.client.tls import plain_port_advice, tls_context
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed, OptionError
from spark_streams.protocols import PROTOCOLS, Protocol, protocol_of
from spark_streams.redaction import safe_text

LOOK_AFTER_S: Final = 2.0
"""How many seconds a peer may be silent before a client looks who it is: longer than one that is busy needs."""
LOOK_S: Final = 3.0
"""How many seconds a look takes at most, for TLS again as long; a peer that says anything known ends it at once."""
LOOKS_APART_S: Final = 30.0
"""How many seconds this process takes no other look at a port where it found nothing wrong: a broker that is being
restarted hangs up for as long, and a load balancer that takes turns would lead each next try to the same node."""
_IN_VAIN: Final[dict[Node, float]] = {}
_READ_BYTES: Final = 2_048
_AMQP_HEADER_BYTES: Final = 8
_SAID: Final = 60
"""Characters of an answer that a message has."""


@dataclass(frozen=True)
class Spoken:
    """A protocol that may answer at a port.

    Args:
        title: what people call it.
        name: its entry in ``PROTOCOLS``; None for one that we do not speak.
        todo: what to do instead of reading it; for one that we do not speak.
    """

    title: str
    name: str | None = None
    todo: str = ""

    @property
    def entry(self) -> Protocol | None:
        """Its entry in ``PROTOCOLS``."""
        return None if self.name is None else PROTOCOLS[self.name]


AMQP: Final = Spoken("AMQP 1.0", "amqp")
STREAMS: Final = Spoken("RabbitMQ's stream protocol", "rabbitmq-stream")
HTTP: Final = Spoken("HTTP", "feedapi")
OLD_AMQP: Final = Spoken(
    "AMQP 0-9-1 or older",
    todo="RabbitMQ speaks AMQP 1.0 since version 4, and before with the plugin rabbitmq_amqp1_0; its streams are read "
    "without that by format 'rabbitmq-stream', rabbitmq-stream://host:5552",
)
KAFKA: Final = Spoken("Kafka's protocol", todo="Spark reads Kafka with its own format 'kafka'")
SSH: Final = Spoken("SSH")
MAIL: Final = Spoken("a mail or FTP server")
TLS: Final = Spoken("TLS")
WEB_SOCKET: Final = Spoken("AMQP 1.0 over WebSockets", "amqp")
_BY_SCHEME: Final = {scheme: each for each in (AMQP, STREAMS, HTTP) for scheme in PROTOCOLS[each.name or ""].schemes}

_CORRELATION: Final = b"sprk"
_REFUSED_BY_HTTP: Final = b"HTTP/1.1 400"
"""What some servers of HTTPS say to plain HTTP too: only what they say to TLS tells that they speak it."""


class Found(NamedTuple):
    """What answers at a port.

    Args:
        spoken: the protocol; None where the answer is of none that is known here.
        said: the first bytes of the answer.
        secured: whether it answers within TLS.
    """

    spoken: Spoken | None
    said: bytes
    secured: bool = False


def recognised(first: bytes) -> Spoken | None:
    """Return the protocol that an answer's first bytes are of; None for one that is not known, or for too few bytes."""
    if first[:4] == b"AMQP" and len(first) >= _AMQP_HEADER_BYTES:
        return AMQP if first[4] in (0, 2, 3) and first[5:8] == b"\x01\0\0" else OLD_AMQP
    if first[4:8] in (b"\x80\x11\0\x01", b"\x80\x12\0\x01"):
        return STREAMS
    if first[4:8] == _CORRELATION:
        return KAFKA
    starts: Mapping[bytes, Spoken] = {b"HTTP/": HTTP, b"SSH-": SSH, b"220 ": MAIL, b"220-": MAIL}
    starts = {**starts, **{bytes((kind, 3)): TLS for kind in (0x14, 0x15, 0x16)}}
    return next((spoken for start, spoken in starts.items() if first.startswith(start)), None)


def wrong_port(
    endpoint: Endpoint, heard: bytes = b"", *, where: str | None = None, by_look: bool = True
) -> ConnectFailed | None:
    """Return the error for a port where something else answers than the endpoint's url says; it is not retriable.

    Args:
        endpoint: one host of the peer.
        heard: the first bytes that came, within TLS where the endpoint has TLS; none if it said nothing.
        where: what the message begins with; None for the host and port.
        by_look: whether to look where ``heard`` does not tell; false where connections go there through a proxy.

    Returns:
        None where it speaks what was expected, and where that is not known.
    """
    wanted = _BY_SCHEME.get(endpoint.scheme) if endpoint.transport == "tcp" else WEB_SOCKET
    if wanted is None:
        return None  # a protocol that has no hello here
    found = Found(recognised(heard), heard, endpoint.tls is not None) if heard else None
    # HTTP may be what a port of HTTPS says to those who speak without TLS, and an alert does not say what is below it.
    tells = found is not None and found.spoken not in (None, HTTP, TLS)
    looks = by_look and not tells and not endpoint.is_advertised and not _was_in_vain(endpoint)
    if looks:
        found = look(endpoint) or found
    is_wanted = found is not None and _is_carried(wanted, found) and found.secured == (endpoint.tls is not None)
    if found is None or is_wanted or (found.spoken is TLS and endpoint.tls is not None):
        if looks:
            _IN_VAIN[endpoint.dialled] = time.monotonic()
        return None
    failed = ConnectFailed(f"{where or endpoint.address}: {_advice(endpoint, wanted, found)}")
    failed.retriable = False
    return failed


def _was_in_vain(endpoint: Endpoint) -> bool:
    at_s = _IN_VAIN.get(endpoint.dialled)
    return at_s is not None and time.monotonic() - at_s < LOOKS_APART_S


def look(endpoint: Endpoint) -> Found | None:
    """Return what answers at an endpoint, by hellos in every protocol; None where nothing does.

    Nothing secret is sent, so the certificate of a peer whose endpoint has no TLS is not checked.
    """
    host = f"[{endpoint.tls_name}]" if ":" in endpoint.tls_name else endpoint.tls_name
    http = f"HEAD / HTTP/1.1\r\nHost: {host}:{endpoint.dialled[1]}\r\nConnection: close\r\n\r\n".encode()
    hellos = (*_hellos(), http)
    plain = _first_known(endpoint, (*hellos, _client_hello(endpoint.tls_name)), None)
    if plain is None or plain.spoken is not TLS:
        return plain
    try:
        context = _unchecked() if endpoint.tls is None else tls_context(endpoint.tls)
    except OptionError:
        return plain
    within = _first_known(endpoint, hellos, context)
    return plain if within is None else within._replace(secured=True)


def _hellos() -> tuple[bytes, ...]:
    """Return the first bytes of clients of AMQP 1.0, RabbitMQ's streams and Kafka."""
    # Here, as most processes speak one protocol, and load no other.
    from spark_streams.wire.amqp.sasl import SASL_HEADER
    from spark_streams.wire.rabbitmq.connection_commands import PeerProperties

    introduction = PeerProperties({"product": "spark-streams"}, correlation_id=1).encode()
    api_versions = b"\0\0\0\x0a\0\x12\0\0" + _CORRELATION + b"\xff\xff"  # version 0, without a client id
    return SASL_HEADER, introduction, api_versions


def _first_known(endpoint: Endpoint, hellos: tuple[bytes, ...], context: ssl.SSLContext | None) -> Found | None:
    """Return the first answer to some hellos that is known, else one of the others."""
    other: Found | None = None
    for said in _answers(endpoint, hellos, context):
        found = Found(recognised(said), said)
        if found.spoken is not None and not said.startswith(_REFUSED_BY_HTTP):
            return found
        if other is None or other.spoken is None:
            other = found
    return other


def _answers(endpoint: Endpoint, hellos: tuple[bytes, ...], context: ssl.SSLContext | None) -> Iterator[bytes]:
    """Yield the first bytes of the answers to some hellos, each on a connection of its own, as they come."""
    until = time.monotonic() + LOOK_S
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for hello in hellos:
            with contextlib.suppress(OSError, UnicodeError):  # that hello gets no answer
                left_s = max(0.001, until - time.monotonic())
                connected = stack.enter_context(socket.create_connection(endpoint.dialled, left_s))
                if context is not None:
                    secured = context.wrap_socket(connected, server_hostname=endpoint.tls_name)
                    connected = stack.enter_context(secured)
                connected.sendall(hello)
                connected.setblocking(False)
                selector.register(connected, selectors.EVENT_READ, bytearray())
        while selector.get_map() and (left_s := until - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                try:
                    received = key.fileobj.recv(_READ_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError):
                    continue
                except OSError:
                    received = b""
                key.data.extend(received)
                if not received or len(key.data) >= len(_REFUSED_BY_HTTP) or _is_of_no_http(bytes(key.data)):
                    selector.unregister(key.fileobj)
                    if key.data:
                        yield bytes(key.data)


def _is_of_no_http(said: bytes) -> bool:
    return recognised(said) not in (None, HTTP)


def _client_hello(name: str) -> bytes:
    """Return the first bytes of a client that speaks TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        _unchecked().wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# --- what a user is told


def _advice(endpoint: Endpoint, wanted: Spoken, found: Found) -> str:
    """Return what answers, what was expected, and what to do."""
    spoken = found.spoken
    if spoken is None:
        return f"the peer does not speak {wanted.title}, it answered {_said(found)}: {_other_port(endpoint, wanted)}"
    if spoken is TLS or (_is_carried(wanted, found) and found.secured):
        return f"the port speaks TLS: {secured_advice(endpoint)}"
    if _is_carried(wanted, found):
        return plain_port_advice(f"{spoken.title} answers without it", endpoint.scheme, endpoint.option)
    if wanted is WEB_SOCKET and spoken is AMQP:
        url = _url(endpoint, PROTOCOLS["amqp"], found)
        return f"the port does not speak WebSockets, but AMQP 1.0 itself: leave out option 'transport', and write {url}"
    expected = f"{spoken.title} answers there{', with TLS' if found.secured else ''}, and {wanted.title} was expected: "
    entry = spoken.entry
    if entry is None:
        todo = spoken.todo or f"it said {_said(found)}"
        return f"{expected}{todo}; {_other_port(endpoint, wanted)}"
    if spoken is HTTP and b"server: cowboy" in found.said.lower():
        return f"{expected}it looks like RabbitMQ's management; {_other_port(endpoint, wanted)}"
    url = _url(endpoint, entry, found)
    if spoken is HTTP:
        web = "; at an Event Hubs, set option 'transport' to 'websocket'" if wanted is AMQP and found.secured else ""
        return f"{expected}{_other_port(endpoint, wanted)}; if it is a feed, write {url}/… with format 'feedapi'{web}"
    return f"{expected}write {url} with format '{entry.format}', or {_other_port(endpoint, wanted)}"


def _url(endpoint: Endpoint, entry: Protocol, found: Found) -> str:
    """Return the url of a protocol for the host and port that the endpoint's connections go to."""
    where = endpoint.at(endpoint.dialled, is_advertised=False).reached("tcp", None)
    return f"{entry.tls_scheme if found.secured else entry.scheme}://{where.address}"


def _is_carried(wanted: Spoken, found: Found) -> bool:
    """Return whether what answers is what was expected, or what carries it."""
    return found.spoken is (HTTP if wanted is WEB_SOCKET else wanted)


def secured_advice(endpoint: Endpoint) -> str:
    """Return what to write for a port that speaks TLS."""
    if endpoint.option != "url":
        return f"leave out UseDevelopmentEmulator=true in option '{endpoint.option}'"
    protocol = protocol_of(endpoint.scheme)
    assert protocol is not None  # an endpoint's scheme is that of an entry
    return f"write {protocol.tls_scheme}:// instead of {protocol.scheme}:// in option 'url'"


def _other_port(endpoint: Endpoint, wanted: Spoken) -> str:
    option = endpoint.option if endpoint.via is None else "customEndpoint"
    entry = wanted.entry
    usual = f" ({entry.port} is usual, {entry.tls_port} with TLS)" if entry and wanted in (AMQP, STREAMS) else ""
    return f"check the port in option '{option}'{usual}"


def _said(found: Found) -> str:
    line = found.said.decode("latin-1").strip().partition("\n")[0]
    return f"'{safe_text(line, _SAID)}'"
