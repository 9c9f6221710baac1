"""Defines positions, where reading starts and stops, and checkpoints, which store them; reads them from a progress.

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
import re
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
"""The version that all formats write; version 1 does not name its format."""
OWN_FORMATS: Final = frozenset({"amqp-events", "rabbitmq-stream", "feedapi"})
_NUMBERED: Final = re.compile(r"[0-9]{20}")
"""An offset of RabbitMQ as text."""
_CREATED_MS: Final = re.compile(r"[0-9]{1,15}")
"""The incarnation of an event hub: when it was created. Those of event streams are longer."""


def require_format(value: object, format: str) -> None:
    """Check that a checkpoint's JSON has a known version, and the given format.

    Version 1 does not name its format. Keys that only one format wrote identify it; a checkpoint without them passes.

    Raises:
        CheckpointError: the value has another version or format, or is no checkpoint of ours.
    """
    if not isinstance(value, Mapping) or "version" not in value:
        raise CheckpointError(
            "not a checkpoint of spark-streams, but of another source: expected an object with 'version', 'format', "
            "'stream' and 'partitions'; use another checkpointLocation for another source"
        )
    version = value["version"]
    if version not in (1, CHECKPOINT_VERSION) or isinstance(version, bool):
        raise CheckpointError(
            f"the checkpoint has version {version!r}, this spark-streams reads versions 1 to {CHECKPOINT_VERSION}: it "
            "was written by another release; install that one, or start again with another checkpointLocation"
        )
    if version == CHECKPOINT_VERSION and not isinstance(value.get("format"), str):
        raise CheckpointError("not a checkpoint of spark-streams: 'format' is missing, or is no text")
    if version == 1 and format not in OWN_FORMATS:
        return  # a format that another package added: the form of its checkpoints is not known
    written = (value["format"],) if version == CHECKPOINT_VERSION else _formats_of_version_1(value)
    if format not in written:
        other = " or ".join(f"'{each}'" for each in written)
        raise CheckpointError(
            f"the checkpoint is of format {other}, but the query reads format '{format}', which cannot go on from "
            "there: go back to the other format, or use another checkpointLocation"
        )


def _formats_of_version_1(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the formats that may have written a checkpoint of version 1."""
    for key, format in (("spool", "feedapi"), ("incarnation", "amqp-events"), ("witnesses", "rabbitmq-stream")):
        if key in value:
            return (format,)
    partitions = value.get("partitions")
    if not isinstance(partitions, Mapping) or not partitions:
        return ("amqp-events", "rabbitmq-stream")
    offsets = [offset for each in partitions.values() if isinstance(each, Mapping) for offset in each.values()]
    if not all(isinstance(offset, str) and _NUMBERED.fullmatch(offset) for offset in offsets):
        return ("amqp-events",)
    # RabbitMQ's partitions are streams: one with the stream's own name, or those of a super stream, as its tools name
    # them.
    stream = str(value.get("stream"))
    if all(partition == stream or partition.startswith(f"{stream}-") for partition in partitions):
        return ("rabbitmq-stream",)
    return ("amqp-events", "rabbitmq-stream")


def _dialect(value: Mapping[str, Any], format: str) -> str | None:
    """Return the dialect that wrote a checkpoint which does not name it; None where that does not show."""
    if format != "amqp-events":
        return None
    if "incarnation" not in value:
        return "rabbitmq" if "witnesses" in value else None
    return "event-hubs" if _CREATED_MS.fullmatch(str(value["incarnation"])) else "event-streams"


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
            incarnation; another answer later means that the partition was deleted and created again.
        dialect: the dialect of the peer, where the format has several; None where that is not known.
    """

    format: str
    stream: str
    partitions: Mapping[str, Position] = field(default_factory=dict)
    incarnation: str | None = None
    log_identity: Mapping[str, str] = field(default_factory=dict)
    dialect: str | None = field(default=None, compare=False)

    VERSION: ClassVar[int] = CHECKPOINT_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object.

        It is ``{"version": 2, "format": …, "stream": …, "partitions": {id: position}[, "incarnation": …][,
        "witnesses": {id: …}][, "dialect": …]}``.
        """
        out: dict[str, Any] = {
            "version": self.VERSION,
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
        """Read what ``to_json`` wrote, in this version or an older one.

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
            dialect = value.get("dialect") or _dialect(value, format)
            return cls(format, str(value["stream"]), partitions, value.get("incarnation"), log_identity, dialect)
        except (KeyError, AttributeError, ValueError) as fault:
            raise CheckpointError(f"not a checkpoint of spark-streams: {fault!r}") from fault


def progress_offset(offset: object) -> dict[str, Any] | None:
    """Return an offset of a ``SourceProgress`` as a dict, or None if it is not one of ours.

    Spark gives it as JSON or as a dict; 4.0 and 4.1 give ``query.lastProgress``, and on Spark Connect listeners too,
    Python's ``repr`` of the dict.
    """
    value = offset
    if isinstance(offset, str) and offset.startswith("{"):
        for read in (json.loads, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError):
                value = read(offset)
                break
    return value if isinstance(value, dict) and {"version", "stream", "partitions"} <= value.keys() else None
