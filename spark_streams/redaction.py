"""What a peer says, fit for a message or a log line: one line of it, cut, and without our secrets.

A peer may echo what it was sent: an error page with the request's headers, a reason with the user's name and password.
So every secret that a process sends is remembered when it is sent, and looked for in all that peers say, in the forms
that it was sent in:

* as it is, and percent-encoded, or escaped as JSON and HTML do it; also with its bytes taken for Latin-1;
* as base64, by itself and within more, as HTTP's basic authentication and SASL have it; the whole run of base64 goes.

Which words are taken for a secret:

=================  =============================================================================================
its characters     it is found
=================  =============================================================================================
8 and more         anywhere, within words too, whatever their case; and its beginning, from 12 characters on, as
                   peers cut what they quote
4 to 7             where it stands alone, between blanks and signs: ``test`` is not found in ``latest``
1 to 3             as it was sent only: behind ``Bearer``, in ``user:password``, in base64 of that
=================  =============================================================================================

A password that is the user's name, such as guest's, is none that could be told. What a peer makes of a secret in
another way, reversed say, is not found.
"""

from __future__ import annotations

import base64
import html
import re
import string
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST: Final = 1_000
"""Characters of what a peer says that a message has."""
SEARCHED: Final = 16 << 10
"""Characters that are looked at; what comes behind them is left out."""
REMEMBERED: Final = 1_000
"""Secrets of a process, those that were sent last: rotated ones too, as a peer may answer late."""
ANYWHERE: Final = 8
ALONE: Final = 4
BEGINNING: Final = 12

UNSURE: Final = 6 * BEGINNING
"""Characters at the end of a text that is cut, which may be too little of a secret to be found, six an escaped one."""

_MASK: Final = "***"
_IN_BASE64: Final = string.ascii_letters + string.digits + "+/=_-"
_BASE64: Final = re.compile(f"[{re.escape(_IN_BASE64)}]*")
_PERCENT: Final = r"(?:%[0-9a-fA-F]{2})+"
_BACKSLASH: Final = r"(?:\\u[0-9a-fA-F]{4})+|\\U00[01][0-9a-fA-F]{5}|\\x[0-9a-fA-F]{2}|\\[^uUx]"
_ENTITY: Final = r"&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});"
_ESCAPES: Final = tuple(
    re.compile(each) for each in (_PERCENT, _BACKSLASH, _ENTITY, f"{_PERCENT}|{_BACKSLASH}|{_ENTITY}")
)
"""Of each kind alone, as what is one escape may be a part of the secret in another; and all of them."""
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class _Needle(NamedTuple):
    """A form of a secret.

    Args:
        text: what is looked for.
        alone: only where it stands alone.
        base64: the run of base64 around it goes too.
    """

    text: str
    alone: bool = False
    base64: bool = False


class _Sent:
    """The secrets that this process has sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needles: OrderedDict[tuple[str, str | None], tuple[_Needle, ...]] = OrderedDict()

    def add(self, secret: str, username: str | None) -> None:
        key = secret, username
        with self._lock:
            if key not in self._needles:
                self._needles[key] = tuple(dict.fromkeys(_forms(secret, username)))
                if len(self._needles) > REMEMBERED:
                    self._needles.popitem(last=False)
            self._needles.move_to_end(key)

    def needles(self) -> list[_Needle]:
        with self._lock:
            return [each for forms in self._needles.values() for each in forms]


_sent = _Sent()


def remember(secret: str, username: str | None = None) -> None:
    """Note a secret that is about to be sent; from any thread.

    Args:
        secret: a password, a token, a query; nothing when it is empty.
        username: whose password it is; None for what is no password.
    """
    if secret and secret != username:
        _sent.add(secret, username)


def told(text: str, most: int = MOST) -> str:
    """Return what a peer said, as ``one_line`` of ``hidden``; arguments as there."""
    return one_line(hidden(text), most)


def one_line(text: str, most: int = MOST) -> str:
    r"""Return a text without anything that would begin another line, or move a terminal's cursor.

    Args:
        text: any; what is not printable becomes ``\n``, ``\x1b``, ``\u2028`` and so on.
        most: characters of the result, about; more are cut, which ``…`` tells.
    """
    if len(text) <= most and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: most + 1])
    return line if len(line) <= most else line[:most] + "…"


def quoted(value: object, most: int) -> str:
    """Return ``repr`` of a value that a peer sent, with secrets hidden, cut to so many characters."""
    return one_line(hidden(repr(value)), most)


def hidden(text: str, *, cut: bool = False) -> str:
    """Return a text with ``***`` in place of our secrets.

    Args:
        text: of a peer; the first ``SEARCHED`` characters are taken.
        cut: whether the text goes on, and its end may be the beginning of a secret: as much as that could be goes.
    """
    needles = _sent.needles()
    if len(text) > SEARCHED:
        text, cut = text[:SEARCHED], True
    if not needles:
        return text
    found: list[tuple[int, int]] = []
    for view in _views(text):
        for needle in needles:
            found.extend(view.places(needle))
    if cut:
        found.append((max(0, len(text) - UNSURE), len(text)))
    out: list[str] = []
    at = 0
    for start, end in sorted(found):
        if start > at or not out:
            out += (text[at:start], _MASK)
        at = max(at, end)
    return "".join((*out, text[at:]))


def _forms(secret: str, username: str | None) -> Iterator[_Needle]:
    """Yield what a secret looks like that was sent."""
    octets = secret.encode("utf-8", "surrogatepass")
    if len(secret) >= ALONE:
        for text in (secret, octets.decode("latin-1")):
            yield _Needle(text, alone=len(secret) < ANYWHERE)
        yield from (_Needle(each, base64=True) for each in _in_base64(octets))
    if username is None:
        if len(secret) < ALONE:
            yield _Needle(f"Bearer {secret}", alone=True)
        return
    for whole in (f"{username}:{secret}", f"\0{username}\0{secret}"):
        if len(secret) < ALONE:
            yield _Needle(whole, alone=True)
        packed = base64.b64encode(whole.encode("utf-8", "surrogatepass")).decode()
        yield _Needle(packed.rstrip("="), base64=True)


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield the characters that base64 has for sure of a secret with anything before and behind it."""
    for before in range(3):
        packed = base64.b64encode(b"\0" * before + secret)
        first, last = -(-before * 4 // 3), (before + len(secret)) * 8 // 6
        text = packed[first:last].decode()
        if len(text) > ALONE:
            yield from {text, text.translate(str.maketrans("+/", "-_"))}


class _View:
    """A text as it is meant, and where each of its characters stands in the text as it was sent.

    Args:
        text: with escapes resolved.
        spans: per character; None: it is the text itself.
    """

    def __init__(self, text: str, spans: list[tuple[int, int]] | None = None) -> None:
        self._text, self._spans = text, spans
        self._lower = text.translate(_LOWER)

    def places(self, needle: _Needle) -> Iterator[tuple[int, int]]:
        """Yield where a form of a secret begins and ends in the text as it was sent."""
        wanted, text = needle.text, self._text
        if not needle.alone and len(wanted) >= ANYWHERE:
            wanted, text = wanted.translate(_LOWER), self._lower
        sought = wanted if needle.alone else wanted[:BEGINNING]
        at = text.find(sought)
        while at >= 0:
            end = at + len(sought)
            while end < len(text) and end - at < len(wanted) and text[end] == wanted[end - at]:
                end += 1
            last = end
            if not needle.alone or not (_joins(text, at - 1, at) or _joins(text, end - 1, end)):
                first, last = self._run(at, end) if needle.base64 else (at, end)
                yield (first, last) if self._spans is None else (self._spans[first][0], self._spans[last - 1][1])
            at = text.find(sought, at + 1 if needle.alone else last)

    def _run(self, at: int, end: int) -> tuple[int, int]:
        """Return the whole run of base64 that a place is in."""
        match = _BASE64.match(self._text, end)
        last = match.end() if match is not None else end
        return len(self._text[:at].rstrip(_IN_BASE64)), last


def _joins(text: str, left: int, right: int) -> bool:
    """Return whether two neighbours are parts of one word."""
    return left >= 0 and right < len(text) and text[left].isalnum() and text[right].isalnum()


def _views(text: str) -> Iterator[_View]:
    yield _View(text)
    for escape in _ESCAPES:
        if escape.search(text):
            yield _unescaped(text, escape, "+")
    if "+" in text:
        yield _unescaped(text, _ESCAPES[0], " ")


def _unescaped(text: str, escape: re.Pattern[str], plus: str) -> _View:
    """Return a text without its escapes; a plus is a blank in a query."""
    characters: list[str] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for found in escape.finditer(text):
        characters += text[at : found.start()].replace("+", plus)
        spans += ((each, each + 1) for each in range(at, found.start()))
        meant = _meant(found.group())
        characters += meant
        spans += [found.span()] * len(meant)
        at = found.end()
    characters += text[at:].replace("+", plus)
    spans += ((each, each + 1) for each in range(at, len(text)))
    return _View("".join(characters), spans)


def _meant(escape: str) -> str:
    """Return what an escape stands for; it may be several characters in a row."""
    if escape[0] == "%":
        raw = bytes.fromhex(escape.replace("%", ""))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[1] == "u":
        units = bytes.fromhex(escape.replace("\\u", ""))
        return units.decode("utf-16-be", "surrogatepass")
    if escape[1] in "xU":
        return chr(int(escape[2:], 16)) if int(escape[2:], 16) <= sys.maxunicode else escape
    return _LETTERS.get(escape[1], escape[1])
