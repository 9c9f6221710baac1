"""Keeps secrets: texts that are never shown, and texts that are read again at each use, so that they can be rotated.

A ``FreshSecret`` is read from a file or from a function. Plans and pickles hold the name of the file or of the
function; the value stays in the process that signs in. Every ``reveal`` reads it again.
"""

from __future__ import annotations

import abc
import contextlib
import mmap
import os
import pkgutil
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from spark_streams.errors import OptionError

MAX_BYTES: Final = 64 << 10
"""The most bytes of a file that is read: a longer file is the wrong one, as no password or token is so long."""
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Secret:
    """A string that must not be shown: ``reveal()`` returns it, ``repr`` and ``str`` do not.

    A pickle carries the value, masked (not encrypted) so that nobody finds it by reading the bytes.
    """

    __slots__ = ("_value",)
    is_cheap = True
    """Whether each use may reveal the secret anew; if not, only a refusal by the peer shows that it has changed."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Callable[[bytes], Secret], tuple[bytes]]:
        return _unmask, (_mask(self._value.encode("utf-8", "surrogatepass")),)


def _mask(value: bytes) -> bytes:
    return bytes(b ^ 0xA5 for b in value)


def _unmask(masked: bytes) -> Secret:
    return Secret(_mask(masked).decode("utf-8", "surrogatepass"))


class FreshSecret(Secret, abc.ABC):
    """A secret that every ``reveal`` reads again.

    Args:
        source: where the secret is read from; it is shown and pickled, so it must not be secret itself.
        option: the option that names the source, for messages.
    """

    __slots__ = ("option", "source")

    def __init__(self, source: str, option: str) -> None:
        super().__init__("")
        self.source = source
        self.option = option

    @abc.abstractmethod
    def reveal(self) -> str:
        """Read the secret.

        Raises:
            OptionError: the secret cannot be read, or the text is no secret; the message shows nothing of it.
        """

    def fault(self, text: str) -> OptionError:
        """Return an OptionError about the source; ``text`` says what is wrong, and must not hold the secret."""
        return OptionError(self.option, f"'{self.source}' {text}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, {self.option!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, FreshSecret) and other.source == self.source

    def __hash__(self) -> int:
        return hash((type(self), self.source))

    def __reduce__(self) -> tuple[Callable[..., Secret], tuple[str, str]]:  # type: ignore[override]
        return type(self), (self.source, self.option)


class FileSecret(FreshSecret):
    """The text of a file, without blanks and line ends around it.

    Args:
        source: the file's path, on every machine that signs in.
        option: see ``FreshSecret``.
    """

    __slots__ = ()

    def reveal(self) -> str:
        """Read the file; see ``FreshSecret.reveal``."""
        try:
            with open(self.source, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else "no path"
            todo = "The file must be there on the driver and on every executor"
            raise self.fault(f"cannot be read here: {reason}. {todo}") from None
        if len(content) > MAX_BYTES:
            raise self.fault(f"has more than {MAX_BYTES} bytes: is it the right file")
        try:
            text = content.decode("utf-8-sig").strip()  # editors on Windows begin a file with a byte order mark
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise self.fault("is empty, or no UTF-8: expected one line with the secret")
        return text


class CalledSecret(FreshSecret):
    """The text that a function without arguments returns.

    Args:
        source: ``package.module:function``; every process that signs in imports it.
        option: see ``FreshSecret``.

    Raises:
        OptionError: ``source`` has another form.
    """

    __slots__ = ()
    is_cheap = False

    def __init__(self, source: str, option: str) -> None:
        super().__init__(source, option)
        if not _NAME.fullmatch(source):
            raise self.fault("is no function, expected such as package.module:function")

    def reveal(self) -> str:
        """Import and call the function, the first time in a copy of this process; see ``FreshSecret.reveal``."""
        text = ""
        if self.source not in _TRIED:
            what, text = _called_in_a_copy(self._called)
            if what:
                raise self.fault(f"{what}: expected a function that returns a text, and does no more")
            _TRIED.add(self.source)
        return text or self._called()

    def _called(self) -> str:
        process, found = os.getpid(), None
        try:
            found = pkgutil.resolve_name(self.source)
            value = found() if callable(found) else None
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            # The message shows only the kind of the fault: the text of foreign code may hold anything.
            kind = type(fault).__name__
            todo = f"raised {kind}; what it said is not shown, it may hold a secret: call it by hand"
            if found is None:
                package = "its package must be installed on the driver and on every executor"
                todo = f"cannot be imported here ({kind}): {package}"
            raise self.fault(todo) from None
        finally:
            if os.getpid() != process:
                os._exit(_TWICE)  # the function forked: the child must not go on here with the same sockets
        if not callable(found):
            raise self.fault(f"is a {type(found).__name__}, expected a function")
        if not isinstance(value, str) or not value.strip():
            kind = "an empty text" if isinstance(value, str) else f"a {type(value).__name__}"
            raise self.fault(f"returned {kind}, expected a text")
        return value.strip()


_TRIED: Final[set[str]] = set()
"""The functions that this process, or the one that it was forked from, has tried in a copy."""
_TRIAL_S: Final = 10
"""Seconds after which a trial ends without a result: the copy may wait for a lock that another thread held."""
_ENDING_S: Final = 1.0
"""Seconds that a process begun by the call has to end, such as a command whose output was read to its end."""
_ROOM_BYTES: Final = 1 << 20
_TWICE: Final = 97
"""The exit code of a second process in which the call returned, because its function forked."""
_TOLD: Final = struct.Struct("=BI")
"""How the call ended (0: it did not, 1: well, 2: it left a thread or a process), and the bytes of the text after it."""


def _called_in_a_copy(call: Callable[[], str]) -> tuple[str, str]:
    """Make a call in a copy of this process; return what it did that no call may do (else ``""``), and its text.

    Only in a copy does a call that ends its process become an error. The copy begins without other threads and without
    child processes, so all that exist afterwards are the call's. The text is empty if the call fails, takes too long or
    returns too long a text: the caller then calls in this process, whose error says more. Any other text is used as it
    is, not requested again, as a token may be given only once.
    """
    if sys.platform != "linux":
        return "", ""  # elsewhere, the system's own libraries may end a copy of a process with threads
    with mmap.mmap(-1, _ROOM_BYTES) as told:  # what the copy writes remains after its end
        if not (copy := os.fork()):
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(_TRIAL_S)
                text = b""
                with contextlib.suppress(OptionError):
                    text = call().encode("utf-8", "surrogatepass")
                told.write(_TOLD.pack(1 + _is_left(), len(text) if len(text) <= _ROOM_BYTES - _TOLD.size else 0))
                told.write(text[: _ROOM_BYTES - _TOLD.size])
            finally:
                os._exit(0)
        status = 0
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored, the system reports no status
            status = os.waitpid(copy, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            return "", ""
        over, size = _TOLD.unpack(told.read(_TOLD.size))
        what = ("ended the process that called it", "", "left a thread or a process")[over]
        return what, told.read(size).decode("utf-8", "surrogatepass")


def _is_left() -> bool:
    """Return whether the call left a thread, a process that does not end, or a process in which it returned too."""
    until = time.monotonic() + _ENDING_S
    with contextlib.suppress(ChildProcessError):  # no child process is left
        while time.monotonic() < until:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _TWICE:
                break
            time.sleep(0 if pid else 0.01)
        return True
    return threading.active_count() > 1
