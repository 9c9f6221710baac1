"""What a task publishes exactly once: its identity."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TaskIdentity"]


@dataclass(frozen=True)
class TaskIdentity:
    """What a task is on every attempt: it makes publishing exactly once.

    Args:
        reference: the publisher's, the same for this query and Spark partition in every micro-batch.
        batch: number of the micro-batch.
    """

    reference: str
    batch: int
