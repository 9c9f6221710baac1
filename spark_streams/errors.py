"""Defines every error that spark-streams raises.

::

    SparkStreamsError
    ├ OptionError (ValueError)       an option: its name, its value, what was expected
    ├ PackageMissing (ImportError)   a package that not everybody needs is not installed
    ├ SchemaError (ValueError)       a column that a source or sink does not know, or of the wrong type
    ├ FilterError (ValueError)       a filter: where it is wrong and why
    ├ ProtocolError
    │  ├ LocalProtocolError          we were about to break the protocol: a defect of ours
    │  └ RemoteProtocolError         the peer broke it, or sent bytes that cannot be decoded
    ├ TransportError                 retriable
    │  ├ ConnectFailed               no connection: host, port, TLS
    │  ├ ConnectionLost              it broke while in use
    │  └ DeadlineExceeded            the peer did not answer, or gave no credit, in time
    ├ PeerError                      the peer answered, with a condition of its own
    │  ├ AuthenticationFailed
    │  ├ NotFound                    no such stream or partition
    │  ├ OwnershipLost               a consumer with a higher epoch took the partition
    │  └ Refused                     any other condition
    ├ CheckpointError (ValueError)   a checkpoint of another format or stream, other filters, or another release
    ├ PositionLost                   events between the position to read from and the retained ones are gone
    ├ SpoolLost                      fetched pages of a feed are not where they were stored
    ├ DeliveryFailed                 the peer did not accept a row
    └ LogError
       ├ CorruptLog                  a file of the log fails its check: file and byte position
       ├ StreamExists / UnknownStream
       │  └ NameTaken                a door would show two streams, or partitions, under one name
       ├ PartitionEnded              a partition that was split takes no more records
       └ LogLocked                   another process has the data directory open

``retriable`` is a class attribute that the one retry loop reads. No message ever holds a password or a token:
``redaction`` puts a peer's words on one line and hides our secrets in them before they become part of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_streams.redaction import one_line, safe_text

__all__ = [
    "AuthenticationFailed",
    "CheckpointError",
    "ConnectFailed",
    "ConnectionLost",
    "CorruptLog",
    "DeadlineExceeded",
    "DeliveryFailed",
    "FilterError",
    "LocalProtocolError",
    "LogError",
    "LogLocked",
    "NameTaken",
    "NotFound",
    "OptionError",
    "OwnershipLost",
    "PackageMissing",
    "PartitionEnded",
    "PeerError",
    "PositionLost",
    "ProtocolError",
    "Refused",
    "RemoteProtocolError",
    "SchemaError",
    "SparkStreamsError",
    "SpoolLost",
    "StreamExists",
    "TransportError",
    "UnknownStream",
]

MOST_OF_A_MESSAGE: Final = 4_000
"""The most characters of a message that holds our words and a peer's."""


class SparkStreamsError(Exception):
    """The root of all errors of this package.

    Attributes:
        retriable: whether trying again can help.
        costly: whether one more try is enough to see that it was no accident: the operation used up its whole timeout,
            or the same bytes were damaged again.
        given_up: whether all allowed retries, of which there may be none, were used: a caller further up then does not
            retry again.
        retry_after_s: how many seconds the peer wants us to pause before the next try; None when it named no pause.
    """

    retriable: bool = False
    costly: bool = False
    given_up: bool = False
    retry_after_s: float | None = None


@dataclass(eq=False, repr=False)
class OptionError(SparkStreamsError, ValueError):
    """An option has a name or a value that cannot be used.

    Args:
        option: the option's name as the user wrote it.
        problem: what was wrong, what was expected and what to do, without any secret.
    """

    option: str
    problem: str

    def __str__(self) -> str:
        return f"option '{self.option}': {self.problem}"


class PackageMissing(SparkStreamsError, ImportError):
    """A package that only a part of this one needs is not installed; the text names the package and the remedy."""


class SchemaError(SparkStreamsError, ValueError):
    """A schema names a column that the format does not have, lacks one it needs, or gives one another type."""


@dataclass(eq=False, repr=False)
class FilterError(SparkStreamsError, ValueError):
    """A filter cannot be used.

    Args:
        text: the filter as the user wrote it; for a filter that was no text, the wrong part, written as text.
        column: 1-based column of the fault in ``text``; None for a filter that was no text.
        reason: what was wrong, and what was expected.
    """

    text: str
    column: int | None
    reason: str

    def __str__(self) -> str:
        where = "filter" if self.column is None else f"filter, column {self.column}"
        around = self.column or 1
        first, end = max(0, around - 140), max(200, around + 60)
        shown = ("…" if first else "") + self.text[first:end] + ("…" if len(self.text) > end else "")
        return f"{where}: {self.reason}: {shown}" if shown else f"{where}: {self.reason}"


class ProtocolError(SparkStreamsError):
    """The peer or we broke the protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol; always a defect of spark-streams."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol, or sent bytes that cannot be decoded; the connection is of no further use.

    Args:
        message: what was wrong; it may quote the peer, so secrets are hidden in all of it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(safe_text(message, MOST_OF_A_MESSAGE))


class TransportError(SparkStreamsError):
    """The network failed; a new connection may do better.

    Args:
        message: what happened; the caller has hidden secrets in any words of a peer.
    """

    retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, MOST_OF_A_MESSAGE))


class ConnectFailed(TransportError):
    """No connection could be made."""


class ConnectionLost(TransportError):
    """An established connection ended without a close; after the last retry its text says what to do."""

    def __str__(self) -> str:
        text = super().__str__()
        if not self.given_up:
            return text
        return (
            f"{text}; see the peer's log, and what lies between; a streaming query goes on from its checkpoint when it "
            "is started again"
        )


class DeadlineExceeded(TransportError):
    """The peer did not answer, or gave no credit, within the time allowed."""

    costly = True


class PeerError(SparkStreamsError):
    """The peer answered with an error condition.

    Args:
        condition: the peer's own name for the error, such as ``amqp:not-found``.
        description: the peer's words, with or without words of ours around them.
        context: what we were doing, such as ``attach 'orders'``.
    """

    def __init__(self, condition: str, description: str | None, context: str) -> None:
        condition, description = safe_text(condition), safe_text(description or "", MOST_OF_A_MESSAGE)
        context = one_line(context, MOST_OF_A_MESSAGE)
        super().__init__(condition, description, context)
        self.condition = condition
        self.description = description
        self.context = context

    def __str__(self) -> str:
        return f"{self.context}: {self.condition}" + (f": {self.description}" if self.description else "")


class AuthenticationFailed(PeerError):
    """The peer did not accept the credentials, or offered no mechanism that we may use."""


class NotFound(PeerError):
    """The stream or partition does not exist."""


class OwnershipLost(PeerError):
    """A consumer of the same group attached with a higher epoch.

    Args:
        epoch: the epoch of that consumer; None when the peer did not send it.
    """

    def __init__(self, condition: str, description: str | None, context: str, epoch: int | None = None) -> None:
        super().__init__(condition, description, context)
        self.args = (*self.args, epoch)
        self.epoch = epoch


class Refused(PeerError):
    """The peer refused for the reason that ``condition`` names.

    Conditions that pass by themselves (``amqp:connection:forced``, ``amqp:resource-locked``,
    ``amqp:link:detach-forced``) make an instance retriable.
    """

    TRANSIENT = frozenset({"amqp:connection:forced", "amqp:resource-locked", "amqp:link:detach-forced"})

    def __init__(self, condition: str, description: str | None, context: str) -> None:
        super().__init__(condition, description, context)
        self.retriable = self.retriable or self.condition in self.TRANSIENT


class CheckpointError(SparkStreamsError, ValueError):
    """A checkpoint of Spark does not belong to this query, or has another version."""


class PositionLost(SparkStreamsError):
    """Events that a query has not read yet are no longer in the log.

    Args:
        stream: the log's name.
        partition: the partition's identifier, or None for the whole stream.
        asked: the position where reading was to continue.
        available: what the peer has instead.
    """

    def __init__(self, stream: str, partition: str | None, asked: str, available: str) -> None:
        partition = None if partition is None else one_line(partition)
        asked, available = safe_text(asked), safe_text(available, MOST_OF_A_MESSAGE)
        super().__init__(stream, partition, asked, available)
        self.stream = stream
        self.partition = partition
        self.asked = asked
        self.available = available

    def __str__(self) -> str:
        where = f"stream '{self.stream}'" + (f" partition '{self.partition}'" if self.partition is not None else "")
        return (
            f"{where}: reading was to go on {self.asked}, but {self.available}. Events may have been lost. "
            "Set option 'failOnDataLoss' to 'false' to go on with what is left, or start again with another checkpoint."
        )


class SpoolLost(SparkStreamsError):
    """The spool has lost, or cannot store, pages or the manifest of a planned micro-batch of a feed."""


class DeliveryFailed(SparkStreamsError):
    """The peer did not accept a row.

    Args:
        outcome: ``rejected``, ``released`` or ``modified``.
        condition: the peer's condition, or an empty string.
        description: the peer's words, or an empty string.
        row: which row, such as ``row 17 (key 'customer-4')``.
        stream: the stream that it was sent to.
    """

    def __init__(self, outcome: str, condition: str, description: str, row: str, stream: str) -> None:
        condition, description, row = safe_text(condition), safe_text(description, MOST_OF_A_MESSAGE), one_line(row)
        super().__init__(outcome, condition, description, row, stream)
        self.outcome = outcome
        self.condition = condition
        self.description = description
        self.row = row
        self.stream = stream

    def __str__(self) -> str:
        reason = ": ".join(p for p in (self.condition, self.description) if p) or "no reason given"
        return f"{self.row} was {self.outcome} by stream '{self.stream}': {reason}"


class LogError(SparkStreamsError):
    """The reference log cannot do what a caller requested."""


@dataclass(eq=False, repr=False)
class CorruptLog(LogError):
    """A file of the log fails its check; the log does not serve its content.

    Args:
        file: path of the file.
        position: byte position of the batch or entry in the file.
        reason: which check failed.
    """

    file: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.reason}"


class StreamExists(LogError):
    """A stream of that name exists already."""


@dataclass(eq=False, repr=False)
class NameTaken(StreamExists):
    """A door would show two things under one name.

    Args:
        name: the name.
        what: the stream, or the partition of one, that would get the name.
        other_name: the existing name that a door would show as the same.
        other: the stream or partition that has ``other_name``.
        advice: what to do.
    """

    name: str
    what: str
    other_name: str
    other: str
    advice: str = "choose another name"

    def __str__(self) -> str:
        has = "has that name" if self.name == self.other_name else f"has '{self.other_name}', which addresses may mean"
        return (
            f"'{self.name}' would be the name of {self.what}, and {self.other} {has} "
            f"(to RabbitMQ's clients partitions are streams): {self.advice}"
        )


class UnknownStream(LogError):
    """There is no stream of that name."""


@dataclass(eq=False, repr=False)
class PartitionEnded(LogError):
    """A partition that was split takes no more records.

    Args:
        stream: the stream.
        partition: the partition.
        successors: the partitions that it was split into.
    """

    stream: str
    partition: str
    successors: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"partition {self.partition} of stream '{self.stream}' takes no more records: it was split into "
            f"partitions {', '.join(self.successors)}, append there"
        )


class LogLocked(LogError):
    """Another process has the data directory open."""
