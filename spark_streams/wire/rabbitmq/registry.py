"""All commands by key and version, the decoder of any command, and the versions that each side receives.

Publish, PublishConfirm, PublishError and Deliver carry thousands of messages. They are no commands here:
``publish_decode.py`` and ``chunk.py`` read and write them in columns, straight from the frame.
"""

from __future__ import annotations

from typing import Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq import connection_commands, consumer_commands, publisher_commands, stream_commands
from spark_streams.wire.rabbitmq.connection_commands import CommandVersions
from spark_streams.wire.rabbitmq.consumer_commands import DELIVER_KEY
from spark_streams.wire.rabbitmq.frames import Command, Frame
from spark_streams.wire.rabbitmq.publisher_commands import CONFIRM_KEY, PUBLISH_ERROR_KEY, PUBLISH_KEY

COMMANDS: Final[dict[tuple[int, int], type[Command]]] = {
    (kind.KEY, kind.VERSION): kind
    for module in (connection_commands, publisher_commands, consumer_commands, stream_commands)
    for kind in vars(module).values()
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
