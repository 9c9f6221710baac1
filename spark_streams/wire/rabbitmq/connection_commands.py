"""The commands that open, keep and close a connection, its states until it is open, and the commands that it has then.

The door (``server/rabbitmq/handshake.py``) and the client (``client/rabbitmq/open.py``) execute the table of states;
``docs/state_pictures.py`` draws the picture in ``docs/how-it-works.md`` from it.

Publish, PublishConfirm, PublishError and Deliver carry thousands of messages. They are no commands here:
``publish_decode.py`` and ``chunk.py`` read and write them in columns, straight from the frame.

Spec: Streams Protocol Reference, "Authentication", PeerProperties to Heartbeat, ExchangeCommandVersions;
docs/specifications.md, S-21 to S-26.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq import consumer_commands, publish_decode, stream_commands
from spark_streams.wire.rabbitmq.consumer_commands import DELIVER_KEY
from spark_streams.wire.rabbitmq.fields import U16, U32, Blob, Pairs, Reader, SparsePairs, Text, array_of
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Command, Frame, Request, ResponseCode
from spark_streams.wire.rabbitmq.publish_decode import CONFIRM_KEY, PUBLISH_ERROR_KEY, PUBLISH_KEY


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


# --- the states before it is open
class HandshakeState(Enum):
    """The states of the handshake; a value is the state's name in the picture."""

    CONNECTED = "Connected"
    INTRODUCED = "Introduced"
    AUTHENTICATING = "Authenticating"
    AUTHENTICATED = "Authenticated"
    TUNED = "Tuned"
    OPEN = "Open"
    REFUSED = "Refused"


class HandshakeInput(Enum):
    """A client's command with the server's answer; Tune is the server's command, with the client's answer."""

    PEER_PROPERTIES = "PeerProperties"
    SASL_HANDSHAKE = "SaslHandshake"
    SASL_SUCCESS = "SaslAuthenticate, answered OK"
    SASL_FAILURE = "SaslAuthenticate, answered with an error"
    TUNE = "Tune"
    OPEN = "Open, answered OK"
    OPEN_FAILURE = "Open, answered with an error"


_S, _I = HandshakeState, HandshakeInput

TRANSITIONS: Final[Mapping[tuple[HandshakeState, HandshakeInput], HandshakeState]] = {
    (_S.CONNECTED, _I.PEER_PROPERTIES): _S.INTRODUCED,
    (_S.INTRODUCED, _I.PEER_PROPERTIES): _S.INTRODUCED,
    (_S.INTRODUCED, _I.SASL_HANDSHAKE): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SASL_HANDSHAKE): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SASL_SUCCESS): _S.AUTHENTICATED,
    (_S.AUTHENTICATING, _I.SASL_FAILURE): _S.REFUSED,
    (_S.AUTHENTICATED, _I.TUNE): _S.TUNED,
    (_S.AUTHENTICATED, _I.OPEN): _S.OPEN,
    (_S.AUTHENTICATED, _I.OPEN_FAILURE): _S.REFUSED,
    (_S.TUNED, _I.OPEN): _S.OPEN,
    (_S.TUNED, _I.OPEN_FAILURE): _S.REFUSED,
}
"""The transitions. An input without a row in a state is a protocol error. Heartbeats change nothing and are no input.
"""


# --- all commands
COMMANDS: Final[dict[tuple[int, int], type[Command]]] = {
    (kind.KEY, kind.VERSION): kind
    for names in (globals(), *map(vars, (publish_decode, consumer_commands, stream_commands)))
    for kind in names.values()
    if isinstance(kind, type) and issubclass(kind, Command) and hasattr(kind, "KEY")
}
"""Each (key, version) to its command."""

COLUMNAR_KEYS: Final = frozenset({PUBLISH_KEY, CONFIRM_KEY, PUBLISH_ERROR_KEY, DELIVER_KEY})
"""Keys of frames that are read in columns, not by ``decode``."""

_TWO_VERSIONS: Final = frozenset({PUBLISH_KEY, DELIVER_KEY})


def _received(*keys: int) -> tuple[CommandVersions, ...]:
    return tuple(CommandVersions(key, 1, 2 if key in _TWO_VERSIONS else 1) for key in keys)


SERVER_RECEIVES: Final = _received(0x01, PUBLISH_KEY, 0x05, 0x06, 0x07, *range(0x09, 0x10), *range(0x11, 0x20))
"""The door's list in ExchangeCommandVersions: all commands that it receives."""

CLIENT_RECEIVES: Final = _received(CONFIRM_KEY, PUBLISH_ERROR_KEY, DELIVER_KEY, 0x10, 0x14, 0x16, 0x17, 0x1A)
"""Our client's list; it includes Deliver 2, which servers send only to clients that list it (S-24)."""


def decode(frame: Frame) -> Command:
    """Return the command of a frame that is not columnar.

    Raises:
        RemoteProtocolError: the key or version is unknown, or the content does not fit: an unknown frame, code 0x0d.
    """
    kind = COMMANDS.get((frame.key, frame.version))
    if kind is None:
        raise RemoteProtocolError(f"an unknown frame: key 0x{frame.key:04x}, version {frame.version}")
    return kind.decode(frame)
