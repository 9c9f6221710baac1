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

Keywords are written in any case. The text is read once, in a loop: neither its length nor its nesting costs stack.

Spec: notes sections 1.3 and 1.4.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from spark_streams.errors import FilterError
from spark_streams.filters import limits
from spark_streams.filters.describe import shorten
from spark_streams.filters.literals import NUMBER, read_double, read_long
from spark_streams.filters.nodes import (
    Expression,
    Not,
    Operator,
    Predicate,
    Reference,
    Value,
    ValueType,
    all_of,
    any_of,
    property_of,
)
from spark_streams.filters.words import (
    ANNOTATION_SECTIONS,
    ANNOTATIONS,
    KEYWORDS,
    REFERENCES,
    WORD,
    meant,
)

__all__ = ["MAX_TEXT", "parse"]

MAX_TEXT: Final = 524_288
"""Characters of a text at most: what any tree within the limits needs, however it is quoted."""

_BLANK: Final = re.compile(r"[ \t\r\n\f\v]*")
_PLAIN_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANNOTATION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NAME_WITHOUT_DELIMITERS: Final = re.compile(r"""[^\s=<>!()\[\]'",]+""")
_SIGN: Final = re.compile(r"<>|!=|>=|<=|=|>|<")
_COMPARISONS: Final = {
    "=": Operator.EQUALS,
    "<>": Operator.NOT_EQUALS,
    "!=": Operator.NOT_EQUALS,
    ">": Operator.GREATER_THAN,
    ">=": Operator.GREATER_THAN_EQUALS,
    "<": Operator.LESS_THAN,
    "<=": Operator.LESS_THAN_EQUALS,
}
_MIRRORED: Final = {
    Operator.GREATER_THAN: Operator.LESS_THAN,
    Operator.GREATER_THAN_EQUALS: Operator.LESS_THAN_EQUALS,
    Operator.LESS_THAN: Operator.GREATER_THAN,
    Operator.LESS_THAN_EQUALS: Operator.GREATER_THAN_EQUALS,
}
_CONTAINS: Final = {
    "ALL": Operator.CONTAINS_ALL,
    "ANY": Operator.CONTAINS_ANY,
    "NONE": Operator.CONTAINS_NONE,
}
_TYPE_NAMES: Final = {
    ValueType.STRING: "a text in single quotes",
    ValueType.LONG: "an integer",
    ValueType.DOUBLE: "a decimal, such as 1.0",
}
_LITERAL_STARTS: Final = frozenset("'+-0123456789")
_TESTS: Final = "one of = <> != < <= > >=, [NOT] IN, [NOT] LIKE, [NOT] BETWEEN, IS [NOT] NULL, CONTAINS"
_A_PREDICATE: Final = "expected a test such as type = 'order', NOT or ("
_FOREIGN_SIGNS: Final = {
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT",
    ";": "a filter is one expression",
    **dict.fromkeys("+-*/%", "there is no arithmetic"),
}
_FOREIGN_WORDS: Final = {
    "ESCAPE": "LIKE has no ESCAPE: % and _ always stand for other characters",
    "RLIKE": "there are no regular expressions: write LIKE",
    "ILIKE": "LIKE tells upper from lower case: there is no ILIKE",
    "EXISTS": "write x IS NOT NULL",
}


def parse(text: str) -> Expression:
    """Read a filter.

    Args:
        text: of ``MAX_TEXT`` characters at most.

    Returns:
        The tree, within all limits; ANDs within ANDs and ORs within ORs are joined, parentheses are gone.

    Raises:
        FilterError: with the 1-based column of the first character that cannot be, and why.

    """
    if len(text) > MAX_TEXT:
        raise FilterError(text, MAX_TEXT + 1, f"longer than {MAX_TEXT} characters, which no filter needs")
    return _Reader(text).expression()


class _Group:
    """What stands between two parentheses, as far as it is read."""

    def __init__(self, opening: int) -> None:
        self.opening = opening
        self.nots = 0
        self.terms: list[Expression] = []
        self.factors: list[Expression] = []

    def add(self, operand: Expression) -> None:
        for _ in range(self.nots):
            operand = Not(operand)
        self.nots = 0
        self.factors.append(operand)

    def end_term(self) -> None:
        self.terms.append(all_of(self.factors))
        self.factors = []


class _Reader:
    """One pass over a text; ``at`` is the index of the next character to read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.values = 0
        self.starts: dict[int, int] = {}  # of each predicate, by its id: the tree keeps them all alive

    def expression(self) -> Expression:
        group, around = _Group(0), list[_Group]()
        nesting = 0
        while True:
            self._skip_blanks()
            if self._keyword("NOT"):
                group.nots += 1
                nesting += 1
            elif self._next() == "(":
                around.append(group)
                group = _Group(self.at)
                self.at += 1
                nesting += 1
            else:
                operand = self._predicate()
                while True:
                    nesting -= group.nots
                    group.add(operand)
                    if self._joined(group):
                        break
                    if not around:
                        if self._next():
                            self._fail("there is no ( that this ) closes")
                        return self._within_limits(any_of(group.terms))
                    if not self._next():
                        self._fail("the parenthesis is not closed: expected )", group.opening)
                    self.at += 1
                    nesting -= 1
                    operand, group = any_of(group.terms), around.pop()
            if nesting > limits.MAX_DEPTH:
                self._fail(f"nested more than {limits.MAX_DEPTH} levels deep", self.at - 1)

    def _joined(self, group: _Group) -> bool:
        """Read what follows an operand: True after AND and OR, False before ``)`` and at the end of the text."""
        self._skip_blanks()
        if self._keyword("AND"):
            return True
        if self._keyword("OR"):
            group.end_term()
            return True
        if self._next() not in ("", ")"):
            self._fail(self._foreign() or "expected AND, OR or the end of the filter")
        group.end_term()
        return False

    def _within_limits(self, expression: Expression) -> Expression:
        fault = limits.find_fault(expression)
        if fault is None:
            return expression
        node = fault.node
        while not isinstance(node, Predicate):
            node = node.operand if isinstance(node, Not) else node.parts[0]
        self._fail(fault.reason, self.starts[id(node)])

    def _predicate(self) -> Expression:
        start = self.at
        negated = False
        if self._at_literal():
            predicate, places = self._mirrored()
        else:
            places = [start]
            reference = self._reference()
            self._skip_blanks()
            places.append(self.at)
            predicate, negated = self._tested(reference, places)
        fault = limits.predicate_fault(predicate)
        if fault is not None:
            self._fail(fault.reason, places[fault.part - limits.AT_REFERENCE])
        self.starts[id(predicate)] = start
        if len(self.starts) > limits.MAX_NODES:
            self._fail(f"more than {limits.MAX_NODES} predicates: at most {limits.MAX_NODES} are taken", start)
        return Not(predicate) if negated else predicate

    def _mirrored(self) -> tuple[Predicate, list[int]]:
        """Read ``literal comparison reference``; return where reference, operator and value stand, too."""
        first = self.at
        value, of = self._literal()
        self._skip_blanks()
        second = self.at
        operator = self._comparison()
        if operator is None:
            self._fail("expected one of = <> != < <= > >= after a literal")
        self._skip_blanks()
        third = self.at
        if self._at_literal():
            self._fail("a literal beside a literal: expected a property, or another part of the event")
        predicate = Predicate(self._reference(), _MIRRORED.get(operator, operator), (value,), of)
        return predicate, [third, second, first]

    def _tested(self, reference: Reference, places: list[int]) -> tuple[Predicate, bool]:
        """Read what follows a reference, append the place of each value; say whether the whole is negated, too."""
        operator = self._comparison()
        if operator is not None:
            return self._against_one(reference, operator, places), False
        if self._keyword("IS"):
            self._skip_blanks()
            negated = self._keyword("NOT")
            self._skip_blanks()
            if not self._keyword("NULL"):
                self._fail("expected NULL" if negated else "expected NULL or NOT NULL")
            return Predicate(reference, Operator.IS_NOT_NULL if negated else Operator.IS_NULL), False
        if self._keyword("CONTAINS"):
            self._skip_blanks()
            for word, operator in _CONTAINS.items():
                if self._keyword(word):
                    return self._against_list(reference, operator, places), False
            self._fail("expected ALL, ANY or NONE after CONTAINS")
        negated = self._keyword("NOT")
        self._skip_blanks()
        if self._keyword("IN"):
            return self._against_list(reference, Operator.NOT_IN if negated else Operator.IN, places), False
        if self._keyword("LIKE"):
            return self._against_one(reference, Operator.NOT_LIKE if negated else Operator.LIKE, places), False
        if self._keyword("BETWEEN"):
            return self._between(reference, places), negated
        self._fail("expected IN, LIKE or BETWEEN after NOT" if negated else self._foreign() or f"expected {_TESTS}")

    def _against_one(self, reference: Reference, operator: Operator, places: list[int]) -> Predicate:
        value, of = self._value(places)
        return Predicate(reference, operator, (value,), of)

    def _between(self, reference: Reference, places: list[int]) -> Predicate:
        low, of = self._value(places)
        self._skip_blanks()
        if not self._keyword("AND"):
            self._fail("expected AND between the two ends of BETWEEN")
        high, _ = self._value(places, of)
        return Predicate(reference, Operator.BETWEEN, (low, high), of)

    def _against_list(self, reference: Reference, operator: Operator, places: list[int]) -> Predicate:
        self._skip_blanks()
        opening = self.at
        if self._next() != "(":
            self._fail("expected ( and a list of literals")
        self.at += 1
        first, of = self._value(places)
        values = [first]
        while True:
            self._skip_blanks()
            if self._next() == ")":
                self.at += 1
                return Predicate(reference, operator, tuple(values), of)
            if self._next() == "":
                self._fail("the list is not closed: expected )", opening)
            if self._next() != ",":
                self._fail("expected , or ) after a literal of a list")
            self.at += 1
            values.append(self._value(places, of)[0])

    def _value(self, places: list[int], expected: ValueType | None = None) -> tuple[Value, ValueType]:
        """Read a literal, of the type expected if one is, that a reference is compared with."""
        self._skip_blanks()
        places.append(self.at)
        value, of = self._literal()
        if expected not in (None, of):
            reason = f"expected {_TYPE_NAMES[expected]}, not {_TYPE_NAMES[of]}: the values of one test are of one type"
            self._fail(reason, places[-1])
        return value, of

    def _literal(self) -> tuple[Value, ValueType]:
        self.values += 1
        if self.values > limits.MAX_VALUES:
            self._fail(f"more than {limits.MAX_VALUES} values: at most {limits.MAX_VALUES} are taken")
        if self._next() == "'":
            return self._quoted("'", "the text is not closed: expected '"), ValueType.STRING
        if self._at_literal():
            return self._number()
        word = self._word().upper()
        if word == "NULL":
            self._fail("nothing compares with NULL: write IS NULL or IS NOT NULL")
        if word in ("TRUE", "FALSE"):
            self._fail(f"there are no boolean values: expected the property's text, '{word.lower()}'")
        name = _NAME_WITHOUT_DELIMITERS.match(self.text, self.at + (self._next() == '"'))
        hint = f": a text stands in single quotes, '{shorten(name[0])}'" if name and self._next() != "-" else ""
        self._fail(f"expected a text in single quotes or a number{hint}")

    def _number(self) -> tuple[Value, ValueType]:
        number = NUMBER.match(self.text, self.at)
        if number is None:
            self._fail("expected digits after the sign")
        following = self.text[number.end() : number.end() + 1]
        if following in (".", "_") or following.isalnum():
            self._fail("expected the number to end here: numbers are written 5, -5, 5.5 or 5.5e10", number.end())
        value: Value | None
        if number[1] is None and number[2] is None:
            value, of = read_long(number[0]), ValueType.LONG
            reason = "the integer does not fit into 64 bits: write a decimal, such as 1e19"
        else:
            value, of = read_double(number[0]), ValueType.DOUBLE
            reason = "the decimal does not fit into a DOUBLE: the largest is about 1.8e308"
        if value is None:
            self._fail(reason)
        self.at = number.end()
        return value, of

    def _reference(self) -> Reference:
        if self._next() in ("[", '"'):
            return property_of(self._delimited())
        found = WORD.match(self.text, self.at)
        if found is None:
            self._fail(self._no_reference())
        word = found[0]
        first = word.partition(".")[0]
        if first.upper() in KEYWORDS:
            self._fail(self._keyword_for_a_reference(first.upper()))
        if first in ANNOTATION_SECTIONS and self.text.startswith(".", self.at + len(first)):
            return self._annotation(first)
        end = found.end()
        if self.text[end : end + 2] in (".[", '."'):
            self.at = end + 1
            if meant(f"{word}.") is not None:
                self._fail(f"expected {meant(f'{word}.')}", self.at - len(word) - 1)
            return property_of(f"{word}.{self._delimited()}")
        following = self.text[end : end + 1]
        if following == "(":
            self._fail(f"there is no function {shorten(word)}: expected a property, or another part of the event")
        if following in (".", "-", "$", "@", ":", "/", "#") or following.isalnum():
            name = _NAME_WITHOUT_DELIMITERS.match(self.text, self.at)
            self._fail(
                f"a name with other signs than letters, digits and _ is delimited: [{shorten((name or found)[0])}]"
            )
        reference = REFERENCES.get(word)
        if reference is None:
            suggestion = meant(word)
            if suggestion is not None:
                self._fail(f"expected {suggestion}, or [{word}] for a property of that name")
            reference = property_of(word)
        self.at = end
        return reference

    def _annotation(self, section: str) -> Reference:
        start = self.at
        self.at += len(section) + 1
        if self._next() in ("[", '"'):
            name = self._delimited()
        else:
            found = _ANNOTATION.match(self.text, self.at)
            name = found[0] if found else ""
            self.at += len(name)
        reference = ANNOTATIONS.get(name)
        if reference is None:
            shown = shorten(f"{section}.{name}")
            known = " or ".join(f"{section}.{annotation}" for annotation in ANNOTATIONS)
            self._fail(f"expected {known}; a property of that name is written [{shown}]", start)
        return reference

    def _delimited(self) -> str:
        close = "]" if self._next() == "[" else '"'
        return self._quoted(close, f"the name is not closed: expected {close}")

    def _quoted(self, close: str, unclosed: str) -> str:
        """Read up to ``close``, which is doubled where it is meant; ``at`` is on the opening character."""
        opening, parts = self.at, []
        self.at += 1
        while True:
            end = self.text.find(close, self.at)
            if end < 0:
                self._fail(unclosed, opening)
            parts.append(self.text[self.at : end])
            self.at = end + 1
            if not self.text.startswith(close, self.at):
                return close.join(parts)
            self.at += 1

    def _comparison(self) -> Operator | None:
        sign = _SIGN.match(self.text, self.at)
        if sign is None:
            return None
        self.at = sign.end()
        if self._next() in ("=", "<", ">", "!", "~"):
            self._fail("expected one of = <> != < <= > >=", sign.start())
        return _COMPARISONS[sign[0]]

    def _keyword(self, keyword: str) -> bool:
        """Read a keyword, if it is the next word."""
        word = self._word()
        if word.upper() != keyword:
            return False
        self.at += len(word)
        return True

    def _word(self) -> str:
        word = _PLAIN_WORD.match(self.text, self.at)
        return word[0] if word else ""

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _at_literal(self) -> bool:
        return self._next() in _LITERAL_STARTS

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self.text, self.at)
        assert blank is not None
        self.at = blank.end()

    def _no_reference(self) -> str:
        if self.at == len(self.text):
            return "the filter is empty: leave it out for all events" if not self.text.strip() else _A_PREDICATE
        if self._next().isalnum():
            name = _NAME_WITHOUT_DELIMITERS.match(self.text, self.at)
            return (
                f"a name with other signs than letters, digits and _ is delimited: [{shorten(name[0] if name else '')}]"
            )
        return self._foreign() or _A_PREDICATE

    def _keyword_for_a_reference(self, keyword: str) -> str:
        if keyword in ("TRUE", "FALSE"):
            return f"there is no {keyword}: leave the filter out for all events"
        return f"{_A_PREDICATE}, not {keyword}; a property of that name is written [{self._word()}]"

    def _foreign(self) -> str | None:
        """Say what of other languages stands at ``at``, if anything known does."""
        return _FOREIGN_WORDS.get(self._word().upper()) or _FOREIGN_SIGNS.get(self._next())

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise FilterError(self.text, (self.at if at is None else at) + 1, reason)
