"""Write full SQL filters in the common part of the draft and RabbitMQ's dialect.

::

    keywords    upper case
    fields      p.subject   a.color   [any-name]     sections p and a; a delimited name is an application property, for
                                                      RabbitMQ knows no section before one
    strings     'text'                               ' doubled; no control character (Z-6)
    integers    5  -5                                the sign is an operator
    decimals    0.25                                 never with an exponent: the draft knows no sign in one
    binary      0x0AFF                               upper case, one byte or more
    grouping    an AND within an OR, and an OR within an AND, in parentheses (X-9)
    NOT         only in NOT IN, NOT LIKE and IS NOT NULL (Z-1)

RabbitMQ takes 4096 characters and 200 tokens; a longer text is ``Inexpressible``, as is what SQL has no constant for.
LIKE has at most one ``%`` and no ``_``, because RabbitMQ makes a regular expression of any other pattern, in which
neither matches a line break.

Spec: AMQP Filter Expressions 1.0 wd10 §6.4; RabbitMQ 4.2 and later, ``rabbit_amqp_sql_lexer.xrl``,
``rabbit_amqp_sql_parser.yrl``, ``rabbit_amqp_filter_sql.erl``; docs/specifications.md, X-4, X-5, X-7, X-9,
Z-1, Z-6.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from spark_streams.filters.split import Inexpressible

MAX_CHARACTERS: Final = 4096
"""The most characters that RabbitMQ takes of a full SQL filter; a filter of event streams has no more either."""
_MAX_TOKENS: Final = 200
_REGULAR: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEYWORDS: Final = frozenset(
    {
        *("and", "or", "not", "like", "in", "is", "null", "escape", "true", "false", "exists", "nan", "inf"),
        *("lower", "upper", "left", "right", "substring", "utc", "date"),
    }
)
"""The words that may not be bare names, in upper or lower case."""


@dataclass(frozen=True)
class Sql:
    """The text of a predicate.

    Args:
        text: the text.
        tokens: how many tokens RabbitMQ's lexer finds in it.
        joined_by: the operator that joins its parts at the top; None when it is one predicate.
    """

    text: str
    tokens: int
    joined_by: Literal["AND", "OR"] | None = None


@dataclass(frozen=True)
class Term:
    """A field or a constant.

    Args:
        text: the text.
        tokens: its number of tokens.
    """

    text: str
    tokens: int = 1


FALSE: Final = Sql("FALSE", 1)


def printable(text: str) -> bool:
    """Return whether a filter may contain a text: no control characters, no lone surrogates (Z-6)."""
    return text.isprintable() or not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def application_property(name: str) -> Term:
    """Return the field of an application property, unless SQL cannot express the name."""
    if _REGULAR.fullmatch(name) and name.lower() not in _KEYWORDS:
        return Term(f"a.{name}")
    if not name or not printable(name):
        raise Inexpressible
    return Term("[" + name.replace("[", "[[").replace("]", "]]") + "]")


def string(text: str) -> Term:
    """Return a string constant, unless SQL cannot express the text."""
    if not printable(text):
        raise Inexpressible
    return Term("'{}'".format(text.replace("'", "''")))


def integer(value: int) -> Term:
    """Return an integer constant."""
    return Term(str(value), 2 if value < 0 else 1)


def decimal(value: Decimal) -> Term:
    """Return a decimal constant with a point and no exponent."""
    text = f"{value:f}"
    return Term(text if "." in text else text + ".0", 2 if value < 0 else 1)


def binary(value: bytes) -> Term:
    """Return a binary constant, unless there are no bytes, which SQL cannot express."""
    if not value:
        raise Inexpressible
    return Term("0x" + value.hex().upper())


def compare(field: Term, sign: str, value: Term) -> Sql:
    """Return ``field sign value``."""
    return Sql(f"{field.text} {sign} {value.text}", field.tokens + 1 + value.tokens)


def is_null(field: Term) -> Sql:
    """Return ``field IS NULL``."""
    return Sql(f"{field.text} IS NULL", 3)


def is_not_null(field: Term) -> Sql:
    """Return ``field IS NOT NULL``."""
    return Sql(f"{field.text} IS NOT NULL", 4)


def is_in(field: Term, values: list[Term], *, negated: bool = False) -> Sql:
    """Return ``field [NOT] IN (values)``, or a comparison if there is only one value.

    Args:
        field: a field whose type is fixed: RabbitMQ's NOT IN is true for a value of another type.
        values: one or more.
        negated: whether it is NOT IN.
    """
    if len(values) == 1:
        return compare(field, "<>" if negated else "=", values[0])
    tokens = 3 + negated + sum(value.tokens + 1 for value in values)
    return Sql(f"{field.text} {'NOT ' * negated}IN ({', '.join(value.text for value in values)})", tokens)


def like(field: Term, pattern: Term, *, negated: bool = False) -> Sql:
    """Return ``field [NOT] LIKE pattern``."""
    return Sql(f"{field.text} {'NOT ' * negated}LIKE {pattern.text}", 3 + negated)


def checked(sql: Sql) -> Sql:
    """Return the same, unless the text is longer than RabbitMQ allows."""
    if sql.tokens > _MAX_TOKENS or len(sql.text) > MAX_CHARACTERS:
        raise Inexpressible
    return sql


def join(by: Literal["AND", "OR"], parts: Iterable[Sql]) -> Sql:
    """Return one or more parts, joined by AND or OR, unless the text is longer than RabbitMQ allows."""
    members = list(parts)
    if len(members) > 1:
        closed = [part if part.joined_by in (None, by) else Sql(f"({part.text})", part.tokens + 2) for part in members]
        tokens = sum(part.tokens for part in closed) + len(closed) - 1
        joined = Sql(f" {by} ".join(part.text for part in closed), tokens, by)
    else:
        (joined,) = members
    return checked(joined)


def between(field: Term, low: Term | None, high: Term | None, *, below: bool) -> Sql:
    """Return the range from ``low``, included, to ``high``, excluded if ``below``; None, on one side, is no bound."""
    edges = ((">=", low), ("<" if below else "<=", high))
    return join("AND", [compare(field, sign, edge) for sign, edge in edges if edge is not None])


def outline(pattern: str) -> tuple[str, bool, str]:
    """Return a pattern reduced to one ``%``: all texts that match the pattern match the reduced one, too.

    Args:
        pattern: a pattern of LIKE, without escapes (E-11).

    Returns:
        The text before its first wildcard, whether it has one, and the text after its last one.
    """
    texts = re.split("[%_]", pattern)
    return texts[0], len(texts) > 1, texts[-1] if len(texts) > 1 else ""


def is_outline(pattern: str) -> bool:
    """Return whether a pattern equals its outline: no wildcard but ``%``, and no text between wildcards."""
    return re.fullmatch("[^%_]*(%+[^%_]*)?", pattern) is not None
