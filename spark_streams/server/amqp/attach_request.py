"""Reads and checks what a peer requests in an attach: the address and the link properties.

Spec: Event Stream Extensions §4.6.1 to §4.6.3, §6; A-2, A-5, A-26, A-28.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import proton

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.amqp.error_conditions import INVALID_FIELD, NOT_FOUND, LinkRefused
from spark_streams.wire.amqp.event_streams import CONSUMER_GROUP, EPOCH, PARTITION

INFO_SUFFIX: Final = "/$info"

_INTEGERS: Final = (
    int, proton.int32, proton.short, proton.byte, proton.ulong, proton.uint, proton.ushort, proton.ubyte,
)  # fmt: skip
"""All integers of AMQP, and no bool, which is an int of Python."""
_MAX_EPOCH: Final = 2**63 - 1
"""The answer gives the epoch as an AMQP long (A-2)."""


@dataclass(frozen=True)
class AttachRequest:
    """The link properties that the door knows.

    Args:
        partition: the identifier of the partition to bind the link to, or None.
        group: the name of the consumer group, or None.
        epoch: the epoch within the group, 0 to 2^63-1, or None.
    """

    partition: str | None
    group: str | None
    epoch: int | None


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


def link_properties(link: Any) -> dict[str, Any]:
    """Return the properties of a peer's attach by name.

    Raises:
        LinkRefused: the properties cannot be decoded (amqp:invalid-field).
    """
    properties = read_value(lambda: link.remote_properties, "the link properties")
    return {str(k): v for k, v in properties.items()} if isinstance(properties, Mapping) else {}


def read_attach_request(link: Any) -> AttachRequest:
    """Read the link properties of an attach; group and epoch count only for receivers (A-28).

    Raises:
        LinkRefused: a property has a wrong type or value, or there is an epoch without a group (A-26).
    """
    properties = link_properties(link)
    partition = properties.get(PARTITION)
    if partition is not None and not isinstance(partition, str):
        raise LinkRefused(INVALID_FIELD, f"link property {PARTITION} is a {_kind(partition)}: expected a symbol")
    partition = None if partition is None else str(partition)
    if not link.is_sender:
        return AttachRequest(partition, None, None)
    group, epoch = properties.get(CONSUMER_GROUP), properties.get(EPOCH)
    if group is not None and (not isinstance(group, str) or not group):
        raise LinkRefused(INVALID_FIELD, f"link property {CONSUMER_GROUP} is no name: expected a string")
    if epoch is not None:
        if type(epoch) not in _INTEGERS or not 0 <= epoch <= _MAX_EPOCH:
            raise LinkRefused(
                INVALID_FIELD,
                f"link property {EPOCH} is {epoch!r:.40} ({_kind(epoch)}): expected an integer from 0 to 2^63-1",
            )
        if group is None:
            raise LinkRefused(INVALID_FIELD, f"link property {EPOCH} needs {CONSUMER_GROUP} beside it")
    return AttachRequest(partition, None if group is None else str(group), None if epoch is None else int(epoch))


def stream_names(address: str) -> list[str]:
    """Return the names that an address may mean: as it is, without one leading slash, or percent-encoded."""
    plain = address[1:] if address.startswith("/") else address
    return list(dict.fromkeys((address, plain, unquote(plain))))


def find_stream(log: ReferenceLog, address: str) -> Stream:
    """Return the stream of an address; see ``stream_names``.

    Raises:
        LinkRefused: there is no such stream (amqp:not-found).
    """
    for name in stream_names(address):
        try:
            return log.stream(name)
        except (UnknownStream, ValueError):
            continue
    raise LinkRefused(NOT_FOUND, f"there is no stream '{address:.200}' here")


def _kind(value: Any) -> str:
    return type(value).__name__
