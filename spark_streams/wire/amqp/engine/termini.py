"""The termini of a link: the source that messages come from, and the target that they go to.

Spec: AMQP 1.0 part 3 §3.5.3 (source), §3.5.4 (target); part 4 §4.5.1 (coordinator).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.performatives import SOURCE, TARGET
from spark_streams.wire.amqp.values import Described, Symbol, ULong, by_symbol, coded

COORDINATOR: Final = 0x30
ADDRESS, DURABLE, EXPIRY, TIMEOUT, DYNAMIC, _, DISTRIBUTION, FILTER = range(8)
"""Places of a source's fields; a target has the first six."""
_CODES: Final = coded(SOURCE, "source", "target") | coded(COORDINATOR, "coordinator")


@dataclass(frozen=True)
class Terminus:
    """A source or a target.

    Args:
        code: ``SOURCE``, ``TARGET`` or ``COORDINATOR``.
        fields: its fields; the last ones may be left out.
    """

    code: int
    fields: Sequence[Any]

    @classmethod
    def source(cls, address: str, *, copies: bool = False, filters: Mapping[str, Any] | None = None) -> Terminus:
        """Return a source.

        Args:
            address: its address.
            copies: whether its messages stay there (distribution-mode copy).
            filters: name to described value.
        """
        return cls(SOURCE, [address]).but(
            {DISTRIBUTION: Symbol("copy") if copies else None, FILTER: by_symbol(filters)}
        )

    @classmethod
    def target(cls, address: str | None) -> Terminus:
        """Return a target; without an address it is the anonymous one."""
        return cls(TARGET, [address])

    @classmethod
    def of(cls, value: Any) -> Terminus | None:
        """Return the terminus in a field of an attach; None if there is none.

        Raises:
            RemoteProtocolError: it is something else.
        """
        if value is None:
            return None
        described = value if isinstance(value, Described) else Described(None, None)
        code = _CODES.get(described.descriptor)
        if code is None or not isinstance(described.value, list):
            raise RemoteProtocolError("a terminus is neither a source nor a target")
        return cls(code, described.value)

    def field(self, index: int, kind: type, default: Any) -> Any:
        """Return a field; ``default`` where it is null or absent.

        Raises:
            RemoteProtocolError: it has another type.
        """
        value = self.fields[index] if index < len(self.fields) else None
        if value is not None and not isinstance(value, kind):
            name = type(value).__name__.lower()
            raise RemoteProtocolError(f"field {index} of a terminus: {name}, expected {kind.__name__.lower()}")
        return default if value is None else value

    def but(self, fields: Mapping[int, Any]) -> Terminus:
        """Return a copy with other values in some fields."""
        changed = [*self.fields, *[None] * (1 + max(fields) - len(self.fields))]
        for index, value in fields.items():
            changed[index] = value
        while changed and changed[-1] is None:
            changed.pop()
        return Terminus(self.code, changed)

    @property
    def encoded(self) -> Described:
        """The terminus, as ``encode_value`` takes it."""
        return Described(ULong(self.code), list(self.fields))
