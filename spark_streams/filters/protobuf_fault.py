"""Where bytes stop being a protobuf ``Expr``: the library says that they do, but not where.

::

    message = field*
    field   = key payload                                    key = number << 3 | wire type, a varint
    payload = varint                                         wire type 0
            | 8 bytes | 4 bytes                              wire types 1 and 5
            | length bytes                                   wire type 2; of fields 2 to 4 of Expr: a message

Groups, wire types 3 and 4, are in no message of ours.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_NESTING", "find_wire_fault"]

MAX_NESTING: Final = 100
"""Messages of type Expr within each other at most, the outermost counted; the limit of protobuf's own readers."""

_EXPR_FIELDS: Final = frozenset({3, 4})
_PREDICATE_FIELD: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MAX_VARINT: Final = 10
_MAX_FIELD: Final = 2**29 - 1


def find_wire_fault(encoded: bytes) -> str | None:
    """Return which byte cannot be, counted from 1, and why; None where all are fields of messages that nest as allowed.

    Takes time in proportion to the bytes, and no stack.
    """
    at = 0
    opened = [(len(encoded), True)]  # each message that is open: where it ends, and whether it is an Expr
    while opened:
        end, is_expr = opened[-1]
        if at == end:
            opened.pop()
            continue
        start = at
        key, at = _varint(encoded, at, end)
        field, wire_type = key >> 3, key & 7
        if key < 0 or not 1 <= field <= _MAX_FIELD:
            return f"byte {start + 1}: no number of a field"
        if wire_type not in (0, 2) and wire_type not in _FIXED:
            return f"byte {start + 1}: field {field} has wire type {wire_type}, which no field of Expr has"
        length = _FIXED.get(wire_type, 0)
        if wire_type not in _FIXED:
            value, at = _varint(encoded, at, end)
            if value < 0:
                return f"byte {start + 1}: field {field} is cut short, or its number too long"
            length = value if wire_type == 2 else 0
        if length > end - at:
            return f"byte {start + 1}: field {field} takes {length} bytes, but its message has {end - at} more"
        if wire_type == 2 and is_expr and field in _EXPR_FIELDS:
            opened.append((at + length, True))
            if len(opened) > MAX_NESTING:
                return f"byte {start + 1}: messages nest more than {MAX_NESTING} deep"
        elif wire_type == 2 and is_expr and field == _PREDICATE_FIELD:
            opened.append((at + length, False))
        else:
            at += length
    return None


def _varint(encoded: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and where the next byte is; -1 where there is none."""
    value = 0
    for position in range(at, min(end, at + _MAX_VARINT)):
        value |= (encoded[position] & 127) << 7 * (position - at)
        if encoded[position] < 128:
            return value, position + 1
    return -1, at
