"""Read JSON as RFC 8259 defines it, with Python's parser but without its leniences and its surprises."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Generator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.redaction import SEARCHED, hidden
from spark_streams.wire.columnar.byte_view import Mask, Positions

MAX_DEPTH: Final = 512
"""The deepest nesting of objects and arrays, the outermost counted: Python's own parser can read it within its default
recursion limit of 1000, with the frames below it; Jackson, behind Spark's JSON functions, allows 1000."""
SHOWN: Final = 100
"""The most characters of invalid input that an error quotes."""

REFUSALS: Final = (msgspec.MsgspecError, RecursionError)
"""What msgspec raises where a text is no JSON, or not what was expected: also for half of a surrogate pair."""
LITTLE_CHARACTERS: Final = 16 << 10
"""A longer text is checked in steps."""
_STEP_TOKENS: Final = 1_024
_VALUE: Final = '0"[{'
"""How a value begins; 0 stands for numbers and words."""
_TOKEN: Final = re.compile(
    r'[ \t\n\r]*(?:([][{},:"])|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)'
)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def depth_of(text: str) -> int:
    """Return the nesting depth of a JSON text, without recursion; any number for a text that is no JSON."""
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    # Both kinds of brackets are 0x7b and 0x7d once this bit is set.
    signs = np.frombuffer(outside.encode("utf-8", "replace"), np.uint8) | 0x20
    levels = np.cumsum((signs == 0x7B).view(np.int8) - (signs == 0x7D).view(np.int8), dtype=np.int32)
    return int(levels.max(initial=0))


def is_utf8(raw: NDArray[np.uint8]) -> bool:
    """Return whether bytes, at most 2**31 - 1, are UTF-8; msgspec does not check what it only skips."""
    buffers = [None, pa.py_buffer(np.array([0, raw.size], np.int32)), pa.py_buffer(raw)]
    try:
        pa.Array.from_buffers(pa.string(), 1, buffers).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def perhaps_deeper(raw: NDArray[np.uint8], starts: Positions, ends: Positions, depth: int) -> Mask:
    """Return which texts may be nested deeper than ``depth`` levels: they have more opening brackets.

    Args:
        raw: the bytes of all texts.
        starts: first byte of each text, inclusive.
        ends: byte after each text, exclusive.
        depth: the most levels.
    """
    deeper: Mask = ends - starts > 2 * depth
    for row in np.flatnonzero(deeper).tolist():
        text = raw[starts[row] : ends[row]].tobytes()
        deeper[row] = text.count(b"[") + text.count(b"{") > depth
    return deeper


def shown(body: bytes | memoryview) -> str:
    """Return the beginning of a peer's bytes, fit for an error message."""
    text = hidden(str(body[:SEARCHED], "utf-8", "replace"), cut=len(body) > SEARCHED)
    return ascii(text[:SHOWN]) + ("…" if len(text) > SHOWN else "")


def load_json(body: bytes, what: str) -> Any:
    """Read a document of JSON.

    Args:
        body: UTF-8; a byte order mark at its start is skipped (F-24).
        what: the name of the document in errors.

    Raises:
        RemoteProtocolError: the body is no JSON, or nested deeper than ``MAX_DEPTH``.
    """
    try:
        text = body.decode("utf-8-sig")
        if text.count("[") + text.count("{") > MAX_DEPTH and depth_of(text) > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{what}: expected JSON ({error}), got {shown(body)}") from None


class ExactNumber(str):
    """A number as its text, so that Python neither rounds its digits nor limits its size."""

    __slots__ = ()


def load_exact(text: str | bytes) -> Any:
    """Read JSON of any depth that Python's parser allows, every number as an ``ExactNumber``.

    Raises:
        ValueError: the text is no JSON.
        RecursionError: the text is nested too deeply.
    """
    return json.loads(text, parse_int=ExactNumber, parse_float=ExactNumber, parse_constant=refuse_constant)


def check_json(text: str) -> Generator[None, None, None]:
    """Check that a text is JSON, in steps of some milliseconds: ``load_exact`` takes all of a text at once.

    Nothing is made of it, so that a long text needs no more memory, and its nesting may be as deep as it likes.

    Raises:
        ValueError: it is none; as ``load_exact`` says it, or where a long text ends to be JSON.
        RecursionError: a short text is nested too deeply.
    """
    if len(text) <= LITTLE_CHARACTERS:
        load_exact(text)
        return
    closers: list[str] = []
    expected, at, end = _VALUE, 0, len(text.rstrip(" \t\n\r"))
    for count in itertools.count(1):
        found = _TOKEN.match(text, at, end)
        if found is None or (kind := found[1] or "0") not in expected:
            break
        at = found.end()
        if kind == '"':
            at = scanstring(text, at)[1]
        if kind in "[{":
            closers.append("]" if kind == "[" else "}")
            expected = _VALUE + "]" if kind == "[" else '"}'
        elif kind in ":,":
            expected = '"' if kind == "," and closers[-1] == "}" else _VALUE
        elif kind == '"' and "0" not in expected:
            expected = ":"
        else:
            if kind in "]}":
                closers.pop()
            expected = "," + closers[-1] if closers else ""
        if count % _STEP_TOKENS == 0:
            yield
    if expected or at < end:
        raise ValueError(f"it is none from character {at + 1} on")


def dump_exact(value: Any, *, ensure_ascii: bool = True) -> str:
    """Return a result of ``load_exact`` as JSON without spaces, numbers as they were written."""
    if isinstance(value, ExactNumber):
        return str(value)
    if isinstance(value, dict):
        names = (json.dumps(name, ensure_ascii=ensure_ascii) for name in value)
        members = (dump_exact(each, ensure_ascii=ensure_ascii) for each in value.values())
        return "{" + ",".join(f"{name}:{each}" for name, each in zip(names, members, strict=True)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dump_exact(each, ensure_ascii=ensure_ascii) for each in value) + "]"
    return json.dumps(value, ensure_ascii=ensure_ascii)
