"""A link for requests, and one for their answers, as ``$cbs`` and ``$management`` and RabbitMQ need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from spark_streams.wire.amqp.engine.endpoints import Endpoint
from spark_streams.wire.amqp.engine.incoming_deliveries import ACCEPT, RELEASE
from spark_streams.wire.amqp.engine.links import MIXED, SETTLED, UNSETTLED, Attach, Session
from spark_streams.wire.amqp.engine.outgoing_session import Outcome
from spark_streams.wire.amqp.engine.termini import Terminus
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

_CREDIT: Final = 500
_MOST_BYTES: Final = 128 << 20
"""The bytes of the largest answer."""
_NO_NUMBER: Final = np.zeros(1, np.int64)


class Answer(Protocol):
    """An answer."""

    @property
    def request(self) -> str:
        """The message-id of its request; empty for none."""


R = TypeVar("R", bound=Answer)


class RequestPair:
    """A link for requests, and one for their answers, in a session of their own.

    Args:
        session: the session.
        name: the links' name, or what it begins with.
        address: the address that answers.
        paired: as for ``RequestLinks``.
        settles: whether requests are settled as they are sent; if not, ``refusal`` has their outcome.

    Attributes:
        sender, receiver: the links.
        refusal: the outcome of a request that was not accepted; None if there is none.
    """

    def __init__(
        self, session: Session, name: str, address: str, *, paired: bool = False, settles: bool = True
    ) -> None:
        self._session = session
        self.sender = session.sender(name if paired else f"{name}-out")
        self.receiver = session.receiver(name if paired else f"{name}-in", _MOST_BYTES)
        self.refusal: Outcome | None = None
        self._requests, self._answers = self.sender.outgoing, self.receiver.incoming
        self._requests.settled = self._settled
        self._answers.owner = self
        ours, theirs = (address, address) if paired else (self.sender.name, self.receiver.name)
        properties = {"paired": True} if paired else None
        requests, answers = SETTLED if settles else UNSETTLED, SETTLED if paired else MIXED
        there = Terminus.source(address), Terminus.target(address)
        self.sender.attach(Attach(Terminus.source(ours), there[1], requests, properties=properties))
        self.receiver.attach(Attach(there[0], Terminus.target(theirs), answers, properties=properties))
        self._answers.flow(_CREDIT)

    @property
    def open(self) -> bool:
        """Whether the peer has attached both."""
        return self.sender.heard is not None and self.receiver.heard is not None

    @property
    def ended(self) -> Endpoint | None:
        """The link or session that the peer has ended; None if there is none."""
        return next((each for each in (self.sender, self.receiver, self._session) if each.ended), None)

    @property
    def room(self) -> int:
        """How many requests may be sent now."""
        return self._requests.room

    def send(self, message: bytes) -> None:
        """Send a request."""
        whole = Ranges(np.frombuffer(message, np.uint8), np.zeros(1, np.int64), np.array([len(message)]))
        self._requests.send(whole, offsets=_NO_NUMBER)

    def _settled(self, _: Any, numbers: Positions, outcome: Outcome) -> None:
        if outcome.name == "rejected":
            self.refusal = outcome

    def received(self, decode: Callable[[bytes], R]) -> list[R]:
        """Return the answers that have come; ``decode`` reads a message."""
        found: list[R] = []
        while len((taken := self._answers.take(1, _MOST_BYTES)).ids):
            found.append(decode(taken.memory[taken.starts[0] : taken.ends[0]].tobytes()))
            answers = bool(found[-1].request)
            self._answers.settle(taken.ids, ACCEPT if answers else RELEASE)  # the address may be that of a queue
            self._answers.flow(int(answers))
        return found

    def end(self) -> None:
        """End the session, and the links with it."""
        self._session.end()
