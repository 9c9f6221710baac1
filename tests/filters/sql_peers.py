"""What peers make of SQL filters: RabbitMQ's grammar, and the semantics of three kinds of peer, in plain Python.

The grammar is that of rabbit_amqp_sql_lexer.xrl and rabbit_amqp_sql_parser.yrl (RabbitMQ 4.3), without arithmetic, and
with the delivery annotations of event streams besides; its limits are RabbitMQ's. The semantics are

- ``RABBITMQ``: rabbit_amqp_filter_sql.erl, on the terms that amqp10_binary_parser.erl and mc_amqp.erl make of values;
- ``DRAFT``: AMQP Filter Expressions 1.0 wd10 §6.4 to the letter: two-valued; "lesser" is neither equal nor greater,
  also for values of two types; an integer constant is of the smallest type, and compares within its range;
- ``MILD``: the draft as three-valued logic, in which values of two types are never in any order.
"""

from __future__ import annotations

import enum
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from spark_streams.wire.amqp.canonical_text import canonical_text
from spark_streams.wire.amqp.values import Char, EncodedDecimal, Float, Symbol, Timestamp

MAX_CHARACTERS = 4096
MAX_TOKENS = 200
KEYWORDS = {
    *("and", "or", "not", "like", "in", "is", "null", "escape", "true", "false", "exists", "nan", "inf"),
    *("lower", "upper", "left", "right", "substring", "utc", "date"),
}
FIELDS = {
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding"),
    *("absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id"),
}

Get = Callable[[str, str], Any]
"""Section (p, a or d) and name to the AMQP value; None for null."""


class Peer(enum.Enum):
    """Whose semantics."""

    RABBITMQ = "RabbitMQ"
    DRAFT = "draft"
    MILD = "mild draft"


class Refused(Exception):
    """The peer does not take the text: it would refuse the link."""


TOKEN = re.compile(
    r"""(?P<blank>[ \t\f\n\r]+)
    | (?P<string>'(?:[^']|'')*')
    | (?P<binary>0x(?:[0-9A-F]{2})+)
    | (?P<float>[0-9]+\.[0-9]+(?:E[+-]?[0-9]+)?)
    | (?P<integer>[0-9]+)
    | (?P<annotation>d\.[a-z-]+)
    | (?P<section>[a-zA-Z][a-zA-Z_-]*\.[a-zA-Z][a-zA-Z0-9_]*)
    | (?P<delimited>\[(?:[^\[\]]|\[\[|\]\])*\])
    | (?P<word>[a-zA-Z][a-zA-Z0-9_]*)
    | (?P<sign><>|!=|>=|<=|=|>|<|\(|\)|,|-|\+)""",
    re.VERBOSE,
)


def tokens_of(text: str) -> list[tuple[str, Any]]:
    """Return kind and value of each token, as the lexer of RabbitMQ has them."""
    if len(text) > MAX_CHARACTERS:
        raise Refused(f"{len(text)} characters")
    text.encode()
    found: list[tuple[str, Any]] = []
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise Refused(f"illegal character at {at}: {text[at:]!r}")
        at = match.end()
        if match.lastgroup != "blank":
            found.append(token(str(match.lastgroup), match[0]))
    if len(found) > MAX_TOKENS:
        raise Refused(f"{len(found)} tokens")
    return found


def token(kind: str, text: str) -> tuple[str, Any]:
    """Return one token."""
    if kind == "string":
        return "constant", text[1:-1].replace("''", "'")
    if kind == "binary":
        return "constant", bytes.fromhex(text[2:])
    if kind == "integer":
        return "constant", int(text)
    if kind == "float":
        return "constant", Constant(text)
    if kind == "annotation":
        return "field", ("d", text[2:])
    if kind == "section":
        section, name = text.split(".")
        if section not in ("p", "a") or (section == "p" and name not in FIELDS):
            raise Refused(f"unsupported field {text}")
        return "field", (section, name)
    if kind == "delimited":
        if any(ord(c) < 32 or ord(c) == 127 for c in text):
            raise Refused("control character in an identifier")
        return "field", ("a", text[1:-1].replace("[[", "[").replace("]]", "]"))
    if kind == "word":
        if text in ("TRUE", "FALSE"):
            return "constant", text == "TRUE"
        if text in ("AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL"):
            return text, None
        if text.lower() in KEYWORDS:
            raise Refused(f"unsupported identifier {text}")
        return "field", ("a", text)
    return ("<>" if text == "!=" else text), None


class Constant(Decimal):
    """A decimal constant: a double for RabbitMQ, a decimal for the draft."""


class Parsed:
    """A filter, as a tree of tuples."""

    def __init__(self, text: str, *, flat: bool = False) -> None:
        self.tokens = [*tokens_of(text), ("end", None)]
        self.at = 0
        self.flat = flat
        self.tree = self._or()
        if self._kind() != "end":
            raise Refused(f"unexpected {self._kind()} in {text!r}")

    def _kind(self) -> str:
        return self.tokens[self.at][0]

    def _take(self, kind: str) -> bool:
        found = self._kind() == kind
        self.at += found
        return found

    def _need(self, kind: str) -> Any:
        if self._kind() != kind:
            raise Refused(f"expected {kind}, not {self._kind()}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _or(self) -> tuple[Any, ...]:
        parts = [self._and()]
        while self._take("OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else ("or", parts)

    def _and(self) -> tuple[Any, ...]:
        parts = [self._test()]
        while self._take("AND"):
            parts.append(self._test())
        return parts[0] if len(parts) == 1 else ("and", parts)

    def _test(self) -> tuple[Any, ...]:
        if self._kind() == "(":
            if self.flat:
                raise Refused("parentheses are not part of event stream filters")
            self.at += 1
            found = self._or()
            self._need(")")
            return found
        if self._kind() == "constant":
            return ("constant", self._need("constant"))
        field = self._need("field")
        kind = self._kind()
        if kind in ("=", "<>", ">", ">=", "<", "<="):
            self.at += 1
            return ("compare", kind, field, self._constant())
        if self.flat:
            raise Refused(f"{kind} is not part of event stream filters")
        if self._take("IS"):
            negated = self._take("NOT")
            self._need("NULL")
            return ("null", field, negated)
        negated = self._take("NOT")
        if self._take("LIKE"):
            return ("like", field, self._need("constant"), negated)
        self._need("IN")
        self._need("(")
        values = [self._constant()]
        while self._take(","):
            values.append(self._constant())
        self._need(")")
        return ("in", field, values, negated)

    def _constant(self) -> Any:
        if self._take("-"):
            if self.flat:
                raise Refused("no negative integers in event stream filters")
            number = self._need("constant")
            assert isinstance(number, (int, Decimal)) and not isinstance(number, bool)
            return Constant(-number) if isinstance(number, Decimal) else -number
        return self._need("constant")


def passes(peer: Peer, parsed: Parsed, get: Get) -> bool:
    """Say whether a peer delivers a message."""
    return truth(peer, parsed.tree, get) is True


def truth(peer: Peer, node: tuple[Any, ...], get: Get) -> bool | None:
    """Return what a filter is: true, false or, of peers that know it, unknown."""
    kind = node[0]
    if kind == "constant":
        assert isinstance(node[1], bool)
        return node[1]
    if kind in ("and", "or"):
        answers = [truth(peer, part, get) for part in node[1]]
        decisive = kind == "or"
        return decisive if decisive in answers else None if None in answers else not decisive
    field = node[2] if kind == "compare" else node[1]
    semantics = SEMANTICS[peer]
    value = semantics.value(get(*field))
    if kind == "null":
        return (value is None) is not node[2]
    if value is None and peer is not Peer.DRAFT:
        return None
    if kind == "compare":
        return semantics.compare(node[1], value, semantics.constant(node[3]))
    if kind == "in":
        found = any(semantics.compare("=", value, semantics.constant(each)) for each in node[2])
        return found is not node[3]
    liked = semantics.like(value, node[2])
    return None if liked is None else liked is not node[3]


class Rabbit:
    """Erlang terms: integers and floats are numbers, strings, symbols, binary and uuid are binaries."""

    def value(self, amqp: Any) -> Any:
        """Return what mc:routing_headers or mc:property has; None where it has nothing."""
        if amqp is None or isinstance(amqp, bool):
            return amqp
        if isinstance(amqp, Char):
            return ord(amqp)
        if isinstance(amqp, str):
            return amqp.encode()
        if isinstance(amqp, uuid.UUID):
            return amqp.bytes
        if isinstance(amqp, EncodedDecimal):
            return None  # {as_is, Code, Bin}
        if isinstance(amqp, bytes):
            return amqp
        if isinstance(amqp, int):
            return int(amqp)
        if isinstance(amqp, float):
            number = float32(amqp) if isinstance(amqp, Float) else float(amqp)
            return number if number - number == 0 else None  # NaN and infinity are {as_is, Code, Bin} too
        return None  # lists, maps: no simple values

    def constant(self, value: Any) -> Any:
        """Return a constant's term."""
        if isinstance(value, str):
            return value.encode()
        return float(value) if isinstance(value, Constant) else value

    def compare(self, sign: str, left: Any, right: Any) -> bool:
        """Return what compare/3 does."""
        assert left is not None
        same = (is_number(left) and is_number(right)) or type(left) is type(right)
        if sign in ("=", "<>"):
            return (same and left == right) is (sign == "=")
        if not same or isinstance(left, bool):
            return False
        return {">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[sign]

    def like(self, value: Any, pattern: str) -> bool | None:
        """Return what like/2 does; patterns that become regular expressions are not modelled."""
        assert "_" not in pattern and pattern.count("%") <= 1, pattern
        if any(ord(c) < 32 or ord(c) == 127 for c in pattern):
            raise Refused("control character in a pattern")
        if not isinstance(value, bytes):
            return None
        head, wild, tail = pattern.partition("%")
        first, last = head.encode(), tail.encode()
        if not wild:
            return value == first
        return len(value) >= len(first) + len(last) and value.startswith(first) and value.endswith(last)


RANGES = [(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)]


class Draft:
    """Types as §6.4.2.3 compares them: (class, value, range of its type)."""

    letter = True

    def value(self, amqp: Any) -> Any:
        """Return class, comparable value, and the range of an integer's type."""
        if amqp is None:
            return None
        if isinstance(amqp, bool):
            return "boolean", amqp, None
        if isinstance(amqp, Char):
            return "char", str(amqp), None
        if isinstance(amqp, str):
            return "text", str(amqp), None
        if isinstance(amqp, uuid.UUID):
            return "uuid", amqp.bytes, None
        if isinstance(amqp, EncodedDecimal):
            return number_of(canonical_text(amqp))
        if isinstance(amqp, bytes):
            return "binary", amqp, None
        if isinstance(amqp, Timestamp):
            return "number", Fraction(int(amqp)), "timestamp"
        if isinstance(amqp, int):
            low, high = getattr(amqp, "low", -(2**63)), getattr(amqp, "high", 2**63 - 1)
            return "number", Fraction(int(amqp)), (low, high)
        if isinstance(amqp, float):
            return number_of(repr(float32(amqp) if isinstance(amqp, Float) else float(amqp)))
        return "other", canonical_text(amqp), None

    def constant(self, value: Any) -> Any:
        """Return a constant of the smallest type that it fits."""
        if isinstance(value, Constant):
            return "number", Fraction(value), None
        if isinstance(value, int) and not isinstance(value, bool):
            fitting = [(low, high) for low, high in RANGES if low <= value <= high]
            return "number", Fraction(value), fitting[0] if fitting else (0, 2**64 - 1)
        return self.value(value)

    def compare(self, sign: str, left: Any, right: Any) -> bool | None:
        """Return what the draft says; NULL is neither equal to, greater nor lesser than anything."""
        if left is None:
            return sign == "<>"
        equal = self._comparable(left, right) and left[1] == right[1]
        greater = self._comparable(left, right) and left[1] > right[1]
        nan = "nan" in (left[0], right[0])
        lesser = not equal and not greater and not nan and (self.letter or left[0] == right[0])
        return {"=": equal, "<>": not equal, ">": greater, ">=": greater or equal}.get(
            sign, lesser or (sign == "<=" and equal)
        )

    def _comparable(self, left: Any, right: Any) -> bool:
        if left[0] != right[0] or left[0] == "nan":
            return False
        ranges = [each[2] for each in (left, right)]
        if left[0] == "number" and self.letter and all(isinstance(each, tuple) for each in ranges):
            return all(low <= number[1] <= high for low, high in ranges for number in (left, right))
        return True

    def like(self, value: Any, pattern: str) -> bool | None:
        """Return whether a text is like a pattern."""
        if value is None or value[0] != "text":
            return False
        inner = "".join({"%": ".*", "_": "."}.get(c) or re.escape(c) for c in pattern)
        return re.fullmatch(inner, value[1], re.DOTALL) is not None


class Mild(Draft):
    """The draft, as most would read it."""

    letter = False


SEMANTICS: Mapping[Peer, Any] = {Peer.RABBITMQ: Rabbit(), Peer.DRAFT: Draft(), Peer.MILD: Mild()}


def number_of(text: str) -> tuple[str, Fraction | None, None]:
    """Return a float or decimal from its text."""
    try:
        return "number", Fraction(Decimal(text)), None
    except (ValueError, OverflowError):
        return "nan", None, None


def float32(value: float) -> float:
    """Return the number that is encoded."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def is_number(term: Any) -> bool:
    """Say whether a term is a number in Erlang."""
    return isinstance(term, (int, float)) and not isinstance(term, bool)


__all__ = ["MAX_TOKENS", "Parsed", "Peer", "Refused", "Symbol", "passes", "tokens_of"]
