"""The endpoints of a connection: itself, its sessions, and their links. Each side opens and closes its own half.

::

    half       new --opens--> open --closes--> closed
    endpoint   two halves, ours and the peer's: (open, new) is BEGIN SENT for a session, (closed, open) is END SENT, …

Spec: AMQP 1.0 part 2 §2.4.6 (states of a connection), §2.5.5 (of a session), §2.6.1 to §2.6.6 (of a link).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from spark_streams.wire.amqp.engine.session import ILLEGAL_STATE, Violation
from spark_streams.wire.amqp.performatives import ERROR, REJECTED
from spark_streams.wire.amqp.values import Described, Symbol, ULong, by_symbol


class Half(Enum):
    """The state of one side of an endpoint; the value is the state's name in pictures and errors."""

    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


class Step(Enum):
    """A step of one side of an endpoint; the value is the arrow's text in pictures and errors."""

    OPENS = "opens"
    """open, begin or attach"""
    CLOSES = "closes"
    """close, end or detach"""


TRANSITIONS: Final[Mapping[tuple[Half, Step], Half]] = {
    (Half.NEW, Step.OPENS): Half.OPEN,
    (Half.OPEN, Step.CLOSES): Half.CLOSED,
}
"""State and step to the next state; no other step is allowed."""


class Condition(NamedTuple):
    """Why an endpoint was closed. Spec: §2.8.14.

    Args:
        name: the condition's symbol.
        description: the reason, as text.
        info: further facts, by their symbols.
    """

    name: str
    description: str = ""
    info: Mapping[Any, Any] | None = None

    @property
    def encoded(self) -> Described:
        """The error, as ``encode_value`` takes it."""
        info = by_symbol(self.info)
        return Described(ULong(ERROR), [Symbol(self.name), self.description, *([info] if info else [])])

    @property
    def rejected(self) -> Described:
        """The outcome of a delivery that is rejected for this reason. Spec: part 3 §3.4.3."""
        return Described(ULong(REJECTED), [self.encoded])

    @classmethod
    def of(cls, error: Any) -> Condition | None:
        """Return the condition in a peer's error field; None if there is none."""
        fields = error.value if isinstance(error, Described) else None
        if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
            return None
        _, description, info = (*fields, None, None)[:3]
        words = description if isinstance(description, str) else ""
        return cls(str(fields[0]), words, info if isinstance(info, Mapping) else None)


class Endpoint:
    """A connection, a session or a link.

    Args:
        name: its name in errors.

    Attributes:
        ours, theirs: the state of each side.
        error: why the peer has closed it; None if it gave no reason, or has not closed it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ours = self.theirs = Half.NEW
        self.error: Condition | None = None

    def we(self, step: Step) -> bool:
        """Note a step of ours; return False if we have taken it before."""
        following = TRANSITIONS.get((self.ours, step))
        self.ours = following or self.ours
        return following is not None

    def they(self, step: Step, error: Any = None) -> None:
        """Note a step of the peer.

        Args:
            step: the step.
            error: the error with which it closes.

        Raises:
            Violation: the step is not permitted in this state.
        """
        following = TRANSITIONS.get((self.theirs, step))
        if following is None:
            raise Violation(ILLEGAL_STATE, f"the peer {step.value} {self.name}, which is {self.theirs.value}")
        self.theirs, self.error = following, Condition.of(error)

    @property
    def ended(self) -> bool:
        """Whether the peer has closed it."""
        return self.theirs is Half.CLOSED
