"""Defines positions (where reading starts and stops) and checkpoints (which store them), and reads a query's progress.

::

    Position = EARLIEST | LATEST | At(offset) | After(offset) | AtTime(timestamp_ms) | Matching(text)

``At`` includes the event, ``After`` excludes it. Offsets are opaque: code compares them, within one partition only, and
never parses them or computes with them. Timestamps are int64 milliseconds since the epoch and may be negative:
-386380800000 is 1957-10-04, and -1 is 1969-12-31T23:59:59.999Z.

As JSON a position is ``"earliest"``, ``"latest"``, any other string (after that offset), ``{"at": offset}``,
``{"after": offset}``, ``{"timestamp": ms}`` or ``{"expression": text}``.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from spark_streams.errors import CheckpointError
from spark_streams.instants import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS


@dataclass(frozen=True)
class Earliest:
    """The first event that is retained."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True)
class Latest:
    """The position after the last event that exists when the position is resolved."""

    def __str__(self) -> str:
        return "latest"


EARLIEST: Final = Earliest()
LATEST: Final = Latest()


@dataclass(frozen=True)
class _OfOffset:
    offset: str

    word: ClassVar[str]
    """The key of the position's JSON object."""

    def __str__(self) -> str:
        return f"{self.word} '{self.offset}'"


class At(_OfOffset):
    """The event with this offset, inclusive."""

    word = "at"


class After(_OfOffset):
    """The event that follows this offset, which is itself excluded."""

    word = "after"


@dataclass(frozen=True)
class AtTime:
    """The first event, in log order, whose timestamp is not earlier than ``timestamp_ms`` (inclusive)."""

    timestamp_ms: int

    def __str__(self) -> str:
        return f"at timestamp {self.timestamp_ms} ms"


@dataclass(frozen=True)
class Matching:
    """The first event that a filter expression matches, inclusive."""

    text: str

    def __str__(self) -> str:
        return f"at the first event matching {self.text!r}"


Position = Earliest | Latest | At | After | AtTime | Matching


def position_to_json(position: Position) -> str | dict[str, Any]:
    """Return the JSON value of a position; ``After`` is always an object, so that no offset reads as a keyword."""
    if isinstance(position, (Earliest, Latest)):
        return str(position)
    if isinstance(position, (At, After)):
        return {position.word: position.offset}
    if isinstance(position, AtTime):
        return {"timestamp": position.timestamp_ms}
    return {"expression": position.text}


def position_from_json(value: object) -> Position:
    """Return the position that a JSON value describes.

    Raises:
        ValueError: the value describes no position; the message tells the user what was expected.
    """
    if isinstance(value, str):
        if value == "earliest":
            return EARLIEST
        return LATEST if value == "latest" else After(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((word, operand),) = value.items()
        if word in ("at", "after") and isinstance(operand, str):
            return At(operand) if word == "at" else After(operand)
        if word == "timestamp" and isinstance(operand, int) and not isinstance(operand, bool):
            if not MIN_TIMESTAMP_MS <= operand <= MAX_TIMESTAMP_MS:
                raise ValueError(f"timestamp {operand} is outside int64 milliseconds")
            return AtTime(operand)
        if word == "expression" and isinstance(operand, str):
            return Matching(operand)
    raise ValueError(
        f'{value!r} is not a position: expected "earliest", "latest", an offset as a string (reading starts after '
        'it), {"at": offset}, {"after": offset}, {"timestamp": milliseconds} or {"expression": text}'
    )


CHECKPOINT_VERSION: Final = 2
"""The version of every checkpoint; before the first release there was a version 1, which did not name its format."""


def require_format(value: object, format: str) -> None:
    """Check that a checkpoint's JSON has the version that is written, and the given format.

    Raises:
        CheckpointError: the value has another version or format, or is no checkpoint of ours.
    """
    if not isinstance(value, Mapping) or "version" not in value:
        raise CheckpointError(
            "not a checkpoint of spark-streams, but of another source: expected an object with 'version', 'format', "
            "'stream' and 'partitions'; use another checkpointLocation for another source"
        )
    version = value["version"]
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"the checkpoint has version {version!r}, this spark-streams reads version {CHECKPOINT_VERSION}: install "
            "the release that wrote it, or start again with another checkpointLocation, and with the positions that "
            "this one ends with in option 'startingOffsets'"
        )
    if value.get("format") != format:
        raise CheckpointError(
            f"the checkpoint is of format {value.get('format')!r}, but the query reads format '{format}', which cannot "
            "go on from there: go back to the other format, or use another checkpointLocation"
        )


@dataclass(frozen=True)
class Checkpoint:
    """The state that Spark stores between micro-batches: a position for each partition of one stream.

    Args:
        format: the name of the format whose source reads.
        stream: the log's name.
        partitions: partition identifier to position. At the end of a range a position is ``After(last event)``, or
            ``EARLIEST`` for an empty partition.
        incarnation: the identity that the peer gives this creation of the log, or None where it gives none; another
            identity under the same name means that the log was deleted and created again.
        log_identity: partition identifier to the peer's answer about the event at its position, for peers that give no
            incarnation; a different answer later means that the partition was deleted and created again.
        dialect: the dialect of the peer, where the format has several; None where that is not known.
    """

    format: str
    stream: str
    partitions: Mapping[str, Position] = field(default_factory=dict)
    incarnation: str | None = None
    log_identity: Mapping[str, str] = field(default_factory=dict)
    dialect: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object.

        It is ``{"version": 2, "format": …, "stream": …, "partitions": {id: position}[, "incarnation": …][,
        "witnesses": {id: …}][, "dialect": …]}``.
        """
        out: dict[str, Any] = {
            "version": CHECKPOINT_VERSION,
            "format": self.format,
            "stream": self.stream,
            "partitions": {p: position_to_json(self.partitions[p]) for p in sorted(self.partitions)},
        }
        if self.incarnation is not None:
            out["incarnation"] = self.incarnation
        if self.log_identity:
            out["witnesses"] = {p: self.log_identity[p] for p in sorted(self.log_identity)}
        if self.dialect is not None:
            out["dialect"] = self.dialect
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any], format: str) -> Checkpoint:
        """Read what ``to_json`` wrote.

        Args:
            value: the JSON object.
            format: the name of the format that continues from the checkpoint.

        Raises:
            CheckpointError: the value has another version or format, or is no checkpoint of ours.
        """
        require_format(value, format)
        try:
            partitions = {str(p): position_from_json(v) for p, v in value["partitions"].items()}
            log_identity = {str(p): str(text) for p, text in value.get("witnesses", {}).items() if p in partitions}
            stream, incarnation, dialect = str(value["stream"]), value.get("incarnation"), value.get("dialect")
            return cls(format, stream, partitions, incarnation, log_identity, dialect)
        except (KeyError, AttributeError, ValueError) as fault:
            raise CheckpointError(f"not a checkpoint of spark-streams: {fault!r}") from fault


def progress_offset(offset: object) -> dict[str, Any] | None:
    """Return an offset of a ``SourceProgress`` as a dict, or None if it is not one of ours.

    Spark gives it as JSON or as a dict. Spark 4.0 and 4.1 give Python's ``repr`` of the dict in ``query.lastProgress``,
    and on Spark Connect to listeners too.
    """
    value = offset
    if isinstance(offset, str) and offset.startswith("{"):
        for read in (json.loads, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError):
                value = read(offset)
                break
    return value if isinstance(value, dict) and {"version", "stream", "partitions"} <= value.keys() else None
