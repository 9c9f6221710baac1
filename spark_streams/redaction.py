"""Makes a peer's words fit for a message or a log line: on one line, cut, and without our secrets.

A peer may echo what it received: an error page with the request's headers, a reason with the user's name and password.
So a process remembers every secret when it sends it, and searches all words of peers for it, in these forms:

* as it is, percent-encoded, or escaped as in JSON and HTML; also with its bytes decoded as Latin-1;
* as base64, alone or within more, as in HTTP's basic authentication and SASL; the whole run of base64 is masked.

The length of a secret decides where it is found:

=================  =============================================================================================
its characters     it is found
=================  =============================================================================================
8 and more         anywhere, within words too, whatever their case; and its beginning, from 12 characters on, as
                   peers cut what they quote
4 to 7             as a word of its own, between blanks and signs: ``test`` is not found in ``latest``
1 to 3             in the form that was sent only: after ``Bearer``, in ``user:password``, in base64 of that
=================  =============================================================================================

A password that equals the user's name, such as guest's, is not hidden. A secret that a peer changes in another way,
for example reverses, is not found.
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
"""Characters of a peer's words that a message has."""
SEARCHED: Final = 16 << 10
"""Characters of a text that are searched; the rest of the text is dropped."""
REMEMBERED: Final = 1_000
"""Secrets that a process keeps, the last ones that it sent: rotated ones too, as a peer may answer late."""
ANYWHERE: Final = 8
ALONE: Final = 4
BEGINNING: Final = 12

UNSURE: Final = 6 * BEGINNING
"""Characters at the end of a cut text that may be a part of a secret too short to find; an escape has up to six."""

_MASK: Final = "***"
_IN_BASE64: Final = string.ascii_letters + string.digits + "+/=_-"
_BASE64: Final = re.compile(f"[{re.escape(_IN_BASE64)}]*")
_PERCENT: Final = r"(?:%[0-9a-fA-F]{2})+"
_BACKSLASH: Final = r"(?:\\u[0-9a-fA-F]{4})+|\\U00[01][0-9a-fA-F]{5}|\\x[0-9a-fA-F]{2}|\\[^uUx]"
_ENTITY: Final = r"&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});"
_ESCAPES: Final = tuple(
    re.compile(each) for each in (_PERCENT, _BACKSLASH, _ENTITY, f"{_PERCENT}|{_BACKSLASH}|{_ENTITY}")
)
"""Each kind of escape alone, as an escape of one kind may be part of the secret in another; and all kinds together."""
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0"}
_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class _Needle(NamedTuple):
    """A form of a secret.

    Args:
        text: the text to search for.
        alone: whether it counts only as a word of its own.
        base64: whether the run of base64 around it is masked too.
    """

    text: str
    alone: bool = False
    base64: bool = False


_sent: Final[OrderedDict[tuple[str, str | None], tuple[_Needle, ...]]] = OrderedDict()
"""The forms of each secret, with its user, that this process has sent; the last one sent is the last."""
_lock: Final = threading.Lock()


def remember(secret: str, username: str | None = None) -> None:
    """Remember a secret before it is sent; any thread may call this.

    Args:
        secret: a password, a token or a query; an empty one is ignored.
        username: the user of a password; None for a token or a query.
    """
    key = secret, username
    if not secret or secret == username:
        return
    with _lock:
        if key not in _sent:
            _sent[key] = tuple(dict.fromkeys(_forms(secret, username)))
            if len(_sent) > REMEMBERED:
                _sent.popitem(last=False)
        _sent.move_to_end(key)


def safe_text(text: str, most: int = MOST) -> str:
    """Return a peer's words as ``one_line`` of ``hidden``; see there for the arguments."""
    return one_line(hidden(text), most)


def one_line(text: str, most: int = MOST) -> str:
    r"""Return a text without characters that begin another line or control a terminal.

    Args:
        text: any text; a character that is not printable becomes ``\n``, ``\x1b``, ``\u2028`` and so on.
        most: about how many characters the result has; a longer text is cut and ends with ``…``.
    """
    if len(text) <= most and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: most + 1])
    return line if len(line) <= most else line[:most] + "…"


def quoted(value: object, most: int) -> str:
    """Return ``repr`` of a value that a peer sent, with secrets hidden, cut to ``most`` characters."""
    return one_line(hidden(repr(value)), most)


def hidden(text: str, *, cut: bool = False) -> str:
    """Return a text with ``***`` in place of our secrets.

    Args:
        text: a peer's words; only the first ``SEARCHED`` characters are kept.
        cut: whether the text was cut, so that its end may be the beginning of a secret: the last ``UNSURE`` characters
            are masked then.
    """
    with _lock:
        needles = [each for forms in _sent.values() for each in forms]
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
    """Yield the forms that a secret may have in a peer's words."""
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
    """Yield the base64 characters that a secret always gives, whatever precedes and follows it."""
    for before in range(3):
        packed = base64.b64encode(b"\0" * before + secret)
        first, last = -(-before * 4 // 3), (before + len(secret)) * 8 // 6
        text = packed[first:last].decode()
        if len(text) > ALONE:
            yield from {text, text.translate(str.maketrans("+/", "-_"))}


class _View:
    """A text without escapes, and the place of each of its characters in the text as the peer sent it.

    Args:
        text: the text with escapes resolved.
        spans: start and end of each character in the peer's text; None when ``text`` is the peer's text.
    """

    def __init__(self, text: str, spans: list[tuple[int, int]] | None = None) -> None:
        self._text, self._spans = text, spans
        self._lower = text.translate(_LOWER)

    def places(self, needle: _Needle) -> Iterator[tuple[int, int]]:
        """Yield where a form of a secret begins and ends in the text as the peer sent it."""
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
        """Return the start and end of the run of base64 around a place."""
        match = _BASE64.match(self._text, end)
        last = match.end() if match is not None else end
        return len(self._text[:at].rstrip(_IN_BASE64)), last


def _joins(text: str, left: int, right: int) -> bool:
    """Return whether two neighbouring characters are parts of one word."""
    return left >= 0 and right < len(text) and text[left].isalnum() and text[right].isalnum()


def _views(text: str) -> Iterator[_View]:
    yield _View(text)
    for escape in _ESCAPES:
        if escape.search(text):
            yield _unescaped(text, escape, "+")
    if "+" in text:
        yield _unescaped(text, _ESCAPES[0], " ")


def _unescaped(text: str, escape: re.Pattern[str], plus: str) -> _View:
    """Return a text with its escapes resolved and each plus sign replaced; in a query it means a blank."""
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
    """Return the characters that an escape stands for; it may be several escapes in a row."""
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
