"""Noticing that a partition has other events than those that were read: its log was created again, or is an older copy.

Where the peer gives logs an identity it tells the first, and never the second: a copy has the same.

A witness (``LogClient.witnesses``) is what the peer says about an offset, and says differently of a new log. The
witnesses of a batch's end go into the checkpoint, and before reading goes on from there they are asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_streams.client.data_loss import DataLoss
from spark_streams.position import After, Checkpoint, Position
from spark_streams.spark.source.driver import Driver

__all__ = ["CREATED_AGAIN", "Witnesses", "without"]

CREATED_AGAIN = "the stream was deleted and created again, or restored from an older copy"
"""What is there instead of the position."""


class Witnesses:
    """Asks for witnesses, and only where there is something new to read.

    Args:
        driver: asks the peer.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def of(self, ends: Mapping[str, Position], before: Checkpoint | None) -> dict[str, str]:
        """Return the witnesses of ends that were just decided.

        Args:
            ends: partition to where a batch ends.
            before: where it begins; a partition that ends there keeps its witness, and is not asked about.
        """
        known: dict[str, str] = {}
        if before is not None:
            known = {p: text for p, text in before.witnesses.items() if p in ends and before.partitions[p] == ends[p]}
            ends = {p: end for p, end in ends.items() if before.partitions.get(p) != end}
        return {**known, **self._driver.witnesses(ends)}

    def differing(
        self, checkpoint: Checkpoint, partitions: Iterable[str], incarnation: str | None = None
    ) -> list[DataLoss]:
        """Return which of some partitions are others than those that the checkpoint is of.

        A partition whose position is no longer there has no witness any more: other checks see to it.

        Args:
            checkpoint: what was seen.
            partitions: which of its partitions are asked about.
            incarnation: the log's identity by now, None where it has none; another one than the checkpoint's has told
                the same already, of all partitions.
        """
        if None not in (checkpoint.incarnation, incarnation) and checkpoint.incarnation != incarnation:
            return []
        known = {p: checkpoint.witnesses[p] for p in partitions if p in checkpoint.witnesses}
        if not known:
            return []
        now = self._driver.witnesses({p: checkpoint.partitions[p] for p in known})
        return [
            DataLoss(p, str(checkpoint.partitions[p]), CREATED_AGAIN)
            for p, text in known.items()
            if now.get(p, text) != text
        ]

    @staticmethod
    def at(checkpoint: Checkpoint, partition: str, offset: str) -> str | None:
        """Return the witness that a checkpoint has of an offset of a partition."""
        return checkpoint.witnesses.get(partition) if checkpoint.partitions.get(partition) == After(offset) else None


def without(checkpoint: Checkpoint, partitions: Iterable[str]) -> Checkpoint:
    """Return a checkpoint that knows nothing of some partitions, as if they were new."""
    gone = set(partitions)
    return replace(
        checkpoint,
        partitions={p: position for p, position in checkpoint.partitions.items() if p not in gone},
        witnesses={p: text for p, text in checkpoint.witnesses.items() if p not in gone},
    )
