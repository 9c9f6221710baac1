"""Makes a peer's words fit for a message or a log line: on one line, cut, and without our secrets.

A peer may echo what it received: an error page with the request's headers, a reason with the user's name and password.
So a process remembers every secret that it sends, and searches all words of peers for that secret in these forms:

* as it is, percent-encoded, or escaped as in JSON and by Python's ``repr``; also with its bytes decoded as Latin-1;
* with its user as base64, as in HTTP's basic authentication and SASL PLAIN.

The length of a secret decides where it is found:

=================  =============================================================================================
its characters     it is found
=================  =============================================================================================
8 and more         anywhere, within words too, in any case; so is its beginning of 12 characters or more, as peers
                   cut what they quote
4 to 7             as a word of its own, between blanks and signs: ``test`` is not found in ``latest``
1 to 3             only in the form that was sent: after ``Bearer``, in ``user:password``, in base64 of that
=================  =============================================================================================

A password that equals the user's name, such as guest's, is not hidden. A secret that a peer changes in another way is
not found, for example one that it reverses, or encodes together with more than the user's name.
"""

from __future__ import annotations

import base64
import codecs
import re
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST: Final = 1_000
"""The most characters of a peer's words in a message."""
SEARCHED: Final = 16 << 10
"""The most characters of a text that are searched; the rest of the text is dropped."""
REMEMBERED: Final = 1_000
"""How many secrets a process remembers, the last ones that it sent; rotated ones too, as a peer may answer late."""
ANYWHERE: Final = 8
ALONE: Final = 4
BEGINNING: Final = 12

UNSURE: Final = 6 * BEGINNING
"""Characters at the end of a cut text that may be a part of a secret too short to find; one escape has up to six."""

_MASK: Final = "***"
_HIDDEN: Final = "\uffff"
"""Stands for a hidden character; no text has it, as Unicode assigns no character to it."""
_PERCENT: Final = r"%[0-9a-fA-F]{2}"
_BACKSLASH: Final = r"(?:\\u[0-9a-fA-F]{4})+|\\U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[^uUx]"
_ESCAPES: Final = tuple(re.compile(f"({each})", re.DOTALL) for each in (_PERCENT, rf"{_PERCENT}|\+", _BACKSLASH))
"""The kinds of escapes, each resolved alone: what looks like an escape of one kind may be part of the secret itself."""
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class _Forms(NamedTuple):
    """The forms that a secret may have in a peer's words.

    Args:
        anywhere: texts that are found within words too, in lower case.
        alone: patterns of texts that count only as words of their own.
    """

    anywhere: tuple[str, ...]
    alone: tuple[re.Pattern[str], ...]


_sent: Final[dict[tuple[str, str | None], _Forms]] = {}
"""The forms of each secret that this process has sent, by secret and user; the last one sent is the last."""
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
        _sent[key] = _sent.pop(key) if key in _sent else _forms(secret, username)
        if len(_sent) > REMEMBERED:
            del _sent[next(iter(_sent))]


def safe_text(text: str, most: int = MOST) -> str:
    """Return a peer's words with secrets hidden, on one line; the arguments are those of ``one_line``."""
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
        cut: whether the text was cut, so that its end may be the beginning of a secret: then the last ``UNSURE``
            characters are masked.
    """
    with _lock:
        sent = list(_sent.values())
    if len(text) > SEARCHED:
        text, cut = text[:SEARCHED], True
    if not sent:
        return text
    found = list(_places(text, [(at, at + 1) for at in range(len(text))], sent))
    for escape in _ESCAPES:
        if escape.search(text):
            found += _places(*_unescaped(text, escape), sent)
    if cut:
        found.append((max(0, len(text) - UNSURE), len(text)))
    shown = list(text)
    for start, end in found:
        shown[start:end] = _HIDDEN * (end - start)
    return re.sub(f"{_HIDDEN}+", _MASK, "".join(shown))


def _forms(secret: str, username: str | None) -> _Forms:
    whole = [] if username is None else [f"{username}:{secret}", f"\0{username}\0{secret}"]
    anywhere = [base64.b64encode(each.encode("utf-8", "surrogatepass")).decode() for each in whole]
    texts = [secret, secret.encode("utf-8", "surrogatepass").decode("latin-1")]
    if len(secret) >= ANYWHERE:
        return _Forms(tuple({each.translate(_LOWER) for each in (*texts, *anywhere)}), ())
    if len(secret) < ALONE:
        texts = whole or [f"Bearer {secret}"]
    patterns = (rf"(?:(?<![^\W_])|(?=[\W_])){re.escape(each)}(?:(?![^\W_])|(?<=[\W_]))" for each in texts)
    return _Forms(tuple(each.translate(_LOWER) for each in anywhere), tuple(map(re.compile, patterns)))


def _places(text: str, spans: list[tuple[int, int]], sent: list[_Forms]) -> Iterator[tuple[int, int]]:
    """Yield where secrets begin and end in the text as the peer sent it.

    Args:
        text: the text as the peer sent it, or with its escapes resolved.
        spans: where each of its characters begins and ends in the peer's text.
        sent: the forms of the secrets.
    """
    lower = text.translate(_LOWER)
    for wanted in (each for forms in sent for each in forms.anywhere):
        at = lower.find(wanted[:BEGINNING])
        while at >= 0:
            end = at + len(wanted[:BEGINNING])
            while end < len(lower) and end - at < len(wanted) and lower[end] == wanted[end - at]:
                end += 1
            yield spans[at][0], spans[end - 1][1]
            at = lower.find(wanted[:BEGINNING], end)
    for match in (found for forms in sent for each in forms.alone for found in each.finditer(text)):
        yield spans[match.start()][0], spans[match.end() - 1][1]


def _unescaped(text: str, escape: re.Pattern[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text with its escapes resolved, and where each character of the result begins and ends in the text."""
    characters, spans, at = "", list[tuple[int, int]](), 0
    for number, part in enumerate(escape.split(text)):
        end = at + len(part)
        if number % 2:  # an escape
            meant = _meant(part)
            spans += [(at, end)] * len(meant)
        else:
            meant = part
            spans += ((each, each + 1) for each in range(at, end))
        characters += meant
        at = end
    return characters, spans


def _meant(escape: str) -> str:
    """Return the characters that an escape stands for; a byte is read as Latin-1, like one form of each secret."""
    if escape[0] == "%":
        return chr(int(escape[1:], 16))
    if escape[0] == "+":  # a blank in a query
        return " "
    if escape[1] in "uUx":
        units = codecs.decode(escape, "unicode_escape").encode("utf-16", "surrogatepass")
        return units.decode("utf-16", "surrogatepass")
    return _LETTERS.get(escape[1], escape[1])
