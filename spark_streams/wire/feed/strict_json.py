"""Read JSON as RFC 8259 defines it, with Python's parser but without its leniencies and its surprises."""

from __future__ import annotations

import json
import re
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
_LITTLE_CHARACTERS: Final = 16 << 10
_JSON: Final = msgspec.json.Decoder(msgspec.Raw)
_HALF_OF_A_PAIR: Final = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


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


def check_json(text: str) -> None:
    """Check that a text is JSON, without making anything of it: a megabyte takes a millisecond.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
    """
    try:
        _JSON.decode(_HALF_OF_A_PAIR.sub(r"\\u0041", text))  # msgspec refuses halves of surrogate pairs
    except REFUSALS:
        if len(text) <= _LITTLE_CHARACTERS:
            load_exact(text)  # Python says better what is wrong, and takes a hundred times as long
        raise


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
