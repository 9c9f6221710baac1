"""Split an expression into the part that a target checks and the part that remains for the reader.

A target translates one predicate, and joins translations by AND or OR, or raises ``Inexpressible``. A translation is
*exact* (true of the same events) or a *superset* (true of those, and maybe of others); it is never true of fewer
events, so no event is lost. AND and OR keep both properties, and the split expression has no NOT. Hence:

- of an AND, any of the parts may be pushed: those that are pushed exactly need no further check, the others remain;
- of an OR, all parts are pushed or none is; unless all are exact, the whole OR remains.

``pushed AND residual`` is true of the same events as the expression.

Spec: docs/specifications.md, Z-18.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spark_streams.filters.tree import And, Expression, Or, Predicate, all_of, without_not

T = TypeVar("T")


class Inexpressible(Exception):
    """A peer's form has no equivalent of something, or its text would be too long."""


@dataclass(frozen=True)
class Split(Generic[T]):
    """An expression, split.

    Args:
        pushed: the part that the target checks, in the target's own form; None for nothing.
        residual: the part left to check; None for nothing, when ``pushed`` is true of the same events as the whole.
    """

    pushed: T | None
    residual: Expression | None


class Target(Protocol[T]):
    """The translation of predicates to the form ``T`` of a peer; each method may raise ``Inexpressible``."""

    def test(self, predicate: Predicate) -> Split[T]:
        """Return the part of one predicate that the peer checks, and the part that remains."""

    def both(self, left: T, right: T) -> T:
        """Return exactly the conjunction."""

    def either(self, left: T, right: T) -> T:
        """Return exactly the disjunction."""


class PeerSplit(ABC):
    """An expression, split for a kind of peer: the part that the peer checks, and the part for the reader."""

    @property
    @abstractmethod
    def phrases(self) -> tuple[str, ...]:
        """The pushed part, for people: a phrase for each filter that the peer gets."""

    @property
    def words(self) -> str | None:
        """The pushed part, for people, in one line; None when nothing is pushed."""
        return "; ".join(self.phrases) or None


def split(expression: Expression, target: Target[T]) -> Split[T]:
    """Split an expression.

    Args:
        expression: any, within the limits of the language (E-17).
        target: what the peer can check.
    """
    return _split(without_not(expression), target)


def _split(expression: Expression, target: Target[T]) -> Split[T]:
    if isinstance(expression, And):
        return _of_and(expression, target)
    try:
        if isinstance(expression, Predicate):
            return target.test(expression)
        if isinstance(expression, Or):
            return _of_or(expression, target)
    except Inexpressible:
        pass
    return Split(None, expression)


def _of_and(whole: And, target: Target[T]) -> Split[T]:
    pushed: T | None = None
    rest: list[Expression] = []
    for each in whole.parts:
        part = _split(each, target)
        if part.pushed is not None:
            try:
                pushed = part.pushed if pushed is None else target.both(pushed, part.pushed)
            except Inexpressible:
                part = Split(None, each)
        if part.residual is not None:
            rest.append(part.residual)
    return Split(pushed, all_of(rest) if rest else None)


def _of_or(whole: Or, target: Target[T]) -> Split[T]:
    pushed: T | None = None
    exact = True
    for each in whole.parts:
        part = _split(each, target)
        if part.pushed is None:
            raise Inexpressible
        pushed = part.pushed if pushed is None else target.either(pushed, part.pushed)
        exact = exact and part.residual is None
    return Split(pushed, None if exact else whole)
