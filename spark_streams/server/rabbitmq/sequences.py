"""Deduplication: the last publishing ids of this door's publishers, kept as ``log/publisher_sequences.py`` says.

Spec: docs/specifications.md, S-103 to S-105; Streams Protocol Reference, QueryPublisherSequence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from spark_streams.log.publisher_sequences import SequenceKind

__all__ = ["PUBLISHERS", "PUBLISHERS_NOTE", "publishers_note", "trailer_bytes"]

PUBLISHERS_NOTE: Final = b"rabbitmq-publishers"
PUBLISHERS: Final = SequenceKind(PUBLISHERS_NOTE, "rabbitmq-sequences")


def publishers_note(sequences: Mapping[str, int]) -> tuple[bytes, bytes]:
    """Return the note for an append, of references to their last publishing ids."""
    return PUBLISHERS.note_of(sequences)


def trailer_bytes(note: bytes) -> int:
    """Return how large a chunk's trailer would be at a broker, which has there what the note has (S-53)."""
    return sum(10 + len(reference.encode()) for reference in json.loads(note))
