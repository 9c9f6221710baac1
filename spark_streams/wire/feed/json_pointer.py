"""Read a member of every event, named by a JSON pointer, as a column.

msgspec reads pointers to members of nested objects, as nearly all are. Where it cannot (an event that is no object, a
pointer into an array, half of a surrogate pair), Python reads the event, with the same result.

Spec: RFC 6901; options ``keyField`` and ``timestampField``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import RemoteProtocolError
from spark_streams.instants import read_iso
from spark_streams.wire.amqp.columns.single_message import Overflow, TimestampOverflow
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.feed.json_texts import NOTHING, NULL, OPEN, QUOTE, JsonTexts
from spark_streams.wire.feed.strict_json import REFUSALS, ExactNumber, dump_exact, is_utf8, load_exact

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MISSING: Final = object()
_LIST: Final = ord("[")
_NUMBERS: Final = frozenset(b"-0123456789")
"""The bytes with which a number can begin."""


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """Return the names in a pointer; none for the whole document.

    Raises:
        ValueError: it is no JSON pointer: not empty and without a leading ``/``, or a ``~`` is not before 0 or 1.
    """
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"'{pointer}' is no JSON pointer: expected one such as '/customer/id'")
    parts = pointer.split("/")[1:]
    for part in parts:
        if re.search("~(?![01])", part):
            raise ValueError(f"'{pointer}' is no JSON pointer: '~' stands before 0 (for '~') or 1 (for '/') only")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def pointer_of(name: str) -> str:
    """Return the JSON pointer to a member of the document."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def extract_text(values: pa.BinaryArray, pointer: str) -> pa.StringArray:
    """Return the value at a pointer in every event, as text.

    Args:
        values: the events; one that is no JSON has no value.
        pointer: a JSON pointer.

    Returns:
        A string's characters; for another value its JSON, as Python writes it without spaces (a number as it stands in
        the event); null if there is no value, or null.

    Raises:
        ValueError: ``pointer`` is no JSON pointer.
    """
    path = parse_pointer(pointer)
    found = _json_at(values, path)
    for row in np.flatnonzero((found.kinds == OPEN) | (found.kinds == _LIST)).tolist():
        found.known[row] = _text_at(values[row].as_py(), path)
    return found.taken(np.arange(len(values)), pa.string())


def extract_timestamp(values: pa.BinaryArray, pointer: str, *, overflow: Overflow = "fail") -> pa.TimestampArray:
    """Return the instant that a pointer names in every event.

    A number is milliseconds since the epoch, negative ones too; a text is ISO 8601, in UTC where it names no zone.
    What is finer than a microsecond is rounded down, towards the past.

    Args:
        values: the events; one that is no JSON has no value.
        pointer: a JSON pointer.
        overflow: what becomes of an instant that does not fit int64 microseconds.

    Returns:
        timestamp[us, UTC]; null if there is no value, or null.

    Raises:
        ValueError: ``pointer`` is no JSON pointer.
        RemoteProtocolError: the value is no number and no ISO 8601 text; the message shows it.
        TimestampOverflow: the instant does not fit, and ``overflow`` is ``fail``.
    """
    path = parse_pointer(pointer)
    at = _json_at(values, path)
    kinds = set(at.kinds.tolist()) - {0, NULL}
    if not at.known and (kinds <= {QUOTE} or kinds <= _NUMBERS):
        texts = at.taken(np.arange(len(values)), pa.string())
        with suppress(pa.ArrowInvalid):
            if kinds == {QUOTE}:
                return _iso(texts)
            return pc.multiply_checked(texts.cast(pa.int64()), 1000).cast(_TIMESTAMP)
    found = [_instant(_one(value, path), pointer, overflow) for value in values.to_pylist()]
    return pa.array(found, pa.int64()).cast(_TIMESTAMP)


def _unread(event: bytes) -> msgspec.Raw:
    raise msgspec.MsgspecError("Python reads it")


@lru_cache
def _reader(path: tuple[str, ...]) -> Callable[[bytes], msgspec.Raw]:
    """Return a function that reads the JSON at a path, which may be missing."""
    kind: Any = msgspec.Raw
    default: Any = NOTHING
    try:
        for name in reversed(path):
            kind = msgspec.defstruct("At", [("at", kind, default)], rename={"at": name}, frozen=True, gc=False)
            default = kind()
    except ValueError:
        return _unread
    decode = msgspec.json.Decoder(kind).decode
    if not path:
        return decode
    member = attrgetter(".".join(["at"] * len(path)))
    return lambda text: member(decode(text))


def _json_at(values: pa.BinaryArray, path: tuple[str, ...]) -> JsonTexts:
    """Return the JSON at a path in every event. Python reads the events that msgspec refuses."""
    events = values.to_pylist()
    read = _reader(path) if is_utf8(layout(values)[1]) else _unread
    texts = [NOTHING] * len(events)
    known: dict[int, bytes | None] = {}
    for row, event in enumerate(events):
        try:
            texts[row] = read(event)
        except (*REFUSALS, TypeError):
            known[row] = _text_at(event, path)
    found = JsonTexts.of(texts)
    found.known = known
    return found


def _text_at(event: bytes | None, path: tuple[str, ...]) -> bytes | None:
    text = _as_text(_one(event, path))
    return None if text is None else text.encode()


def _one(value: bytes | None, path: tuple[str, ...]) -> Any:
    """Return the value at a path in one event, numbers as text in ``ExactNumber``; ``_MISSING`` if there is none."""
    if value is None:
        return _MISSING
    try:
        found = load_exact(value)
    except (ValueError, RecursionError):
        return _MISSING
    for name in path:
        if isinstance(found, dict):
            found = found.get(name, _MISSING)
        elif isinstance(found, list) and name.isdecimal() and (name == "0" or name[0] != "0") and len(name) < 10:
            found = found[int(name)] if int(name) < len(found) else _MISSING
        else:
            return _MISSING
    return found


def _as_text(found: Any) -> str | None:
    if found is _MISSING or found is None:
        return None
    if isinstance(found, str):
        return str(found) if found.encode("utf-8", "replace").decode() == found else None
    return dump_exact(found)


def _iso(texts: pa.StringArray) -> pa.TimestampArray:
    """Return the instants of texts of one common form.

    Raises:
        pyarrow.ArrowInvalid: they have another one; Arrow requires that either all texts have a zone or none.
    """
    if not pc.all(pc.or_kleene(pc.ends_with(texts, "Z"), pc.is_null(texts))).as_py():
        raise pa.ArrowInvalid("a text without Z")
    return texts.cast(_TIMESTAMP)


def _instant(found: Any, pointer: str, overflow: Overflow) -> int | None:
    if found is _MISSING or found is None:
        return None
    try:
        if not isinstance(found, str):
            raise ValueError("neither a number nor a text")
        micros = _floored(found) if isinstance(found, ExactNumber) else _of_text(found)
    except ValueError:
        raise RemoteProtocolError(
            f"'{pointer}' of an event is {_as_text(found)!r:.60}: expected milliseconds since the epoch, or ISO 8601"
        ) from None
    if -(2**63) <= micros < 2**63:
        return int(micros)
    if overflow == "null":
        return None
    raise TimestampOverflow(f"'{pointer}' of an event: {found!s:.60} does not fit a timestamp in microseconds")


def _of_text(text: str) -> int:
    seconds, fraction = read_iso(text.strip())
    return seconds * 1_000_000 + int(f"{fraction:0<6.6}")


def _floored(number: str) -> Decimal:
    """Return milliseconds as whole microseconds, exactly; a number beyond any instant remains beyond any instant."""
    mantissa, _, exponent = number.lower().partition("e")
    # More digits of an exponent decide nothing, and Decimal does not read them.
    exact = Decimal(f"{mantissa}e{exponent[:1].strip('+0123456789')}{exponent.lstrip('+-0')[:17] or 0}")
    if exact.copy_abs() >= 2**63:
        return exact
    context = Context(prec=len(number) + 4, rounding=ROUND_FLOOR)
    return context.to_integral_value(context.scaleb(exact, 3))
