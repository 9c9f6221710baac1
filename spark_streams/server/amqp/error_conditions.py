"""The AMQP error conditions of the door, the exception that carries one, and values of peers read with it.

Spec: AMQP 1.0 part 2 §2.8.15 to §2.8.18; Event Stream Extensions as decided in A-19 to A-21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import proton

from spark_streams.wire.amqp.engine.session import INVALID_FIELD

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
RESOURCE_DELETED: Final = "amqp:resource-deleted"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
DETACH_FORCED: Final = "amqp:link:detach-forced"
STOLEN: Final = "amqp:link:stolen"
REDIRECT: Final = "amqp:link:redirect"


class LinkRefused(Exception):
    """An attach is refused, or an attached link must end, for a reason that is sent to the peer.

    Args:
        name: the condition's symbol, such as ``amqp:not-found``.
        description: what was wrong, what was expected and what to do; it holds no secret.
        info: further facts, symbol to value.
    """

    def __init__(self, name: str, description: str, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, description)
        self.name = name
        self.description = description
        self.info = info

    @property
    def condition(self) -> Any:
        """The ``proton.Condition`` to send."""
        info = {proton.symbol(key): value for key, value in self.info.items()} if self.info else None
        return proton.Condition(self.name, self.description, info)


def read_value(decode: Callable[[], Any], what: str) -> Any:
    """Return a value that the peer sent, as a Python object.

    proton has no Python object for some AMQP values: map keys may be lists, and nesting has no bound. Such a value
    costs the link and nothing else.

    Args:
        decode: reads the value with proton.
        what: the value's name in the refusal.

    Raises:
        LinkRefused: there is no Python object for the value (amqp:invalid-field).
    """
    try:
        return decode()
    except (TypeError, ValueError, RecursionError, proton.ProtonException) as fault:
        raise LinkRefused(INVALID_FIELD, f"{what} cannot be decoded: {type(fault).__name__}") from fault
