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


@dataclass(frozen=True)
class PeerProperties(Request):
    """The first command of a connection: the client sends its properties."""

    KEY = 0x0011
    properties: Pairs = field(default_factory=dict)


@dataclass(frozen=True)
class PeerPropertiesAnswer(Answer):
    """The server's own properties."""

    KEY = 0x0011 | ANSWER
    properties: Pairs = field(default_factory=dict)


@dataclass(frozen=True)
class SaslHandshake(Request):
    """A request for the server's mechanisms. The grammar's ``Mechanism`` is never sent (S-21)."""

    KEY = 0x0012


@dataclass(frozen=True)
class SaslHandshakeAnswer(Answer):
    """The mechanisms that the server offers."""

    KEY = 0x0012 | ANSWER
    mechanisms: Annotated[tuple[str, ...], array_of(Text)] = ()


@dataclass(frozen=True)
class SaslAuthenticate(Request):
    """One step of a mechanism: PLAIN's ``NUL user NUL password``, nothing for EXTERNAL."""

    KEY = 0x0013
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


@dataclass(frozen=True)
class SaslAuthenticateAnswer(Answer):
    """OK, a challenge (0x0a) with its data, or the code of a refusal."""

    KEY = 0x0013 | ANSWER
    challenge: Annotated[bytes | None, _Challenge()] = None


@dataclass(frozen=True)
class Tune(Command):
    """The server's proposal, which it sends unprompted after authentication; clients answer with either key."""

    KEY = 0x0014
    frame_max_bytes: U32
    heartbeat_s: U32


@dataclass(frozen=True)
class TuneAnswer(Command):
    """The limits that the client agrees to."""

    KEY = 0x0014 | ANSWER
    frame_max_bytes: U32
    heartbeat_s: U32


@dataclass(frozen=True)
class Open(Request):
    """A request to open a virtual host."""

    KEY = 0x0015
    virtual_host: Text


@dataclass(frozen=True)
class OpenAnswer(Answer):
    """Whether the client may use the virtual host, and ``advertised_host`` and ``advertised_port``."""

    KEY = 0x0015 | ANSWER
    properties: SparsePairs = field(default_factory=dict)


@dataclass(frozen=True)
class Close(Request):
    """The end of the connection; either side may send it, and then waits for the answer."""

    KEY = 0x0016
    code: U16
    reason: Text


@dataclass(frozen=True)
class CloseAnswer(Answer):
    """The agreement of the other side."""

    KEY = 0x0016 | ANSWER


@dataclass(frozen=True)
class Heartbeat(Command):
    """A heartbeat, from either side, without an answer."""

    KEY = 0x0017


@dataclass(frozen=True)
class CommandVersions:
    """The versions of a command that a peer can receive, from ``minimum`` to ``maximum``, both inclusive."""

    key: U16
    minimum: U16
    maximum: U16


@dataclass(frozen=True)
class ExchangeCommandVersions(Request):
    """The commands that the client can receive, Deliver 2 for instance."""

    KEY = 0x001B
    commands: Annotated[tuple[CommandVersions, ...], array_of(CommandVersions)]


@dataclass(frozen=True)
class ExchangeCommandVersionsAnswer(Answer):
    """The commands that the server can receive."""

    KEY = 0x001B | ANSWER
    code: U16 = ResponseCode.OK
    commands: Annotated[tuple[CommandVersions, ...], array_of(CommandVersions)] = ()

    @property
    def maximum(self) -> Mapping[int, int]:
        """Each command key to its highest version."""
        return {each.key: each.maximum for each in self.commands}
