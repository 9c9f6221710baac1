"""The AMQP error conditions of the door, and the exception that carries one.

Spec: AMQP 1.0 part 2 §2.8.15 to §2.8.18; Event Stream Extensions as decided in A-19 to A-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_streams.wire.amqp.engine.endpoints import Condition

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
RESOURCE_DELETED: Final = "amqp:resource-deleted"
CONNECTION_FORCED: Final = "amqp:connection:forced"
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
    def condition(self) -> Condition:
        """The condition to send."""
        return Condition(self.name, self.description, self.info)
