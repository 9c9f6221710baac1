"""Write the canonical text and JSON of AMQP values, for MAP<STRING,STRING> columns, ids and non-binary bodies.

========================  ===========================================  ============================
AMQP type                 canonical text                               inside JSON
========================  ===========================================  ============================
null                      none (the column is null)                    ``null``
boolean                   ``true``, ``false``                          the same
all integers              decimal digits                               number
timestamp                 milliseconds since the epoch, decimal        number
float, double             shortest text that reads back to the value,  number; ``"NaN"``,
                          ``NaN``, ``Infinity``, ``-Infinity``         ``"Infinity"``, ``"-Infinity"``
decimal32/64/128          decimal text such as ``1.50``, ``NaN``       string
char, string, symbol      itself                                       string
uuid                      8-4-4-4-12 lower-case hexadecimal            string
binary                    base64 (RFC 4648 §4, with padding)           string
list, array               JSON                                         array
map                       JSON                                         object; keys as canonical text, a null key as
                                                                       ``null``; of equal keys the last stays
described                 JSON                                         ``{"descriptor": …, "value": …}``
========================  ===========================================  ============================

JSON has no spaces, no escapes beyond those that JSON requires, and map entries in the order of the message.
"""

from __future__ import annotations

import base64
import json
import math
import uuid
from decimal import Decimal
from typing import Any, Final

import numpy as np

from spark_streams.wire.amqp.values import Array, Described, EncodedDecimal, Float, Pairs

_DECIMAL_SHAPES: Final = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6176, 34)}
"""Width in bytes to (bits of the exponent field, exponent bias, most digits); IEEE 754-2008 §3.6."""
_PIECE_BYTES: Final = 3 << 18
"""Bytes of one piece of base64; a multiple of three, so that only the last piece has padding."""


def canonical_text(value: object) -> str:
    """Return the text of any value but null, by the table above.

    Args:
        value: a result of ``decode_value``; null gives ``null``, so callers with map columns must not pass it.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, EncodedDecimal):
        return _decimal_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _base64(value).decode("ascii")
    if isinstance(value, uuid.UUID):
        return str(value)
    return canonical_json(value)


def canonical_bytes(value: object) -> bytes:
    """Return the canonical text as UTF-8."""
    if isinstance(value, (bytes, bytearray, memoryview)) and not isinstance(value, EncodedDecimal):
        return _base64(value)
    return canonical_text(value).encode()


def _base64(content: bytes | bytearray | memoryview) -> bytes:
    """Return base64, encoded piece by piece: Python holds its lock during each piece, and other threads wait."""
    pieces = [content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES)]
    return b"".join([base64.b64encode(piece) for piece in pieces])


def canonical_json(value: object) -> str:
    """Return any value as JSON, by the table above."""
    return json.dumps(_json_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json_value(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Float) and math.isfinite(value):
        return float(_float_text(value))  # as few digits as float32 needs
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, Pairs):
        return [_json_value(item) for item in value]
    if isinstance(value, Array):
        if value.descriptor is None:
            return [_json_value(item) for item in value.items]
        return [_json_value(Described(value.descriptor, item)) for item in value.items]
    if isinstance(value, (dict, Pairs)):
        pairs = value if isinstance(value, Pairs) else value.items()
        return {canonical_text(key): _json_value(item) for key, item in pairs}
    if isinstance(value, Described):
        return {"descriptor": _json_value(value.descriptor), "value": _json_value(value.value)}
    return canonical_text(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(np.float32(value)) if isinstance(value, Float) else repr(float(value))


def _decimal_text(raw: bytes) -> str:
    """Return a decimal's text. An exponent field of 11… moves the significand's top bits; 1111… is a special value."""
    exponent_bits, bias, digits = _DECIMAL_SHAPES[len(raw)]
    bits = len(raw) * 8
    word = int.from_bytes(raw, "big")
    sign = "-" if word >> (bits - 1) else ""
    if (word >> (bits - 5)) & 0xF == 0xF:
        return "NaN" if (word >> (bits - 6)) & 1 else f"{sign}Infinity"
    moved = (word >> (bits - 3)) & 0b11 == 0b11
    low_bits = bits - (3 if moved else 1) - exponent_bits
    exponent = (word >> low_bits) & ((1 << exponent_bits) - 1)
    significand = (0b100 << low_bits if moved else 0) | (word & ((1 << low_bits) - 1))
    if significand >= 10**digits:
        significand = 0  # IEEE 754: a significand too large for the format is non-canonical and reads as zero
    return str(Decimal(f"{sign}{significand}E{exponent - bias}"))
