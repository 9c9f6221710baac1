"""The commands that open, keep and close a connection.

Spec: Streams Protocol Reference, "Authentication", PeerProperties to Heartbeat, ExchangeCommandVersions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.fields import U16, U32, Blob, Pairs, Reader, SparsePairs, Text, array_of
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Command, Request
from spark_streams.wire.rabbitmq.response_codes import ResponseCode


class PeerProperties(Request, key=0x0011):
    """The first command of a connection: the client sends its properties."""

    properties: Pairs = field(default_factory=dict)


class PeerPropertiesAnswer(Answer, key=0x0011 | ANSWER):
    """The server's own properties."""

    properties: Pairs = field(default_factory=dict)


class SaslHandshake(Request, key=0x0012):
    """A request for the server's mechanisms. The grammar's ``Mechanism`` is never sent (S-21)."""


class SaslHandshakeAnswer(Answer, key=0x0012 | ANSWER):
    """The mechanisms that the server offers."""

    mechanisms: Annotated[tuple[str, ...], array_of(Text)] = ()


class SaslAuthenticate(Request, key=0x0013):
    """One step of a mechanism: PLAIN's ``NUL user NUL password``, nothing for EXTERNAL."""

    mechanism: Text
    data: Blob = field(default=None, repr=False)


class _Challenge:
    """Bytes at the end of the answer, after an int32 length, or the int16 length that broker code writes (S-22)."""

    least = 0

    def write(self, out: bytearray, value: Any, field: str) -> None:
        if value is not None:
            out += struct.pack(">i", len(value)) + value

    def read(self, reader: Reader, field: str) -> Any:
        if not reader.left:
            return None
        rest = reader.take(reader.left, field)
        for length, size in ((">i", 4), (">h", 2)):
            if len(rest) >= size and struct.unpack_from(length, rest)[0] == len(rest) - size:
                return rest[size:]
        raise RemoteProtocolError(f"{reader.what}: {field} has {len(rest)} bytes that no length in front of them says")


class SaslAuthenticateAnswer(Answer, key=0x0013 | ANSWER):
    """OK, a challenge (0x0a) with its data, or the code of a refusal."""

    challenge: Annotated[bytes | None, _Challenge()] = None


class Tune(Command, key=0x0014):
    """The server's proposal, which it sends unprompted after authentication; clients answer with either key."""

    frame_max_bytes: U32
    heartbeat_s: U32


class TuneAnswer(Command, key=0x0014 | ANSWER):
    """The limits that the client agrees to."""

    frame_max_bytes: U32
    heartbeat_s: U32


class Open(Request, key=0x0015):
    """A request to open a virtual host."""

    virtual_host: Text


class OpenAnswer(Answer, key=0x0015 | ANSWER):
    """Whether the client may use the virtual host, and ``advertised_host`` and ``advertised_port``."""

    properties: SparsePairs = field(default_factory=dict)


class Close(Request, key=0x0016):
    """The end of the connection; either side may send it, and then waits for the answer."""

    code: U16
    reason: Text


class CloseAnswer(Answer, key=0x0016 | ANSWER):
    """The agreement of the other side."""


class Heartbeat(Command, key=0x0017):
    """A heartbeat, from either side, without an answer."""


@dataclass(frozen=True)
class CommandVersions:
    """The versions of a command that a peer can receive, from ``minimum`` to ``maximum``, both inclusive."""

    key: U16
    minimum: U16
    maximum: U16


class ExchangeCommandVersions(Request, key=0x001B):
    """The commands that the client can receive, Deliver 2 for instance."""

    commands: Annotated[tuple[CommandVersions, ...], array_of(CommandVersions)]


class ExchangeCommandVersionsAnswer(Answer, key=0x001B | ANSWER):
    """The commands that the server can receive."""

    code: U16 = ResponseCode.OK
    commands: Annotated[tuple[CommandVersions, ...], array_of(CommandVersions)] = ()

    @property
    def maximum(self) -> Mapping[int, int]:
        """Each command key to its highest version."""
        return {each.key: each.maximum for each in self.commands}
