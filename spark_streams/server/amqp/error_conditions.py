"""AMQP error conditions that the door answers with, and the exceptions that carry them to where they are sent.

Spec: AMQP 1.0 part 2 §2.8.15 to §2.8.18; Event Stream Extensions as decided in A-19 to A-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import proton

__all__ = ["LinkRefused", "condition"]

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
RESOURCE_DELETED: Final = "amqp:resource-deleted"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
DETACH_FORCED: Final = "amqp:link:detach-forced"
STOLEN: Final = "amqp:link:stolen"
REDIRECT: Final = "amqp:link:redirect"
MESSAGE_TOO_LARGE: Final = "amqp:link:message-size-exceeded"


class LinkRefused(Exception):
    """An attach is refused, or an attached link has to end, for a reason that the peer is told.

    Args:
        name: the condition's symbol.
        description: what was wrong, what was expected, what to do; never a secret.
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
        return condition(self.name, self.description, self.info)


def condition(name: str, description: str, info: Mapping[str, Any] | None = None) -> Any:
    """Return a ``proton.Condition``."""
    table = {proton.symbol(key): value for key, value in info.items()} if info else None
    return proton.Condition(name, description, table)
