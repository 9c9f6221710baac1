"""Split an expression into the part that a target checks and the part that remains for the reader.

A target translates one predicate, and joins translations by AND or OR. A translation is *exact* (true of the same
events) or a *superset* (true of those, and maybe of others); it is never true of fewer events, so no event is lost.
AND and OR keep both properties, and the split expression has no NOT. Hence:

- of an AND, any of the parts may be pushed: those that are pushed exactly need no further check, the others remain;
- of an OR, all parts are pushed or none is; unless all are exact, the whole OR remains.

``pushed AND residual`` is true of the same events as the expression.

Spec: docs/specifications.md, Z-18.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spark_streams.filters.tree import And, Expression, Not, Predicate, all_of, without_not

T = TypeVar("T")


@dataclass(frozen=True)
class Pushable(Generic[T]):
    """The part of an expression that a target can check.

    Args:
        pushed: the part in the target's own form.
        exact: whether it is true of the same events; otherwise it is true of them and maybe of others.
    """

    pushed: T
    exact: bool


class Target(Protocol[T]):
    """The translation of predicates to the form ``T`` of a peer."""

    def test(self, predicate: Predicate) -> Pushable[T] | None:
        """Return the part of one predicate that the peer can check; None for nothing."""

    def both(self, left: T, right: T) -> T | None:
        """Return exactly the conjunction; None when the peer's form cannot express it, or it is too long."""

    def either(self, left: T, right: T) -> T | None:
        """Return exactly the disjunction; None when the peer's form cannot express it, or it is too long."""


def pushable(pushed: T | None, *, exact: bool) -> Pushable[T] | None:
    """Return what a target can check; None for nothing."""
    return None if pushed is None else Pushable(pushed, exact)


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


@dataclass(frozen=True)
class Split(Generic[T]):
    """An expression, split.

    Args:
        pushed: the part that the target checks; None for nothing.
        residual: the part left to check; None for nothing, when ``pushed`` is true of the same events as the whole.
    """

    pushed: T | None
    residual: Expression | None


def split(expression: Expression, target: Target[T]) -> Split[T]:
    """Split an expression.

    Args:
        expression: any, within the limits of the language (E-17).
        target: what the peer can check.
    """
    return _split(without_not(expression), target)


def _split(expression: Expression, target: Target[T]) -> Split[T]:
    if isinstance(expression, Predicate):
        made = target.test(expression)
        return Split(None, expression) if made is None else Split(made.pushed, None if made.exact else expression)
    if isinstance(expression, Not):
        return Split(None, expression)
    parts = [_split(part, target) for part in expression.parts]
    if isinstance(expression, And):
        return _of_and(expression.parts, parts, target)
    return _of_or(expression, parts, target)


def _of_and(wholes: Sequence[Expression], parts: Sequence[Split[T]], target: Target[T]) -> Split[T]:
    pushed: T | None = None
    rest: list[Expression] = []
    for whole, part in zip(wholes, parts, strict=True):
        joined = part.pushed if pushed is None or part.pushed is None else target.both(pushed, part.pushed)
        if joined is None:
            rest.append(whole)
            continue
        pushed = joined
        if part.residual is not None:
            rest.append(part.residual)
    return Split(pushed, all_of(rest) if rest else None)


def _of_or(whole: Expression, parts: Sequence[Split[T]], target: Target[T]) -> Split[T]:
    pushed: T | None = None
    for part in parts:
        joined = part.pushed if pushed is None or part.pushed is None else target.either(pushed, part.pushed)
        if joined is None:
            return Split(None, whole)
        pushed = joined
    return Split(pushed, None if all(part.residual is None for part in parts) else whole)
