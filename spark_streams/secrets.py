"""Keeps secrets: texts that are never shown, and texts that are read again at each use, so that they can be rotated.

A ``FreshSecret`` is read from a file or from a function. Plans and pickles hold the name of the file or of the
function; the value stays in the process that signs in. Every ``reveal`` reads it again.
"""

from __future__ import annotations

import abc
import pkgutil
import re
from collections.abc import Callable
from typing import Final

from spark_streams.errors import OptionError

MAX_BYTES: Final = 64 << 10
"""The largest file that is read: a longer one holds no password or token, it is the wrong file."""
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Secret:
    """A string that must not be shown: ``reveal()`` returns it, ``repr`` and ``str`` do not.

    A pickle carries the value, masked (not encrypted) so that nobody finds it by reading the bytes.
    """

    __slots__ = ("_value",)

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
    is_cheap = False
    """Whether it can be read before each use; if not, only a refusal by the peer shows that it has changed."""

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
    is_cheap = True

    def reveal(self) -> str:
        """Read the file; see ``FreshSecret.reveal``."""
        try:
            with open(self.source, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else "no path"
            raise OptionError(
                self.option,
                f"'{self.source}' cannot be read here: {reason}. The file must be there on the driver and on every "
                "executor",
            ) from None
        if len(content) > MAX_BYTES:
            raise OptionError(self.option, f"'{self.source}' has more than {MAX_BYTES} bytes: is it the right file")
        try:
            text = content.decode("utf-8-sig").strip()  # editors of Windows begin a file with a mark
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise OptionError(self.option, f"'{self.source}' is empty, or no UTF-8: expected one line with the secret")
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

    def __init__(self, source: str, option: str) -> None:
        super().__init__(source, option)
        if not _NAME.fullmatch(source):
            raise OptionError(option, f"'{source}' is no function, expected such as package.module:function")

    def reveal(self) -> str:
        """Import the function and call it; see ``FreshSecret.reveal``."""
        try:
            found: object = pkgutil.resolve_name(self.source)
        except Exception as fault:
            # The message shows only the kind of the fault: the text of foreign code may hold anything.
            raise OptionError(
                self.option,
                f"'{self.source}' cannot be imported here ({type(fault).__name__}): its package must be installed on "
                "the driver and on every executor",
            ) from None
        if not callable(found):
            raise OptionError(self.option, f"'{self.source}' is a {type(found).__name__}, expected a function")
        try:
            value = found()
        except Exception as fault:
            raise OptionError(
                self.option,
                f"'{self.source}' raised {type(fault).__name__}; what it said is not shown, it may hold a secret: call "
                "it by hand",
            ) from None
        if not isinstance(value, str) or not value.strip():
            kind = "an empty text" if isinstance(value, str) else f"a {type(value).__name__}"
            raise OptionError(self.option, f"'{self.source}' returned {kind}, expected a text")
        return value.strip()
