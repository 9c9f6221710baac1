"""The one list of faults for all three protocols, for reading and for writing: what the proxy does, what is expected.

``along`` is the direction in which the events go: to the server when they are written. Counts of bytes are of what the
proxy sees, so of TLS records where TLS is spoken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.faults.doors import FORMATS
from tests.faults.proxy import Break, TcpProxy

__all__ = ["GIVES_UP", "GOES_ON", "GivesUp", "GoesOn"]

MIDST = 40_000
"""Bytes of a connection after which events are on their way."""
BEGUN = 800
"""Those after which a connection is being made."""
AMQP_OPEN = b"\x00\x53\x10"
"""How a client's open begins, once it has signed in (AMQP 1.0 part 2 §2.7.1: described by 0x10)."""
RABBIT_OPEN = b"\x00\x15\x00\x01"
"""Key and version of a client's Open, once it has signed in (RabbitMQ Streams Protocol Reference, "Open")."""


@dataclass(frozen=True)
class GoesOn:
    """A fault that a query outlives: every event comes, in order, and where that is promised, once.

    Args:
        name: of the fault.
        does: told to the proxy, and the direction of the events, before events come.
        reading: the formats that `make test` reads in meanwhile; every pair is tried in the nightly tests.
        writing: those that it writes in.
        plain: whether it is tried without TLS too.
        only: the formats that outlive it without TLS; empty for all.
        slows: whether it slows what passes, until it ends.
    """

    name: str
    does: Callable[[TcpProxy, bool], object]
    reading: tuple[str, ...] = ()
    writing: tuple[str, ...] = ()
    plain: bool = False
    only: tuple[str, ...] = ()
    slows: bool = False


@dataclass(frozen=True)
class GivesUp:
    """A fault that stays, so that the query fails, within the time that docs/delivery.md says.

    Args:
        name: of the fault.
        does: told to the proxy, and whether events are written.
        says: what the error says to do: one of these, by regular expression.
        started: whether the query runs when it happens; otherwise it starts then.
        row: what the row of docs/delivery.md begins with that says how long it is tried, for each direction.
        reading: the formats that `make test` reads in meanwhile; every pair is tried in the nightly tests.
        writing: those that it writes in; Spark starts a sink four times.
        outlived: the formats that go on all the same.
        tls: whether it is tried with TLS; without, a break can look for what is sent.
        tried_again: whether each attempt of a task connects several times.
    """

    name: str
    does: Callable[[TcpProxy, bool], object]
    says: str
    started: bool
    row: Mapping[str, str]
    reading: tuple[str, ...] = ()
    writing: tuple[str, ...] = ()
    outlived: tuple[str, ...] = ()
    tls: bool = True
    tried_again: bool = False


def _order(how: str, after: int = MIDST, *, times: int = 1, against: bool = False) -> Callable[[TcpProxy, bool], None]:
    def does(proxy: TcpProxy, along: bool) -> None:
        proxy.order(*[Break(how, after, along != against)] * times)
        if against:
            proxy.cut()  # little goes that way: a new connection begins with what is enough

    return does


def _later(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def _refuses_for_a_while(proxy: TcpProxy, along: bool) -> None:
    proxy.refuse()
    proxy.cut()
    _later(1.5, proxy.accept)


def _stands_still_for_a_while(proxy: TcpProxy, along: bool) -> None:
    proxy.stall()
    _later(1.0, proxy.flow)


def _delays(proxy: TcpProxy, along: bool) -> None:
    proxy.delay_s = 0.03


def _throttles(proxy: TcpProxy, along: bool) -> None:
    proxy.bytes_per_s = 300_000


AMQP, RABBIT, FEED = FORMATS

GOES_ON = (
    GoesOn("cut in the midst", _order("cut"), FORMATS, FORMATS, plain=True),
    GoesOn("cut three times", _order("cut", times=3)),
    GoesOn(
        "cut at the next byte from the log", lambda proxy, along: proxy.order(Break("cut")), (RABBIT,), (AMQP, FEED)
    ),
    GoesOn("cut at the next byte to the log", lambda proxy, along: proxy.order(Break("cut", 0, True))),
    GoesOn("all are cut", _order("cut-all"), (AMQP, FEED)),
    GoesOn("reset in the midst", _order("reset"), (RABBIT, FEED)),
    GoesOn("the sender of events closes its half", _order("half-close"), (AMQP, FEED), (RABBIT,), plain=True),
    GoesOn("the receiver of events closes its half", _order("half-close", BEGUN, against=True), (AMQP, RABBIT)),
    GoesOn("a corrupted byte", _order("corrupt"), (AMQP, RABBIT), (FEED,), plain=True, only=(RABBIT,)),
    GoesOn("a corrupted byte of the other direction", _order("corrupt", BEGUN, against=True)),
    GoesOn("one connection falls silent", _order("stall"), (AMQP,)),
    GoesOn("nothing passes for a while", _stands_still_for_a_while, (RABBIT,)),
    GoesOn("refused for a while", _refuses_for_a_while, (RABBIT, FEED), (AMQP,)),
    GoesOn("delayed", _delays, (FEED,), slows=True),
    GoesOn("throttled", _throttles, (AMQP,), slows=True),
)


def _cuts_always(proxy: TcpProxy, along: bool) -> None:
    # To the log: behind all that comes before the rows, and before many of them are there for the next attempt.
    proxy.order(*[Break("cut", 8_000, True) if along else Break("cut", 2_000)] * 400)


def _cuts_where_it_opens(proxy: TcpProxy, along: bool) -> None:
    # Not by a count of bytes: a handshake may grow or shrink, and then rows would be under way, or nobody signed in.
    proxy.order(*[Break("cut", 0, True, within=opens) for opens in (AMQP_OPEN, RABBIT_OPEN) for _ in range(400)])


_CHECK_URL = r"check the (host and )?port in option 'url'"
_PEER_OR_WAY = r"see the peer's log, and what lies between; a streaming query goes on from its checkpoint"
_SILENT = (
    r"raise option 'requestTimeout' if they are slow|'requestTimeout': the peer hangs, or the network does; raise it"
)

_FIRST = "nobody listens when"
_LATER = "nobody listens any more"
_SAYS_NOTHING = "the peer takes connections"

GIVES_UP = (
    GivesUp(
        "nobody listens",
        lambda proxy, along: proxy.refuse(),
        _CHECK_URL,
        started=False,
        row={"read": _FIRST, "write": _LATER},
        reading=(AMQP,),
    ),
    GivesUp(
        "silent from the start",
        lambda proxy, along: proxy.stall(),
        _SILENT,
        started=False,
        row={"read": _SAYS_NOTHING, "write": _SAYS_NOTHING},
        reading=(FEED,),
    ),
    GivesUp(
        "silent for ever",
        lambda proxy, along: proxy.stall(),
        _SILENT,
        started=True,
        row={"read": _SAYS_NOTHING, "write": _SAYS_NOTHING},
        reading=(RABBIT,),
    ),
    GivesUp(
        "always cut",
        _cuts_always,
        f"{_PEER_OR_WAY}|{_CHECK_URL}",
        started=True,
        row={"read": _LATER, "write": _LATER},
    ),
    GivesUp(
        "always cut before there are rows",
        _cuts_where_it_opens,
        f"{_PEER_OR_WAY}|{_CHECK_URL}",
        started=True,
        row={"write": "connections break before a task"},
        outlived=(FEED,),  # HTTP opens nothing; each request sends rows
        tls=False,
        tried_again=True,
    ),
    GivesUp(
        "takes rows and confirms none",
        lambda proxy, along: proxy.order(*[Break("mute", MIDST, to_server=True)] * 100),
        _SILENT,
        started=True,
        row={"write": "the peer takes rows"},
        outlived=(RABBIT,),  # the log has the rows, and tells the next attempt
    ),
)
