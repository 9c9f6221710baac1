"""Sign-ins to the window, and what proves that a form was sent from one of its own pages.

A sign-in is a random word in a cookie that scripts cannot read and that no request from another site carries. Words are
kept as their hashes. A form has a second word, made from the first one with a key of this process: another site, which
can read neither, cannot send a form that is taken (double submit with a signature; RFC 6265bis §8.8.2 on why the cookie
alone is not enough). Where nobody is asked to sign in, the word of forms is made from the key alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_streams.server.http.authorization import Known
from spark_streams.server.users import displaced

WORD_BYTES: Final = 32


@dataclass(frozen=True)
class Session:
    """One sign-in.

    Args:
        known: who signed in.
        until_s: when it ends, on the clock of ``Sessions``.
    """

    known: Known
    until_s: float


class Sessions:
    """All sign-ins, in the memory of this process: its end ends them.

    Args:
        duration_ms: how long one lasts.
        most: how many there are at most; a further one ends the oldest of the user that has most.
        clock: returns seconds, monotonic.
    """

    def __init__(self, duration_ms: int, most: int, clock: Callable[[], float]) -> None:
        self._duration_s = duration_ms / 1000
        self._most = most
        self._clock = clock
        self._open: dict[bytes, Session] = {}
        self._key = secrets.token_bytes(WORD_BYTES)

    def begin(self, known: Known) -> str:
        """Return the word of a new sign-in."""
        now = self._clock()
        self._open = {key: each for key, each in self._open.items() if each.until_s > now}
        while len(self._open) >= self._most:
            del self._open[displaced({key: each.known.user for key, each in self._open.items()}, known.user)]
        word = secrets.token_urlsafe(WORD_BYTES)
        self._open[_hashed(word)] = Session(known, now + self._duration_s)
        return word

    def find(self, word: str) -> Known | None:
        """Return who signed in with a word; None for an unknown one, and one that has ended."""
        session = self._open.get(_hashed(word))
        return session.known if session is not None and session.until_s > self._clock() else None

    def end(self, word: str) -> None:
        """End a sign-in, if there is one."""
        self._open.pop(_hashed(word), None)

    def form_word(self, word: str) -> str:
        """Return the word that forms of a sign-in have; of ``""``, those of everybody who has not signed in."""
        return hmac.new(self._key, word.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def fits(self, word: str, given: str) -> bool:
        """Return whether a form has the word of this sign-in."""
        return hmac.compare_digest(self.form_word(word).encode(), given.encode("utf-8", "replace"))


def _hashed(word: str) -> bytes:
    return hashlib.sha256(word.encode("utf-8", "replace")).digest()
