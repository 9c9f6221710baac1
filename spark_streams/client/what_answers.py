"""Says which url to use, where something else answers at a port than a client expected.

Some peers say nothing to foreign bytes: RabbitMQ's stream protocol hangs up, and HTTP waits for the end of a line. So a
client that heard nothing, or what does not tell, takes one ``look`` at who it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from spark_streams.client.first_bytes import (
    AMQP,
    HTTP,
    STREAMS,
    TLS,
    WEB_SOCKET,
    Found,
    Spoken,
    is_refused,
    is_served,
    recognised,
)
from spark_streams.client.look import look
from spark_streams.client.retry import Deadline
from spark_streams.client.tls import plain_port_advice
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed
from spark_streams.protocols import PROTOCOLS, Protocol, protocol_of
from spark_streams.redaction import safe_text

LOOK_AFTER_S: Final = 2.0
"""How many seconds a peer may be silent before a client looks who it is: longer than one that is busy needs."""
LOOKS_APART_S: Final = 30.0
"""How many seconds this process takes no other look at a port where it found nothing wrong: a broker that is being
restarted hangs up for as long, and a load balancer that takes turns would lead each next try to the same node."""
_T = TypeVar("_T")
_Way = tuple[str, str, bool, Node]
_IN_VAIN: Final[dict[_Way, float]] = {}
"""When this process began to look at a port, until it has found something wrong there."""
_RIGHT: Final[set[_Way]] = set()
"""Where this process has signed in, for as long as it lives: a query may run for months on one connection."""
_SAID: Final = 60
"""Characters of an answer that a message has."""
_BY_SCHEME: Final = {scheme: each for each in (AMQP, STREAMS, HTTP) for scheme in PROTOCOLS[each.name or ""].schemes}


def known_right(endpoint: Endpoint) -> None:
    """Note that a peer spoke what was expected: whatever comes later, it is not the url that is wrong."""
    _RIGHT.add(_way(endpoint))


def wrong_port(
    endpoint: Endpoint, heard: bytes = b"", *, deadline: Deadline, where: str | None = None, by_look: bool = True
) -> ConnectFailed | None:
    """Return the error for a port where something else answers than the endpoint's url says; it is not retriable.

    Args:
        endpoint: one host of the peer.
        heard: the first bytes that came, within TLS where the endpoint has TLS; none if it said nothing.
        deadline: when a look has to end.
        where: what the message begins with; None for the host and port.
        by_look: whether to look where ``heard`` does not tell; false where connections go there through a proxy.

    Returns:
        None where it speaks what was expected, or has before in this process, and where that is not known.
    """
    wanted = _BY_SCHEME.get(endpoint.scheme) if endpoint.transport == "tcp" else WEB_SOCKET
    way = _way(endpoint)
    if wanted is None or way in _RIGHT:
        return None  # a protocol that has no hello here, or a peer that is being restarted
    found = Found(recognised(heard), heard, endpoint.tls is not None) if heard else None
    if found is not None and found.spoken is HTTP and not (is_served(heard) or is_refused(heard)):
        found = None
    # HTTP may be what a port of HTTPS says to those who speak without TLS, and an alert does not say what is below it.
    tells = found is not None and found.spoken not in (None, HTTP, TLS)
    if by_look and not tells and not endpoint.is_advertised and not _was_in_vain(way) and not deadline.passed:
        _IN_VAIN[way] = time.monotonic()  # before, as other threads need not look at the same time
        found = look(endpoint, HTTP if wanted is WEB_SOCKET else wanted, deadline) or found
    is_wanted = found is not None and _is_carried(wanted, found) and found.secured == (endpoint.tls is not None)
    if found is None or is_wanted or (found.spoken is TLS and endpoint.tls is not None):
        return None
    _IN_VAIN.pop(way, None)
    failed = ConnectFailed(f"{where or endpoint.address}: {_advice(endpoint, wanted, found)}")
    failed.retriable = False
    return failed


def answered(
    connected: Any,
    wait: Callable[[], _T],
    deadline: Deadline,
    what: str,
    look: Callable[[], ConnectFailed | None] | None,
) -> _T:
    """Return what a call returns that waits for a socket, once; look what answers there where nothing comes for long.

    Args:
        connected: the socket, whose time-out is set.
        wait: the call.
        deadline: how long it may wait as a whole.
        what: what is missing, as for ``Deadline.left_s``.
        look: returns the error for a wrong port, as ``wrong_port``; None where the peer has said something.

    Raises:
        ConnectFailed: something else answers there.
        DeadlineExceeded: ``deadline`` had passed before.
        OSError: the call's; ``TimeoutError`` once the deadline has passed.
    """
    if look is not None and deadline.left_s(what) > LOOK_AFTER_S:
        connected.settimeout(LOOK_AFTER_S)
        try:
            return wait()
        except TimeoutError:
            if (wrong := look()) is not None:
                raise wrong from None
    connected.settimeout(0.001 if look is not None and deadline.passed else deadline.left_s(what))
    return wait()


def _way(endpoint: Endpoint) -> _Way:
    return endpoint.scheme, endpoint.transport, endpoint.tls is not None, endpoint.dialled


def _was_in_vain(way: _Way) -> bool:
    at_s = _IN_VAIN.get(way)
    return at_s is not None and time.monotonic() - at_s < LOOKS_APART_S


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
    entry = spoken.entry
    if wanted is WEB_SOCKET and spoken is AMQP and entry is not None:
        url = _url(endpoint, entry, found)
        return f"the port does not speak WebSockets, but AMQP 1.0 itself: leave out option 'transport', and write {url}"
    expected = f"{spoken.title} answers there{', with TLS' if found.secured else ''}, and {wanted.title} was expected: "
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
