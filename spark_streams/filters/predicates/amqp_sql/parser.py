"""The parser of full SQL filters: it reads a text into a condition.

::

    any        = all (OR all)*
    all        = factor (AND factor)*
    factor     = NOT factor | "(" any ")" | TRUE | FALSE | test
    test       = operand comparison operand       one side is a field or both are constants
               | field IS [NOT] NULL | field [NOT] IN "(" constant ("," constant)* ")"
               | field [NOT] LIKE text [ESCAPE text]
    comparison = "=" | "<>" | "!=" | ">" | ">=" | "<" | "<="
    constant   = text | [+|-] number | TRUE | FALSE | binary

The parser refuses the rest of FILTEX, at its place: functions, arithmetic, EXISTS, NULL, INF, NAN, fields against
fields, fields alone, parts of fields, the footer. Binary constants compare by their bytes, as texts do. Sections that
consumers of this log never see are constants: the header has its defaults, unknown delivery annotations are null.

Spec: AMQP Filter Expressions 1.0 §6; precedence NOT, AND, OR as in RabbitMQ (X-9).
"""

from __future__ import annotations

from typing import Final, NoReturn

import pyarrow.compute as pc

from spark_streams.filters.decimals import MAX_INT64, MIN_INT64
from spark_streams.filters.limits import MAX_DEPTH
from spark_streams.filters.predicates import conditions as p
from spark_streams.filters.predicates.amqp_sql.scanner import AmqpSqlScanner
from spark_streams.filters.predicates.typed_values import Constant, MessageTest
from spark_streams.filters.text_matching import WILDCARDS, LikePattern, like_pattern
from spark_streams.filters.tree import COMPARISONS, OPPOSITES, Operator
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS
from spark_streams.wire.amqp.columns.typed import FieldOfMessage
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS, HEADER, PROPERTIES

MAX_CHARACTERS: Final = 16_384
"""The most characters of a filter: every event evaluates it, so it needs a bound. RabbitMQ takes 4096."""
MAX_TESTS: Final = 200
"""The most tests of a filter: every event evaluates each. RabbitMQ takes 200 tokens."""
MAX_CONSTANTS: Final = 1_000
MAX_PATTERN: Final = 1_000
"""The most characters of a pattern with ``_``, or with ``%`` inside, because RE2's programs are limited in size."""

_SIGNS: Final = frozenset("'\"[]().,=<>!_")
"""The characters besides letters and digits that words and signs of the language begin with."""
_PROPERTIES: Final = frozenset(name for name, _ in PROPERTY_FIELDS)
_HEADER: Final[dict[str, Constant | None]] = {
    "durable": Constant("boolean", False),
    "priority": Constant("number", 4),
    "ttl": None,
    "first_acquirer": Constant("boolean", False),
    "delivery_count": Constant("number", 0),
}
"""The log stores and sends no header, so its fields have their defaults (part 3 §3.2.1)."""


def parse_amqp_sql(text: str) -> p.Condition:
    """Read the text of an ``amqp:sql-filter``.

    Args:
        text: the filter.

    Returns:
        The predicate; call ``freeze`` on it before use.

    Raises:
        FilterError: the text is no filter; the error has the 1-based column of the first wrong character.

    Spec: FILTEX §6.
    """
    return _Parser(text).predicate()


class _Parser(AmqpSqlScanner):
    """One pass over a filter; ``wanted`` is False under an odd number of NOTs."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.tests = self.constants = 0

    def predicate(self) -> p.Condition:
        if len(self.text) > MAX_CHARACTERS:
            reason = f"the filter has {len(self.text)} characters: expected at most {MAX_CHARACTERS}"
            self.fail(reason, MAX_CHARACTERS)
        self.skip_blanks()
        if not self.next():
            self.fail("the filter is empty: write TRUE for all events")
        found = self._any(True)
        if self.next():
            self._fail_outside("expected AND, OR or the end of the filter")
        return found

    def _any(self, wanted: bool) -> p.Condition:
        parts = self.joined("OR", lambda: self._all(wanted))
        return p.disjunction(parts) if wanted else p.conjunction(parts)

    def _all(self, wanted: bool) -> p.Condition:
        parts = self.joined("AND", lambda: self._factor(wanted))
        return p.conjunction(parts) if wanted else p.disjunction(parts)

    def _factor(self, wanted: bool) -> p.Condition:
        start = self.at
        negated = self.keyword("NOT")
        if not negated and not self.sign("("):
            return self._test(wanted)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels", start)
        if negated:
            found = self._factor(not wanted)
        else:
            found = self._any(wanted)
            if not self.sign(")"):
                self._fail_outside("expected AND, OR or )")
        self.depth -= 1
        return found

    def _test(self, wanted: bool) -> p.Condition:
        self.tests += 1
        if self.tests > MAX_TESTS:
            self.fail(f"more than {MAX_TESTS} tests in one filter")
        start = self.at
        left = self._operand()
        op = self.comparison()
        if op is not None:
            return self._comparison(left, op, wanted)
        if isinstance(left, Constant):
            if left.kind == "boolean":
                return p.Always(left.value is wanted)
            self._fail_outside("expected one of = <> != > >= < <=")
        if self.keyword("IS"):
            wanted = wanted is not self.keyword("NOT")
            if not self.keyword("NULL"):
                self.fail("expected NULL")
            return _is_null(left, wanted)
        wanted = wanted is not self.keyword("NOT")
        if self.keyword("IN"):
            return _in(left, self._list(), wanted)
        if self.keyword("LIKE"):
            pattern = self._pattern()
            if left.section == DELIVERY_ANNOTATIONS:
                self.fail("LIKE is not supported on delivery annotations", start)
            # The header has no texts: unknown.
            return p.Always(False) if left.section == HEADER else MessageTest(left, Operator.LIKE, pattern, wanted)
        self._fail_outside("expected one of = <> != > >= < <=, IS, IN or LIKE")

    # --- operands

    def _operand(self) -> Constant | FieldOfMessage:
        start = self.at
        field = self.field()
        if field is None:
            return self._constant()
        if field.section not in (PROPERTIES, HEADER):
            return field
        name = field.name.replace("-", "_")
        if field.section == PROPERTIES and name not in _PROPERTIES:
            self.fail(f"properties have no field '{field.name}'", start)
        if field.section == HEADER and name not in _HEADER:
            self.fail(f"the header has no field '{field.name}'", start)
        return FieldOfMessage(field.section, name)

    def _constant(self) -> Constant:
        found = self.constant()
        if found is None:
            self._fail_outside("expected a field, 'text', a number, TRUE or FALSE")
        return found

    def _list(self) -> tuple[Constant, ...]:
        if not self.sign("("):
            self.fail("expected (")
        found = [self._constant()]
        while self.sign(","):
            found.append(self._constant())
        if not self.sign(")"):
            self._fail_outside("expected , or )")
        self.constants += len(found)
        if self.constants > MAX_CONSTANTS:
            self.fail(f"more than {MAX_CONSTANTS} constants in the lists of one filter")
        return tuple(dict.fromkeys(found))

    def _pattern(self) -> LikePattern:
        start = self.at
        pattern = self.literal()
        if pattern is None:
            self.fail("expected the pattern, a 'text'")
        escape = None
        if self.keyword("ESCAPE"):
            place = self.at
            escape = self.literal()
            if escape is None or len(escape) != 1:
                self.fail("expected a 'text' of one character", place)
        parts = _parts_of(pattern, escape)
        if parts is None:
            self.fail("the pattern ends with its escape character", start)
        found = like_pattern(parts)
        if found.test is pc.match_substring_regex and len(pattern) > MAX_PATTERN:
            self.fail(f"the pattern has {len(pattern)} characters: expected at most {MAX_PATTERN}", start)
        return found

    # --- tests

    def _comparison(self, left: Constant | FieldOfMessage, op: Operator, wanted: bool) -> p.Condition:
        start = self.at
        right = self._operand()
        if isinstance(left, Constant):
            if isinstance(right, Constant):
                return p.Always(_holds(left, op, right) is wanted)
            return _compare(right, COMPARISONS[op].mirrored, left, wanted)
        if not isinstance(right, Constant):
            self.fail("a field can be compared with a constant only", start)
        return _compare(left, op, right, wanted)

    def _fail_outside(self, expected: str) -> NoReturn:
        """Raise a FilterError at the next word; the reason names the FILTEX construct that begins there, if known."""
        keyword, sign = self.next_keyword(), self.next()
        if sign and sign in "+-*/%":
            self.fail("arithmetic is not supported; write [a-b] for such a name")
        if keyword in ("BETWEEN", "EXISTS", "NAN", "INF"):
            instead = ": write >= and <=" if keyword == "BETWEEN" else ""
            self.fail(f"{keyword} is not supported{instead}")
        if keyword == "NULL":
            self.fail("nothing compares with NULL: write IS NULL or IS NOT NULL")
        if sign and not (sign.isalnum() and sign.isascii()) and sign not in _SIGNS:
            self.fail(f"{sign!r} cannot stand here")
        self.fail(expected)


def _compare(field: FieldOfMessage, op: Operator, constant: Constant, wanted: bool) -> p.Condition:
    if field.section == HEADER:
        default = _HEADER[field.name]
        return p.Always(default is not None and _holds(default, op, constant) is wanted)
    value = constant.value
    if field == p.TIMESTAMP_FIELD:
        if constant.kind == "number" and isinstance(value, int) and MIN_INT64 <= value <= MAX_INT64:
            return p.compare(field, op if wanted else OPPOSITES[op], value)
    elif field.section == DELIVERY_ANNOTATIONS:
        if field not in p.FIELDS:
            return p.Always(False)  # no event carries it: unknown
        if constant.kind != "text":
            return p.Always((op is Operator.NOT_EQUALS) is wanted)
        text = constant.content.decode(errors="surrogateescape")
        return p.compare(field, op if wanted else OPPOSITES[op], text)
    if op in (Operator.EQUALS, Operator.NOT_EQUALS):
        return MessageTest(field, Operator.IN, (constant,), wanted is (op is Operator.EQUALS))
    return MessageTest(field, op, (constant,), wanted)


def _in(field: FieldOfMessage, constants: tuple[Constant, ...], wanted: bool) -> p.Condition:
    if not _is_stored(field):
        parts = [_compare(field, Operator.EQUALS, each, wanted) for each in constants]
        return p.disjunction(parts) if wanted else p.conjunction(parts)
    return MessageTest(field, Operator.IN, constants, wanted)


def _is_null(field: FieldOfMessage, wanted: bool) -> p.Condition:
    if not _is_stored(field):
        null = _HEADER[field.name] is None if field.section == HEADER else field not in p.FIELDS
        return p.Always(null is wanted)
    return MessageTest(field, Operator.IS_NULL, (), wanted)


def _is_stored(field: FieldOfMessage) -> bool:
    """Return whether events store the field's value themselves: it is no default of the header, and not their place."""
    return field.section not in (HEADER, DELIVERY_ANNOTATIONS) or field == p.TIMESTAMP_FIELD


def _holds(left: Constant, op: Operator, right: Constant) -> bool:
    """Compare two constants."""
    if left.kind != right.kind or (left.kind == "boolean" and op not in (Operator.EQUALS, Operator.NOT_EQUALS)):
        return op is Operator.NOT_EQUALS
    if left.kind == "text":
        return bool(COMPARISONS[op].python(left.content, right.content))
    return bool(COMPARISONS[op].python(left.value, right.value))


def _parts_of(pattern: str, escape: str | None) -> list[str | None] | None:
    """Return literal characters, ``None`` for ``_`` and ``""`` for ``%``; None if the escape is the last character."""
    found: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                return None
            found.append(literal)
        else:
            found.append(WILDCARDS.get(character, character))
    return found
