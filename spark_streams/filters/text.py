"""The filter language as text, in SQL's style.

::

    expression = term (OR term)*                       NOT binds tighter than AND, AND tighter than OR
    term       = factor (AND factor)*
    factor     = NOT* ( "(" expression ")" | predicate )
    predicate  = reference comparison literal | literal comparison reference      5 < x is x > 5
               | reference [NOT] IN list
               | reference [NOT] LIKE literal                                     % any run, _ one character; no escape
               | reference [NOT] BETWEEN literal AND literal                      both ends included
               | reference IS [NOT] NULL
               | reference CONTAINS (ALL | ANY | NONE) list
    list       = "(" literal ("," literal)* ")"                                   of one type
    comparison = "=" | "<>" | "!=" | "<" | "<=" | ">" | ">="
    literal    = 'text' | integer | decimal                                       ' doubled within; STRING, LONG, DOUBLE
    integer    = ["+" | "-"] digits
    decimal    = integer ["." digits] [("e" | "E") integer]
    reference  = event_time | publish_time | key | partition | offset | body_size
               | property
               | ("d" | "delivery_annotations") "." ("event-streams-offset" | "event-streams-timestamp")
    property   = word ("." word)* ["." delimited] | delimited
    word       = a letter or "_", then letters, digits and "_"                    ASCII; no keyword
    delimited  = "[" any "]" | '"' any '"'                                        the closing sign doubled within

Keywords are written in any case. The text is read once; its nesting is bounded, so recursion is safe.

Spec: docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

from typing import Final

from spark_streams.errors import FilterError
from spark_streams.filters import limits
from spark_streams.filters.scanner import Scanner
from spark_streams.filters.tree import (
    COMPARISONS,
    Expression,
    Not,
    Operator,
    Predicate,
    Reference,
    Value,
    ValueType,
    all_of,
    any_of,
)

MAX_TEXT: Final = 524_288
"""The most characters of a text: enough for any tree within the limits, however it is quoted."""

_CONTAINS: Final = {"ALL": Operator.CONTAINS_ALL, "ANY": Operator.CONTAINS_ANY, "NONE": Operator.CONTAINS_NONE}
_TYPE_NAMES: Final = {
    ValueType.STRING: "a text in single quotes",
    ValueType.LONG: "an integer",
    ValueType.DOUBLE: "a decimal, such as 1.0",
}
_TESTS: Final = "one of = <> != < <= > >=, [NOT] IN, [NOT] LIKE, [NOT] BETWEEN, IS [NOT] NULL, CONTAINS"


def parse(text: str) -> Expression:
    """Read a filter.

    Args:
        text: at most ``MAX_TEXT`` characters.

    Returns:
        The tree, within all limits; it joins ANDs within ANDs and ORs within ORs, and has no parentheses.

    Raises:
        FilterError: the text is no filter; it has the reason and the 1-based column of the first wrong character.
    """
    if len(text) > MAX_TEXT:
        raise FilterError(text, MAX_TEXT + 1, f"longer than {MAX_TEXT} characters, which no filter needs")
    return _Reader(text).expression()


class _Reader(Scanner):
    """The reader of the grammar, over the scanner's words."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nesting = 0
        self.starts: dict[int, int] = {}  # id of each predicate to its start; the tree keeps all predicates alive

    def expression(self) -> Expression:
        self.skip_blanks()
        found = self._any()
        if self.next():
            self.fail("there is no ( that this ) closes")
        fault = limits.find_fault(found)
        if fault is not None:
            node = fault.node
            while not isinstance(node, Predicate):
                node = node.operand if isinstance(node, Not) else node.parts[0]
            self.fail(fault.reason, self.starts[id(node)])
        return found

    def _any(self) -> Expression:
        """Read terms up to a ``)`` or the end of the text."""
        terms = self.joined("OR", self._all)
        if self.next() not in ("", ")"):
            self.fail(self.foreign() or "expected AND, OR or the end of the filter")
        return any_of(terms)

    def _all(self) -> Expression:
        return all_of(self.joined("AND", self._factor))

    def _factor(self) -> Expression:
        opening = self.at
        negated = self.keyword("NOT")
        if not negated and not self.sign("("):
            return self._predicate()
        self.nesting += 1
        if self.nesting > limits.MAX_DEPTH:
            self.fail(f"nested more than {limits.MAX_DEPTH} levels deep", opening + 2 if negated else opening)
        if negated:
            found: Expression = Not(self._factor())
        else:
            found = self._any()
            if not self.sign(")"):
                self.fail("the parenthesis is not closed: expected )", opening)
        self.nesting -= 1
        return found

    def _predicate(self) -> Expression:
        start = self.at
        negated = False
        if self.at_literal():
            predicate, places = self._mirrored()
        else:
            places = [start]
            reference = self.reference()
            self.skip_blanks()
            places.append(self.at)
            predicate, negated = self._tested(reference, places)
        fault = limits.predicate_fault(predicate)
        if fault is not None:
            self.fail(fault.reason, places[fault.part - limits.AT_REFERENCE])
        self.starts[id(predicate)] = start
        if len(self.starts) > limits.MAX_NODES:
            self.fail(f"more than {limits.MAX_NODES} predicates: at most {limits.MAX_NODES} are taken", start)
        return Not(predicate) if negated else predicate

    def _mirrored(self) -> tuple[Predicate, list[int]]:
        """Read ``literal comparison reference``; return the places of reference, operator and value, too."""
        first = self.at
        value, of = self.literal()
        self.skip_blanks()
        second = self.at
        operator = self.comparison()
        if operator is None:
            self.fail("expected one of = <> != < <= > >= after a literal")
        third = self.at
        if self.at_literal():
            self.fail("a literal beside a literal: expected a property, or another part of the event")
        predicate = Predicate(self.reference(), COMPARISONS[operator].mirrored, (value,), of)
        self.skip_blanks()
        return predicate, [third, second, first]

    def _tested(self, reference: Reference, places: list[int]) -> tuple[Predicate, bool]:
        """Read the test after a reference, append the place of each value; return whether the whole is negated, too."""
        operator = self.comparison()
        if operator is not None:
            return self._against_one(reference, operator, places), False
        if self.keyword("IS"):
            negated = self.keyword("NOT")
            if not self.keyword("NULL"):
                self.fail("expected NULL" if negated else "expected NULL or NOT NULL")
            return Predicate(reference, Operator.IS_NOT_NULL if negated else Operator.IS_NULL), False
        if self.keyword("CONTAINS"):
            for word, operator in _CONTAINS.items():
                if self.keyword(word):
                    return self._against_list(reference, operator, places), False
            self.fail("expected ALL, ANY or NONE after CONTAINS")
        negated = self.keyword("NOT")
        if self.keyword("IN"):
            return self._against_list(reference, Operator.NOT_IN if negated else Operator.IN, places), False
        if self.keyword("LIKE"):
            return self._against_one(reference, Operator.NOT_LIKE if negated else Operator.LIKE, places), False
        if self.keyword("BETWEEN"):
            return self._between(reference, places), negated
        self.fail("expected IN, LIKE or BETWEEN after NOT" if negated else self.foreign() or f"expected {_TESTS}")

    def _against_one(self, reference: Reference, operator: Operator, places: list[int]) -> Predicate:
        value, of = self._value(places)
        return Predicate(reference, operator, (value,), of)

    def _between(self, reference: Reference, places: list[int]) -> Predicate:
        low, of = self._value(places)
        if not self.keyword("AND"):
            self.fail("expected AND between the two ends of BETWEEN")
        high, _ = self._value(places, of)
        return Predicate(reference, Operator.BETWEEN, (low, high), of)

    def _against_list(self, reference: Reference, operator: Operator, places: list[int]) -> Predicate:
        opening = self.at
        if not self.sign("("):
            self.fail("expected ( and a list of literals")
        first, of = self._value(places)
        values = [first]
        while self.sign(","):
            values.append(self._value(places, of)[0])
        if not self.sign(")"):
            if not self.next():
                self.fail("the list is not closed: expected )", opening)
            self.fail("expected , or ) after a literal of a list")
        return Predicate(reference, operator, tuple(values), of)

    def _value(self, places: list[int], expected: ValueType | None = None) -> tuple[Value, ValueType]:
        """Read the literal to compare a reference with; it must be of the expected type, if there is one."""
        places.append(self.at)
        value, of = self.literal()
        self.skip_blanks()
        if expected not in (None, of):
            reason = f"expected {_TYPE_NAMES[expected]}, not {_TYPE_NAMES[of]}: the values of one test are of one type"
            self.fail(reason, places[-1])
        return value, of
