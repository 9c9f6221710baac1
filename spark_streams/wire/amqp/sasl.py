"""The SASL security layer of AMQP 1.0, both roles, without sockets.

::

    protocol header   "AMQP" 3 1 0 0                          each side sends it first
    frame             size(4, itself included) doff(1) = 2 type(1) = 1 ignored(2)  performative
    sasl-mechanisms   0x40 [symbol or array of symbols]       server to client
    sasl-init         0x41 [mechanism, initial-response, hostname]
    sasl-challenge    0x42 [binary]                           not used by the mechanisms here
    sasl-response     0x43 [binary]
    sasl-outcome      0x44 [code, additional-data]            0 ok, 1 auth, 2 sys, 3 sys-perm, 4 sys-temp

After outcome 0 both sides begin again with the header ``AMQP`` 0 1 0 0; the bytes after the layer are in ``leftover``.
Mechanisms: PLAIN (RFC 4616), EXTERNAL (RFC 4422, appendix A; the identity comes from TLS), ANONYMOUS (RFC 4505), and
Event Hubs' MSSBCBS, which shows that a server takes tokens after this layer; it is ANONYMOUS by another name.

Spec: AMQP 1.0 part 5 §5.3 (SASL).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from spark_streams.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from spark_streams.redaction import quoted
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.values import Array, Described, Symbol, UByte, ULong, coded

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
MAX_FRAME_BYTES: Final = 4096
"""The longest SASL frame accepted. AMQP requires peers to accept 512 bytes; proton and RabbitMQ send longer frames."""

_MECHANISMS: Final = 0x40
_INIT: Final = 0x41
_OUTCOME: Final = 0x44
_WORDS: Final = ("sasl-mechanisms", "sasl-init", "sasl-challenge", "sasl-response", "sasl-outcome")
_NAMES: Final = dict(enumerate(_WORDS, _MECHANISMS))
_CODES: Final = coded(_MECHANISMS, *_WORDS)

OK: Final = 0
AUTH: Final = 1
_OUTCOMES: Final = {
    1: "the credentials were not accepted",
    2: "the peer had a system error",
    3: "the peer had a permanent system error",
    4: "the peer had a transient system error",
}


def _frame(code: int, fields: list[object]) -> bytes:
    body = encode_value(Described(ULong(code), fields))
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


class _Side(ABC):
    """One side of the layer: its header and frames, from the other side's bytes; it never reads past its end."""

    def __init__(self) -> None:
        self.done = self.failed = False
        self.leftover = b""
        self._buffer = bytearray()
        self._header: bytes | None = None

    def receive(self, received: bytes) -> bytes:
        """Process bytes from the other side; return bytes to send to it.

        Raises:
            AuthenticationFailed: the server refused our credentials, or does not offer the mechanism (the message names
                those that it offers); the caller must close the connection.
            RemoteProtocolError: the bytes are no SASL; the layer cannot be used any more. If the header was another
                one, AMQP requires a server to send ``SASL_HEADER`` before it closes the connection.
        """
        if self.done or self.failed:
            self.leftover += received
            return b""
        header = self._take(received)
        return b"" if header is None else self._answer(header)

    @abstractmethod
    def _answer(self, header: bytes) -> bytes:
        """Process the bytes in the buffer, once the other side's header is known; return bytes to send."""

    def _end(self) -> None:
        """Keep the bytes that are left for the next layer."""
        self.leftover, self._buffer = bytes(self._buffer), bytearray()

    def _take(self, received: bytes) -> bytes | None:
        """Add bytes from the peer; return its eight header bytes, None until all have arrived.

        Raises:
            RemoteProtocolError: the bytes begin no AMQP header; the first four are checked as they arrive.
        """
        self._buffer += received
        if self._header is None:
            start = bytes(self._buffer[:8])
            if not b"AMQP".startswith(start[:4]):
                raise RemoteProtocolError(f"the peer does not speak AMQP: its first bytes are {start!r}")
            if len(start) == 8:
                if start[4] not in (0, 2, 3) or start[5:] != b"\x01\x00\x00":
                    raise RemoteProtocolError(f"the peer's protocol header is {start!r}: expected {SASL_HEADER!r}")
                self._header = start
                if start == SASL_HEADER:
                    del self._buffer[:8]
        return self._header

    def _performative(self) -> tuple[int, list[Any]] | None:
        """Return the next frame's code and fields, None until all of it has arrived.

        Raises:
            RemoteProtocolError: the frame is too long, or is no SASL frame.
        """
        if len(self._buffer) < 8:
            return None
        size, offset, kind = struct.unpack_from(">IBB", self._buffer)
        if not 8 <= size <= MAX_FRAME_BYTES:
            raise RemoteProtocolError(f"SASL frame of {size} bytes: expected 8 to {MAX_FRAME_BYTES}")
        if kind != 1 or offset < 2 or 4 * offset > size:
            raise RemoteProtocolError(f"SASL frame with type {kind} and data offset {offset}: expected 1 and 2")
        if len(self._buffer) < size:
            return None
        body = bytes(self._buffer[4 * offset : size])
        del self._buffer[:size]
        value, end = decode_value(body)
        descriptor = value.descriptor if isinstance(value, Described) else None
        code = _CODES.get(descriptor)
        if not isinstance(value, Described) or code is None or not isinstance(value.value, list):
            raise RemoteProtocolError(f"SASL frame: descriptor {quoted(descriptor, 80)} is none of SASL")
        if end != len(body):
            raise RemoteProtocolError(f"SASL frame: {len(body) - end} bytes after its performative")
        return int(code), value.value


def _field(fields: list[Any], index: int, kind: Any, what: str, default: Any = None) -> Any:
    value = fields[index] if index < len(fields) else None
    if value is None:
        return default
    if not isinstance(value, kind):
        raise RemoteProtocolError(f"{what}: a {type(value).__name__}, which is not its type")
    return value


class SaslServer(_Side):
    """The server's side, for one connection.

    Args:
        mechanisms: the mechanisms to offer, in order of preference: of ``PLAIN``, ``EXTERNAL``, ``ANONYMOUS``,
            ``MSSBCBS``.
        check_plain: returns whether user and password are right; it must compare in constant time.
        external_identity: the client's identity by its verified TLS certificate; without it EXTERNAL is not offered.

    Attributes:
        done: the layer is over: ``identity`` and ``mechanism`` are set, ``leftover`` holds the bytes after the layer.
        failed: the credentials were wrong; send the result of ``receive``, then close the connection.
        skipped: the client began without SASL; ``leftover`` starts with its header. The caller decides whether that is
            allowed.
        identity: the user's name; ``anonymous`` for ANONYMOUS; None before that.
        mechanism: the mechanism that was used, or None.
    """

    def __init__(
        self, mechanisms: Sequence[str], check_plain: Callable[[str, str], bool], external_identity: str | None = None
    ) -> None:
        unknown = set(mechanisms) - {"PLAIN", "EXTERNAL", "ANONYMOUS", "MSSBCBS"}
        if unknown:
            raise LocalProtocolError(f"SASL server with mechanisms {list(mechanisms)}")
        self.mechanisms = tuple(m for m in mechanisms if m != "EXTERNAL" or external_identity is not None)
        super().__init__()
        self.skipped = False
        self.identity: str | None = None
        self.mechanism: str | None = None
        self._check_plain = check_plain
        self._external_identity = external_identity
        self._greeted = False

    def _answer(self, header: bytes) -> bytes:
        if header == AMQP_HEADER:
            self.done = self.skipped = True
            self._end()
            return b""
        if header != SASL_HEADER:
            raise RemoteProtocolError(f"the client's protocol header is {header!r}: expected {SASL_HEADER!r}")
        answer = b""
        if not self._greeted:
            self._greeted = True
            offered = Array(0xA3, tuple(Symbol(m) for m in self.mechanisms))
            answer = SASL_HEADER + _frame(_MECHANISMS, [offered])
        performative = self._performative()
        if performative is None:
            return answer
        code, fields = performative
        if code != _INIT:
            raise RemoteProtocolError(f"{_NAMES[code]} from a SASL client: expected sasl-init")
        outcome = self._authenticate(fields)
        self.done, self.failed = outcome == OK, outcome != OK
        self._end()
        return answer + _frame(_OUTCOME, [UByte(outcome)])

    def _authenticate(self, fields: list[Any]) -> int:
        mechanism = _field(fields, 0, str, "sasl-init mechanism")
        response = bytes(_field(fields, 1, bytes, "sasl-init initial-response", b""))
        _field(fields, 2, str, "sasl-init hostname")
        if mechanism not in self.mechanisms:
            return AUTH
        identity = None
        if mechanism == "PLAIN":
            identity = self._plain(response)
        elif mechanism == "EXTERNAL":
            # The response names the identity to act for; only the certificate's own identity is granted.
            certified = self._external_identity
            identity = certified if certified and response in (b"", certified.encode("utf-8")) else None
        else:
            identity = "anonymous"
        if identity is None:
            return AUTH
        self.identity, self.mechanism = identity, str(mechanism)
        return OK

    def _plain(self, response: bytes) -> str | None:
        """Return the user that ``[authzid] NUL authcid NUL password`` authenticates, or None. Spec: RFC 4616 §2."""
        parts = response.split(b"\0")
        if len(parts) != 3:
            return None
        try:
            acting_for, user, password = (part.decode("utf-8") for part in parts)
        except UnicodeDecodeError:
            return None
        if not user or acting_for not in ("", user):
            return None
        return user if self._check_plain(user, password) else None


class SaslLogin(NamedTuple):
    """How a client signs in.

    Args:
        mechanism: ``PLAIN``, ``EXTERNAL`` or ``ANONYMOUS``.
        username: the user of PLAIN.
        password: that user's password; it is shown nowhere.
    """

    mechanism: str
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism!r})"

    @classmethod
    def plain(cls, username: str, password: str) -> SaslLogin:
        """Return a login by PLAIN.

        Raises:
            LocalProtocolError: PLAIN cannot carry the user's name or the password.
        """
        if "\0" in username + password:
            raise LocalProtocolError("user name or password holds a NUL, which SASL PLAIN cannot carry")
        return cls("PLAIN", username, password)


class SaslClient(_Side):
    """The client's side, for one connection.

    If the server does not offer the mechanism that is chosen, authentication has failed: the client never tries a
    weaker one.

    Args:
        choose: returns the login by the mechanisms that the server offers.
        hostname: the host to connect to, or None.

    Attributes:
        offered: the mechanisms that the server offers; empty before it has told them.
        mechanism: the mechanism that is used; None before it is chosen.
        done: the layer is over and the server accepted; ``leftover`` holds the bytes after the layer.
    """

    def __init__(self, choose: Callable[[tuple[str, ...]], SaslLogin], hostname: str | None = None) -> None:
        super().__init__()
        self.offered: tuple[str, ...] = ()
        self._login: SaslLogin | None = None
        self._choose = choose
        self._hostname = hostname
        self._sent_init = False

    @property
    def mechanism(self) -> str | None:
        """See the attributes of the class."""
        return None if self._login is None else self._login.mechanism

    def start(self) -> bytes:
        """Return the first bytes to send."""
        return SASL_HEADER

    def _answer(self, header: bytes) -> bytes:
        if header != SASL_HEADER:
            raise AuthenticationFailed(
                "amqp:unauthorized-access", f"the server wants another protocol header, {header!r}", "SASL"
            )
        answer = b""
        while (performative := self._performative()) is not None:
            code, fields = performative
            if code == _MECHANISMS and not self._sent_init:
                answer += self._init(fields)
            elif code == _OUTCOME and self._sent_init:
                self._finish(fields)
            else:
                raise RemoteProtocolError(f"{_NAMES[code]} from a SASL server when it was not due")
        return answer

    def _init(self, fields: list[Any]) -> bytes:
        offered = _field(fields, 0, (Symbol, Array), "sasl-mechanisms")
        names = list(offered.items) if isinstance(offered, Array) else [] if offered is None else [offered]
        if not all(isinstance(name, Symbol) for name in names):
            raise RemoteProtocolError("sasl-mechanisms: holds something else than symbols")
        self.offered = tuple(str(name) for name in names)
        login = self._login = self._choose(self.offered)
        if login.mechanism not in names:
            hint = "; give a username and password" if login.mechanism == "ANONYMOUS" and "PLAIN" in names else ""
            raise AuthenticationFailed(
                "amqp:unauthorized-access",
                f"the server does not offer {login.mechanism}, it offers {', '.join(names) or 'nothing'}{hint}",
                "SASL",
            )
        response: bytes | None = b""
        if login.mechanism == "PLAIN":
            response = b"\0".join((b"", login.username.encode("utf-8"), login.password.encode("utf-8")))
        elif login.mechanism == "ANONYMOUS":
            response = b"anonymous"
        self._sent_init = True
        init: list[object] = [Symbol(login.mechanism), response]
        return _frame(_INIT, init if self._hostname is None else [*init, self._hostname])

    def _finish(self, fields: list[Any]) -> None:
        code = _field(fields, 0, UByte, "sasl-outcome code")
        if code is None:
            raise RemoteProtocolError("sasl-outcome: has no code")
        if code != OK:
            reason = _OUTCOMES.get(int(code), f"outcome {int(code)}")
            login = self._login
            assert login is not None
            who = f" for user '{login.username}'" if login.mechanism == "PLAIN" else ""
            raise AuthenticationFailed("amqp:unauthorized-access", f"{reason}{who} ({login.mechanism})", "SASL")
        self.done = True
        self._end()
