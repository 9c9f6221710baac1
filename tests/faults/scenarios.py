"""The one list of faults for all three protocols, for reading and for writing: what the proxy does, what is expected.

``along`` is the direction in which the events go: to the server when they are written. Counts of bytes are of what the
proxy sees, so of TLS records where TLS is spoken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.proxy import Break, TcpProxy

__all__ = ["GIVES_UP", "GOES_ON", "GivesUp", "GoesOn"]

MIDST = 40_000
"""Bytes of a connection after which events are on their way."""
BEGUN = 800
"""Those after which a connection is being made."""


@dataclass(frozen=True)
class GoesOn:
    """A fault that a query outlives: every event comes, in order, and where that is promised, once.

    Args:
        name: of the fault.
        does: told to the proxy, and the direction of the events, before events come.
        slow: whether it is left to the long tests.
        slow_writing: whether it is, for sinks.
        plain: whether it is tried without TLS too.
        only: the formats that outlive it without TLS; empty for all.
    """

    name: str
    does: Callable[[TcpProxy, bool], object]
    slow: bool = False
    slow_writing: bool = False
    plain: bool = False
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class GivesUp:
    """A fault that stays, so that the query fails, within the time that docs/delivery.md says.

    Args:
        name: of the fault.
        does: told to the proxy.
        says: what the error says: one of these, by regular expression.
        started: whether the query runs when it happens; otherwise it starts then.
        slow: the formats with which it takes long.
        slow_writing: those with which it does so in a sink, which Spark starts four times.
    """

    name: str
    does: Callable[[TcpProxy], object]
    says: str
    started: bool
    slow: tuple[str, ...] = ()
    slow_writing: tuple[str, ...] = ("amqp-events", "rabbitmq-stream", "feedapi")


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


GOES_ON = (
    GoesOn("cut in the midst", _order("cut"), plain=True),
    GoesOn("cut three times", _order("cut", times=3), slow=True),
    GoesOn("cut at the next byte from the log", lambda proxy, along: proxy.order(Break("cut"))),
    GoesOn("cut at the next byte to the log", lambda proxy, along: proxy.order(Break("cut", 0, True)), slow=True),
    GoesOn("all are cut", lambda proxy, along: proxy.cut(), slow=True),
    GoesOn("reset in the midst", _order("reset"), slow_writing=True),
    GoesOn("the sender of events closes its half", _order("half-close"), plain=True),
    GoesOn("the receiver of events closes its half", _order("half-close", BEGUN, against=True), slow_writing=True),
    GoesOn("a corrupted byte", _order("corrupt"), plain=True, only=("rabbitmq-stream",)),
    GoesOn("a corrupted byte of the other direction", _order("corrupt", BEGUN, against=True), slow=True),
    GoesOn("one connection falls silent", _order("stall")),
    GoesOn("nothing passes for a while", _stands_still_for_a_while, slow_writing=True),
    GoesOn("refused for a while", _refuses_for_a_while),
    GoesOn("delayed", _delays, slow=True),
    GoesOn("throttled", _throttles, slow=True),
)

_NOBODY = r"nothing listens there|Connection refused|connection refused"
_SILENT = r"option 'requestTimeout'|no answer to the handshake"
_CUT = r"the connection was lost|closed the connection|the answer broke off|Remote end closed|Connection aborted"

GIVES_UP = (
    GivesUp("nobody listens", lambda proxy: proxy.refuse(), _NOBODY, started=False, slow=("feedapi",)),
    GivesUp("silent from the start", lambda proxy: proxy.stall(), _SILENT, started=False, slow=("amqp-events",)),
    GivesUp(
        "silent for ever", lambda proxy: proxy.stall(), _SILENT, started=True, slow_writing=("amqp-events", "feedapi")
    ),
    GivesUp(
        "always cut",
        lambda proxy: proxy.order(*[Break("cut", 2_000)] * 200),
        _CUT,
        started=True,
        slow=("amqp-events", "rabbitmq-stream", "feedapi"),
    ),
)
