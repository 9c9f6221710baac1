"""Split the bytes of a connection into frames; the base classes of all commands, and the codes of answers.

::

    frame    size(u32, itself not counted) key(u16) version(u16) content
    key      bit 15 set: an answer; the other fifteen name the command

Spec: Streams Protocol Reference, "Frame Structure".
"""

from __future__ import annotations

import struct
from _thread import allocate_lock
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

import pyarrow as pa

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.byte_view import PADDING, Readable
from spark_streams.wire.rabbitmq.fields import U16, U32, Reader, layout_of, read_fields, write_fields

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Do nothing: only type checkers read this mark, and ``typing`` has it from Python 3.11 on."""
        return lambda kind: kind


ANSWER: Final = 0x8000
"""The bit of a key that marks an answer."""
HEAD_BYTES: Final = 8
"""Size, key and version."""
DEFAULT_FRAME_MAX_BYTES: Final = 1 << 20
"""The frame size that brokers propose in Tune."""
INITIAL_FRAME_MAX_BYTES: Final = 8_192
"""The largest frame that a broker accepts before Open has succeeded."""
LARGE_BYTES: Final = 1 << 16
"""A frame of which so many bytes or more are missing is received in its place; see ``FrameReader.room``."""
SHARED_BYTES: Final = 2 << 20
"""The size of a buffer for several large frames."""

_HEAD: Final = struct.Struct(">IHH")
_SIZE: Final = struct.Struct(">I")

_DATACLASSES: Final[set[type]] = set()
_BECOMING: Final = allocate_lock()
"""The codec starts no thread (``threading``), but connections in several threads may use it."""

C = TypeVar("C", bound="Command")


class ResponseCode(IntEnum):
    """The codes of a peer's answer: the protocol's table, and two that brokers added for renewing a token (S-151)."""

    OK = 0x01
    STREAM_DOES_NOT_EXIST = 0x02
    SUBSCRIPTION_ID_ALREADY_EXISTS = 0x03
    SUBSCRIPTION_ID_DOES_NOT_EXIST = 0x04
    STREAM_ALREADY_EXISTS = 0x05
    STREAM_NOT_AVAILABLE = 0x06
    SASL_MECHANISM_NOT_SUPPORTED = 0x07
    AUTHENTICATION_FAILURE = 0x08
    SASL_ERROR = 0x09
    SASL_CHALLENGE = 0x0A
    SASL_AUTHENTICATION_FAILURE_LOOPBACK = 0x0B
    VIRTUAL_HOST_ACCESS_FAILURE = 0x0C
    UNKNOWN_FRAME = 0x0D
    FRAME_TOO_LARGE = 0x0E
    INTERNAL_ERROR = 0x0F
    ACCESS_REFUSED = 0x10
    PRECONDITION_FAILED = 0x11
    PUBLISHER_DOES_NOT_EXIST = 0x12
    NO_OFFSET = 0x13
    SASL_CANNOT_CHANGE_MECHANISM = 0x14
    SASL_CANNOT_CHANGE_USERNAME = 0x15


def code_name(code: int) -> str:
    """Return a code as errors show it, such as ``stream-does-not-exist (0x02)``; an unknown one as ``code 0x7f``."""
    try:
        return f"{ResponseCode(code).name.lower().replace('_', '-')} (0x{code:02x})"
    except ValueError:
        return f"code 0x{code:02x}"


class FrameTooLarge(RemoteProtocolError):
    """The error of a frame that is larger than the negotiated maximum; a server answers with Close, code 0x0e."""


def frame_head(content_bytes: int, key: int, version: int = 1) -> bytes:
    """Return the eight bytes before a frame's content."""
    return _HEAD.pack(content_bytes + 4, key, version)


class Frame(NamedTuple):
    """One whole frame.

    Args:
        key: the command's key; bit 15 is set for an answer.
        version: the command's version.
        buffer: holds the content, which is ``buffer[start:end]``.
        start: first byte after the version, inclusive.
        end: end of the content, exclusive.
    """

    key: int
    version: int
    buffer: Readable
    start: int
    end: int

    @property
    def size(self) -> int:
        """The value of the frame's size field."""
        return self.end - self.start + 4


class FrameReader:
    """A reader that splits the bytes of a connection into frames.

    Bytes come in by ``feed``. A caller that asks for ``room`` first receives the rest of a large frame in its place, so
    that nothing of it is copied again. Large frames that follow one another lie in one buffer, as far as it suffices::

        room = frames.room()
        if room is None:
            frames.feed(socket.recv(…))
        else:
            frames.filled(socket.recv_into(room))

    Args:
        max_bytes: the largest size field accepted; 0 for no limit. It may change between frames.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._buffer = b""
        self._at = 0
        self._wanted = 4
        self._shared, self._used = memoryview(b""), 0
        self._room = memoryview(b"")
        self._filled = 0

    def room(self) -> memoryview | None:
        """Return the place for the rest of a large frame that has begun; None if ``feed`` takes the next bytes.

        As long as there is room, bytes come by ``filled``, from the room's beginning on.
        """
        if not self._room:
            there = len(self._buffer) - self._at + self._held
            if self._wanted - there < LARGE_BYTES:
                return None
            self._room = self._place()
            self._room[:there] = b"".join((memoryview(self._buffer)[self._at :], *self._pieces))
            self._filled = there
            self._buffer, self._pieces, self._held, self._at = b"", [], 0, 0
        return self._room[self._filled :]

    def _place(self) -> memoryview:
        """Return the place of the next large frame in the shared buffer, or in a new one."""
        if self._used + self._wanted + PADDING > len(self._shared):
            # Arrow's allocator keeps freed memory: new pages for each buffer would cost more than filling them. The
            # padding lets columns be read out of the last frame without another copy (``PaddedWords``).
            size = max(SHARED_BYTES, self._wanted + PADDING)
            self._shared, self._used = memoryview(pa.allocate_buffer(size)).cast("B"), 0
        self._used += self._wanted
        return self._shared[self._used - self._wanted : self._used]

    def filled(self, count: int) -> None:
        """Note that the first ``count`` bytes of the room hold bytes from the peer."""
        self._filled += count

    def feed(self, received: bytes) -> None:
        """Add bytes from the peer."""
        self._pieces.append(received)
        self._held += len(received)

    def next(self) -> Frame | None:
        """Return the next frame, None until all of it has arrived.

        Raises:
            FrameTooLarge: the frame is too large, as soon as its size is known; the connection is of no further use.
            RemoteProtocolError: the size is too small for a key and a version.
        """
        if self._room:
            return self._large() if self._filled == self._wanted else None
        if len(self._buffer) - self._at + self._held < self._wanted:
            return None
        if self._held:
            # Join only when a whole frame is in reach, so that a large frame in small pieces is copied once.
            self._buffer = b"".join((self._buffer[self._at :], *self._pieces))
            self._pieces, self._held, self._at = [], 0, 0
        (size,) = _SIZE.unpack_from(self._buffer, self._at)
        if size < 4:
            raise RemoteProtocolError(f"a frame of {size} bytes: expected at least 4")
        if self.max_bytes and size > self.max_bytes:
            raise FrameTooLarge(f"a frame of {size} bytes: expected at most {self.max_bytes}")
        self._wanted = 4 + size
        if len(self._buffer) - self._at < self._wanted:
            return None
        _, key, version = _HEAD.unpack_from(self._buffer, self._at)
        frame = Frame(key, version, self._buffer, self._at + HEAD_BYTES, self._at + self._wanted)
        self._at = frame.end
        self._wanted = 4
        return frame

    def _large(self) -> Frame:
        _, key, version = _HEAD.unpack_from(self._room)
        frame = Frame(key, version, self._shared, self._used - self._wanted + HEAD_BYTES, self._used)
        self._room, self._wanted = memoryview(b""), 4
        return frame

    def next_like(self, frame: Frame) -> Frame | None:
        """Return the next frame if it has arrived together with ``frame``, the last one read, and is of the same kind.

        Return None otherwise, also for a faulty frame, for which ``next`` raises the error.
        """
        if len(self._buffer) - self._at < HEAD_BYTES:
            return None
        size, key, version = _HEAD.unpack_from(self._buffer, self._at)
        if (key, version) != (frame.key, frame.version) or not 4 <= size <= len(self._buffer) - self._at - 4:
            return None
        return self.next() if not self.max_bytes or size <= self.max_bytes else None


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Command:
    """A command; the fields of a subclass, in their order, are its content.

    Every subclass is a frozen dataclass without a decorator of its own; argument ``key`` of its class statement sets
    ``KEY``. A subclass becomes one when its first command is made or read: a dataclass compiles six functions, and a
    process needs few of the fifty commands.
    """

    KEY: ClassVar[int]
    VERSION: ClassVar[int] = 1
    EXTRA: ClassVar[bool] = False
    """Whether to ignore bytes after the last field, because known peers write some."""

    def __init_subclass__(cls, key: int | None = None) -> None:
        if key is not None:
            cls.KEY = key

    if not TYPE_CHECKING:  # type checkers take the fields of the dataclass

        def __new__(cls, *_: Any, **__: Any) -> Any:
            """Make the first of a kind only when its class has become a dataclass."""
            return super().__new__(dataclass_of(cls))

    def encode(self) -> bytes:
        """Return the whole frame.

        Raises:
            LocalProtocolError: a value does not fit its field.
        """
        content = bytearray()
        write_fields(content, self)
        return frame_head(len(content), self.KEY, self.VERSION) + bytes(content)

    @classmethod
    def decode(cls: type[C], frame: Frame) -> C:
        """Read a frame of this command.

        Raises:
            RemoteProtocolError: the content does not fit, or bytes are left over.
        """
        reader = Reader(frame.buffer, frame.start, frame.end, cls.__name__)
        values = dataclass_of(cls)._read(reader)
        if reader.left and not cls.EXTRA:
            raise RemoteProtocolError(f"{cls.__name__}: {reader.left} bytes after its last field")
        return cls(**values)

    @classmethod
    def _read(cls, reader: Reader) -> dict[str, Any]:
        return read_fields(reader, cls)


def dataclass_of(kind: type[C]) -> type[C]:
    """Return a command whose class has become a dataclass."""
    if kind not in _DATACLASSES:
        with _BECOMING:  # connections in several threads may make the first at once
            for each in reversed(kind.__mro__[: kind.__mro__.index(Command)]):
                if each not in _DATACLASSES:
                    dataclass(frozen=True)(each)
                    _DATACLASSES.add(each)
    return kind


class Request(Command):
    """A command with an answer; the caller sets the correlation id."""

    correlation_id: U32 = field(default=0, kw_only=True)


class Answer(Command):
    """An answer; a subclass's own fields have defaults, because a refusal may end after the code."""

    correlation_id: U32
    code: U16 = ResponseCode.OK

    @property
    def ok(self) -> bool:
        """Whether the code is OK."""
        return self.code == ResponseCode.OK

    @classmethod
    def _read(cls, reader: Reader) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field_type in layout_of(cls):
            if not reader.left and values.get("code", ResponseCode.OK) != ResponseCode.OK:
                break
            values[name] = field_type.read(reader, name)
        return values
