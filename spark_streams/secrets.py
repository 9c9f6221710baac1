"""Keeps secrets: texts that are never shown, and texts that are read again at each use, so that they can be rotated.

A ``FreshSecret`` is read from a file or from a function. Plans and pickles hold the name of the file or of the
function; the value stays in the process that signs in. Every ``reveal`` reads it again.
"""

from __future__ import annotations

import abc
import contextlib
import os
import pkgutil
import re
import signal
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, Final

from spark_streams.errors import OptionError

MAX_BYTES: Final = 64 << 10
"""The largest file that is read: a longer one holds no password or token, it is the wrong file."""
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Secret:
    """A string that must not be shown: ``reveal()`` returns it, ``repr`` and ``str`` do not.

    A pickle carries the value, masked (not encrypted) so that nobody finds it by reading the bytes.
    """

    __slots__ = ("_value",)
    is_cheap = True
    """Whether it can be revealed before each use; if not, only a refusal by the peer shows that it has changed."""

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
            OptionError: the secret cannot be read, or what was read is no secret; the message shows nothing of it.
        """

    def fault(self, text: str) -> OptionError:
        """Return the error of the option that the source is wrong, for which ``text`` must not hold the secret."""
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
            text = content.decode("utf-8-sig").strip()  # editors of Windows begin a file with a mark
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
        """Import the function and call it, the first time in a copy of this process; see ``FreshSecret.reveal``."""
        text = ""
        if self.source not in _TRIED:
            ended, text = _called_in_a_copy(self._called)
            if ended not in (_WELL, -signal.SIGALRM):
                what = "left a thread or a process" if ended == _LEFT else "ended the process that called it"
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
                os._exit(1)  # it forked: no second process may go on here, with the same sockets
        if not callable(found):
            raise self.fault(f"is a {type(found).__name__}, expected a function")
        if not isinstance(value, str) or not value.strip():
            kind = "an empty text" if isinstance(value, str) else f"a {type(value).__name__}"
            raise self.fault(f"returned {kind}, expected a text")
        return value.strip()


_TRIED: Final[set[str]] = set()
"""The functions that this process, or the one that it was forked from, has tried in a copy."""
_TRIAL_S: Final = 60
"""Seconds after which a trial ends that tells nothing: the copy may wait for a lock that another thread had."""
_WELL, _LEFT = 101, 102


def _called_in_a_copy(call: Callable[[], str]) -> tuple[int, str]:
    """Let a copy of this process make a call; return its exit code, ``_WELL``, ``_LEFT`` or any other, and the text.

    Only so a call that ends its process becomes an error; and as the copy has no other threads and no other processes,
    what is there afterwards is the call's. An error of the call is well here, with an empty text: to call again here
    raises it. A text is not asked for twice, as a token may be given once.
    """
    if sys.platform != "linux":
        return _WELL, ""  # elsewhere, the system's own libraries may end a copy of a process with threads
    with open(os.memfd_create("text"), "w+b", buffering=0) as told:
        ended = _ended_copy(call, told)
        told.seek(0)
        return ended, told.read().decode("utf-8", "surrogatepass") if ended == _WELL else ""


def _ended_copy(call: Callable[[], str], told: BinaryIO) -> int:
    """Return the exit code of a copy of this process that makes a call and writes its text to a file."""
    if not (copy := os.fork()):
        ended = 0
        try:
            signal.alarm(_TRIAL_S)
            with contextlib.suppress(OptionError):
                told.write(call().encode("utf-8", "surrogatepass"))
            ended = _WELL if threading.active_count() == 1 else _LEFT
            os.waitpid(-1, os.WNOHANG)  # raises where there is no process
            ended = _LEFT
        finally:
            os._exit(ended)
    with contextlib.suppress(ChildProcessError):  # this process does not learn how others end (SIG_IGN)
        return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    return _WELL
