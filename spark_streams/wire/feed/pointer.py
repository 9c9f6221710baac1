"""JSON pointers (RFC 6901) over a column of events."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Final, Literal

import pyarrow as pa

from spark_streams.errors import RemoteProtocolError

__all__ = ["extract_text", "extract_timestamp", "pointer_tokens"]

_MISSING: Final = object()
_MAX_US: Final = 2**63 - 1


def pointer_tokens(pointer: str) -> tuple[str, ...]:
    """Return the reference tokens of a pointer (RFC 6901 section 4)."""
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


def extract_text(values: pa.BinaryArray, pointer: str) -> pa.StringArray:
    """Return what a pointer finds in each event: a string as it is, anything else as its JSON text.

    Returns:
        Null where the event is no JSON document, has nothing there, or null.
    """
    tokens = pointer_tokens(pointer)
    return pa.array([_text(_found(value, tokens)) for value in values.to_pylist()], pa.string())


def extract_timestamp(
    values: pa.BinaryArray, pointer: str, *, overflow: Literal["fail", "null"] = "fail"
) -> pa.TimestampArray:
    """Return the instant that a pointer finds in each event: milliseconds since the epoch, or an ISO 8601 string.

    Args:
        values: the events.
        pointer: where.
        overflow: what becomes of an instant beyond int64 microseconds: ``fail`` or ``null``.

    Returns:
        timestamp[us, UTC], null where the event has nothing there, or null.

    Raises:
        RemoteProtocolError: something else is there.
    """
    tokens = pointer_tokens(pointer)
    micros = [_micros(_found(value, tokens), pointer, overflow) for value in values.to_pylist()]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _found(value: bytes, tokens: tuple[str, ...]) -> Any:
    try:
        found: Any = json.loads(value)
    except ValueError:
        return _MISSING
    for token in tokens:
        if isinstance(found, dict) and token in found:
            found = found[token]
        elif isinstance(found, list) and re.fullmatch(r"0|[1-9][0-9]*", token) and int(token) < len(found):
            found = found[int(token)]
        else:
            return _MISSING
    return found


def _text(found: Any) -> str | None:
    if found is _MISSING or found is None:
        return None
    if isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _micros(found: Any, pointer: str, overflow: str) -> int | None:
    if found is _MISSING or found is None:
        return None
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        micros = found * 1_000 if isinstance(found, int) else round(found * 1_000)
    elif isinstance(found, str):
        try:
            instant = datetime.fromisoformat(found.strip().replace("Z", "+00:00"))
        except ValueError:
            raise RemoteProtocolError(f"'{found[:100]}' at {pointer} of an event is no instant") from None
        delta = instant.replace(tzinfo=instant.tzinfo or timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
        micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    else:
        raise RemoteProtocolError(f"{json.dumps(found)[:100]} at {pointer} of an event is no instant")
    if abs(micros) > _MAX_US:
        if overflow == "null":
            return None
        raise RemoteProtocolError(f"{found} at {pointer} of an event does not fit a timestamp")
    return micros
