"""Read a member of every event, named by a JSON pointer, as a column.

Arrow's JSON reader reads pointers to members of nested objects, as nearly all are, for all events at once. Where it
cannot (an event that is no object, a value of another type, a pointer into an array), Python reads the events one by
one, with the same result.

Spec: RFC 6901; options ``keyField`` and ``timestampField``.
"""

from __future__ import annotations

import json
import re
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_streams.errors import RemoteProtocolError
from spark_streams.instants import read_iso
from spark_streams.wire.amqp.columns.single_message import Overflow, TimestampOverflow
from spark_streams.wire.columnar.arrays import binaries, layout, strings
from spark_streams.wire.feed.json_check import is_utf8, read_objects
from spark_streams.wire.feed.strict_json import ExactNumber, dump_exact, load_exact

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MISSING: Final = object()


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
    column = _read(values, path, pa.string())
    if column is None:
        numbers = _read(values, path, pa.int64())
        # Minus zero is the only integer that would not be written as it stands in the event.
        if numbers is not None and not (pc.any(pc.equal(numbers, 0)).as_py() and _holds_minus_zero(values)):
            column = numbers.cast(pa.string())
    if column is None and (booleans := _read(values, path, pa.bool_())) is not None:
        column = booleans.cast(pa.string())
    if column is None:
        column = _read_numbers(values, path)
    if column is None:
        texts = (_as_text(_one(value, path)) for value in values.to_pylist())
        column = strings(list(texts))
    return column


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
    numbers = _read(values, path, pa.int64())
    if numbers is not None:
        # Beyond these limits, multiplication would overflow.
        least, most = (pc.min_max(numbers)[name].as_py() or 0 for name in ("min", "max"))
        if abs(least) < 2**63 // 1000 and abs(most) < 2**63 // 1000:
            return pc.multiply(numbers, 1000).cast(_TIMESTAMP)
    else:
        texts = _read(values, path, pa.string())
        instants = None if texts is None else _iso(texts)
        if instants is not None:
            return instants
    found = [_instant(_one(value, path), pointer, overflow) for value in values.to_pylist()]
    return pa.array(found, pa.int64()).cast(_TIMESTAMP)


def _read(values: pa.BinaryArray, path: tuple[str, ...], kind: pa.DataType) -> pa.Array | None:
    """Return a member of every event, read by Arrow; None if Arrow cannot, or a name may be an array's index."""
    if not path or not len(values) or any(name.isdecimal() for name in path):
        return None
    if values.null_count:
        values = values.fill_null(binaries([b"{}"])[0])
    bounds, raw = layout(values)
    starts, ends = bounds[:-1], bounds[1:]
    if (starts == ends).any() or not ((raw[starts] == 0x7B) & (raw[ends - 1] == 0x7D)).all():
        return None
    if not is_utf8(raw) or not raw.min() or (raw == 0x0A).any():
        return None
    for name in reversed(path):
        kind = pa.struct([(name, kind)])
    options = pa.json.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")
    try:
        table = read_objects(pa.py_buffer(raw), options)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(values):
        return None
    column = table.column(0).combine_chunks()
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _read_numbers(values: pa.BinaryArray, path: tuple[str, ...]) -> pa.StringArray | None:
    """Return numbers of any kind as they stand in the events; None where one does not show where it stands.

    Arrow tells which events have a number there. It stands after the member's name, if the event has that once only.
    """
    numbers = _read(values, path, pa.float64())
    name = json.dumps(path[-1], ensure_ascii=False).encode() if numbers is not None else b""
    if numbers is None or b"\\" in name or (layout(values)[1] == ord("\\")).any():
        return None
    there = numbers.is_valid()
    once = pc.equal(pc.count_substring(values, name), 1)
    found = pc.extract_regex(values, re.escape(name) + rb"[ \t\r]*:[ \t\r]*(?P<number>-?[0-9][-+.0-9eE]*)")
    texts = pc.struct_field(found, "number").cast(pa.string())
    if pc.any(pc.and_(there, pc.or_(pc.invert(once), texts.is_null()))).as_py():
        return None
    return pc.if_else(there, texts, pa.nulls(len(texts), pa.string()))


def _holds_minus_zero(values: pa.BinaryArray) -> bool:
    """Return whether ``-0`` is anywhere in the values."""
    _, raw = layout(values)
    return bool(((raw[:-1] == 0x2D) & (raw[1:] == 0x30)).any())


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


def _iso(texts: pa.StringArray) -> pa.TimestampArray | None:
    """Return the instants of texts of one common form; None where they have another."""
    zulu = pc.all(pc.or_kleene(pc.ends_with(texts, "Z"), pc.is_null(texts))).as_py()
    try:
        # Arrow requires that either all texts have a zone or none.
        return texts.cast(_TIMESTAMP) if zulu else None
    except pa.ArrowInvalid:
        return None


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
    """Return milliseconds as whole microseconds, exactly; a number beyond any instant as another one beyond it."""
    mantissa, _, exponent = number.lower().partition("e")
    # More digits of an exponent decide nothing, and Decimal does not read them.
    exact = Decimal(f"{mantissa}e{exponent[:1].strip('+0123456789')}{exponent.lstrip('+-0')[:17] or 0}")
    if exact.copy_abs() >= 2**63:
        return exact
    context = Context(prec=len(number) + 4, rounding=ROUND_FLOOR)
    return context.to_integral_value(context.scaleb(exact, 3))
