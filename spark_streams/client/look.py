"""Looks who answers at a port: says hello in every protocol at the same time, on connections without credentials.

The hello of the wanted protocol decides. What another one is answered counts once that one has got no answer: many
ports speak several protocols, and a proxy has words of its own for a peer that is being restarted. Where TLS is wanted,
its hello goes alone, and the others after it if nothing of TLS came. A port that speaks TLS is asked again within it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Final

from spark_streams.client.first_bytes import (
    AMQP,
    CORRELATION,
    HTTP,
    KAFKA,
    STATUS,
    STREAMS,
    TLS,
    Found,
    Spoken,
    is_refused,
    is_served,
    recognised,
)
from spark_streams.client.retry import Deadline
from spark_streams.client.timed import Address, connect
from spark_streams.client.tls import tls_context
from spark_streams.endpoint import Endpoint
from spark_streams.errors import OptionError

LOOK_S: Final = 3.0
"""How many seconds one round of hellos takes at most: the answer to the wanted one ends it at once."""
_READ_BYTES: Final = 2_048
_NOT_HERE: Final = "/.well-known/spark-streams"
"""A path that nobody has: servers of HTTP answer 404, where many send those who ask for / elsewhere."""


def look(endpoint: Endpoint, wanted: Spoken, deadline: Deadline) -> Found | None:
    """Return what answers at an endpoint, by hellos in every protocol; None where nothing does that proves it.

    Nothing secret is sent, so the certificate of a peer whose endpoint has no TLS is not checked.

    Args:
        endpoint: one host of the peer.
        wanted: the protocol that decides if it is answered; HTTP for what HTTP carries.
        deadline: when it has to end.
    """
    hellos = _hellos(endpoint, wanted)
    of_tls = {TLS: _client_hello(endpoint.tls_name)}
    if endpoint.tls is None:
        found = _first_known(endpoint, {**hellos, **of_tls}, wanted, deadline)
    else:
        found = _first_known(endpoint, of_tls, TLS, deadline)
        if found is None or found.spoken is not TLS:
            found = _first_known(endpoint, hellos, wanted, deadline)
    if found is None or found.spoken is not TLS:
        return found
    try:
        context = _unchecked() if endpoint.tls is None else tls_context(endpoint.tls)
    except OptionError:
        return found
    within = _first_known(endpoint, hellos, wanted, deadline, context)
    return found if within is None else within._replace(secured=True)


def _hellos(endpoint: Endpoint, wanted: Spoken) -> dict[Spoken, bytes]:
    """Return the first bytes of clients without TLS; those of the wanted protocol come first."""
    # Here, as most processes speak one protocol, and load no other.
    from spark_streams.wire.amqp.sasl import SASL_HEADER
    from spark_streams.wire.rabbitmq.connection_commands import PeerProperties

    head = f"HEAD {_NOT_HERE} HTTP/1.1\r\nHost: {endpoint.http_host}\r\nConnection: close\r\n\r\n"
    hellos = {
        AMQP: SASL_HEADER,
        STREAMS: PeerProperties({"product": "spark-streams"}, correlation_id=1).encode(),
        KAFKA: b"\0\0\0\x0a\0\x12\0\0" + CORRELATION + b"\xff\xff",  # ApiVersions, version 0, without a client id
        HTTP: head.encode(),
    }
    return {wanted: hellos[wanted], **hellos}


def _first_known(
    endpoint: Endpoint,
    hellos: Mapping[Spoken, bytes],
    wanted: Spoken,
    deadline: Deadline,
    context: ssl.SSLContext | None = None,
) -> Found | None:
    """Return the wanted protocol if any answer is of it, else the first answer that proves another; None for neither.

    Other protocols count once the wanted hello's connection has ended, or the time has. What is known of none counts
    there alone.
    """
    if deadline.passed:
        return None
    until = time.monotonic() + min(LOOK_S, deadline.left_s(""))
    is_without = context is None and endpoint.tls is not None
    proof: Found | None = None
    refused: Found | None = None
    own: Found | None = None
    is_over = False
    for hello, said in _answers(endpoint, hellos, until, context):
        found = Found(recognised(said), said)
        is_certain = found.spoken is not None and (found.spoken is not HTTP or is_served(said))
        if found.spoken is wanted and (is_certain or not is_without):
            return found
        if hello is wanted:
            is_over = True
            own = found if said and found.spoken is None else None
        if is_certain:
            proof = proof or found
        elif found.spoken is HTTP and hello is not HTTP and is_refused(said) and not is_without:
            refused = refused or found  # a server of HTTP that got no request; one of HTTPS may answer so too
        if is_over and proof is not None:
            break
    return proof or refused or own


def _answers(
    endpoint: Endpoint, hellos: Mapping[Spoken, bytes], until: float, context: ssl.SSLContext | None
) -> Iterator[tuple[Spoken, bytes]]:
    """Yield each hello with the first bytes of its answer, as they come; none where the peer hung up.

    Each has a connection of its own. Nothing is yielded where there is none for the first hello.
    """
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        address: Address | None = None
        ended = []
        for spoken, hello in hellos.items():
            try:
                connected, address = connect(endpoint.dialled, until, address)
            except (OSError, UnicodeError):
                if address is None:
                    return
                continue
            stack.enter_context(connected)
            try:
                if context is not None:
                    connected = context.wrap_socket(connected, server_hostname=endpoint.tls_name)
                    stack.enter_context(connected)
                connected.sendall(hello)
            except OSError:
                ended.append(spoken)
                continue
            connected.setblocking(False)
            selector.register(connected, selectors.EVENT_READ, (spoken, bytearray()))
        yield from ((spoken, b"") for spoken in ended)
        while selector.get_map() and (left_s := until - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                spoken, said = key.data
                try:
                    received = key.fileobj.recv(_READ_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError):
                    continue
                except OSError:
                    received = b""
                said.extend(received)
                if not received or len(said) >= STATUS.stop or recognised(bytes(said)) not in (None, HTTP):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    yield spoken, bytes(said)


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
