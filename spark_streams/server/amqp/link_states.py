"""The states of a link at the AMQP door, and the table of transitions between them.

``LinkConnection`` keeps the state of each link of a connection and changes it by this table alone. The picture in
``docs/how-it-works.md`` is drawn from the table.

A link that is draining stays ``ATTACHED``: drain is a flag of its flow state, which its deliveries keep. A connection
that has ended takes the states of its links with it.

Spec: AMQP 1.0 part 2 §2.6.1 to §2.6.6; Event Stream Extensions §4.5 (ES-206).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class LinkState(Enum):
    """Where a link is in its life; the value is the state's name in pictures and errors."""

    ATTACHING = "Attaching"
    """The peer's attach has come, and the door decides."""
    WAITING = "Waiting"
    """The attach is not answered: all partitions of its consumer group are taken."""
    ATTACHED = "Attached"
    """The attach is answered, and the link is served."""
    REFUSED = "Refused"
    """The door has answered with a null terminus and closed the link; the peer has not detached it yet."""
    CLOSING = "Closing"
    """The door has closed an attached link, with or without an error; the peer has not detached it yet."""
    RELEASED = "Released"
    """The connection is being closed; the link holds nothing any more, and the peer has not detached it yet."""
    DETACHED = "Detached"
    """The link is gone; a durable terminus is kept."""
    CLOSED = "Closed"
    """The link is gone, and with it a durable terminus."""


class LinkInput(Enum):
    """An input that changes a link's state; the value is the arrow's text in pictures and errors."""

    ACCEPT = "the door accepts"
    NO_PARTITION = "no partition is free"
    REFUSE = "the door refuses"
    DOOR_CLOSES = "the door closes"
    PEER_DETACHES = "the peer detaches"
    PEER_CLOSES = "the peer closes"
    SESSION_ENDS = "the session ends"
    CONNECTION_CLOSES = "the connection closes"


_ENDS: Final = {
    LinkInput.PEER_DETACHES: LinkState.DETACHED,
    LinkInput.PEER_CLOSES: LinkState.CLOSED,
    LinkInput.SESSION_ENDS: LinkState.DETACHED,
}
"""What the peer may do in every state that lasts."""

TRANSITIONS: Final[Mapping[tuple[LinkState, LinkInput], LinkState]] = {
    (LinkState.ATTACHING, LinkInput.ACCEPT): LinkState.ATTACHED,
    (LinkState.ATTACHING, LinkInput.NO_PARTITION): LinkState.WAITING,
    (LinkState.ATTACHING, LinkInput.REFUSE): LinkState.REFUSED,
    (LinkState.WAITING, LinkInput.ACCEPT): LinkState.ATTACHED,
    (LinkState.WAITING, LinkInput.REFUSE): LinkState.REFUSED,
    (LinkState.WAITING, LinkInput.CONNECTION_CLOSES): LinkState.RELEASED,
    (LinkState.ATTACHED, LinkInput.DOOR_CLOSES): LinkState.CLOSING,
    (LinkState.ATTACHED, LinkInput.CONNECTION_CLOSES): LinkState.RELEASED,
    **{
        (state, link_input): following
        for state in (LinkState.WAITING, LinkState.ATTACHED, LinkState.REFUSED, LinkState.CLOSING, LinkState.RELEASED)
        for link_input, following in _ENDS.items()
    },
}
"""State and input to the next state. Other pairs do not happen: the engine accepts no such frame from a peer."""


def next_state(state: LinkState, link_input: LinkInput) -> LinkState:
    """Return the state after an input.

    Raises:
        RuntimeError: the table has no such row, which is a defect of the door.
    """
    following = TRANSITIONS.get((state, link_input))
    if following is None:
        raise RuntimeError(f"a link in state {state.value} has no row for {link_input.value!r} in TRANSITIONS")
    return following
