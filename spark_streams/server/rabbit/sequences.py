"""Deduplication: the last publishing ids of this door's publishers, kept as ``log/sequences.py`` says.

Spec: notes, section 10 (dedup, lifetime); Streams Protocol Reference, QueryPublisherSequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_streams.log.sequences import SequenceKind

__all__ = ["PUBLISHERS", "PUBLISHERS_NOTE", "publishers_note"]

PUBLISHERS_NOTE: Final = b"rabbitmq-publishers"
PUBLISHERS: Final = SequenceKind(PUBLISHERS_NOTE, "rabbitmq-sequences")


def publishers_note(sequences: Mapping[str, int]) -> tuple[bytes, bytes]:
    """Return the note for an append, of references to their last publishing ids."""
    return PUBLISHERS.note_of(sequences)
