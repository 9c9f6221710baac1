"""Parses the options of format ``amqp-events``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_streams.endpoint import AMQP_SCHEMES
from spark_streams.errors import OptionError
from spark_streams.options.common import SinkOptions, SourceOptions, read_source
from spark_streams.options.connection import read_endpoint, request_timeout_ms
from spark_streams.options.names import (
    CONSUMER_GROUP,
    EPOCH,
    MIN_PARTITIONS,
    PASSWORD,
    PASSWORD_FILE,
    PASSWORD_PROVIDER,
    STREAM,
    TOKEN,
    TOKEN_FILE,
    TOKEN_PROVIDER,
    USERNAME,
)
from spark_streams.options.parser import Format, OptionReader
from spark_streams.options.positions import read_position
from spark_streams.position import Position


@dataclass(frozen=True)
class AmqpSourceOptions(SourceOptions):
    """Everything that a reader of AMQP event streams needs to know; picklable, and safe to print.

    Args:
        consumer_group: the group that the links join, or None.
        epoch: this consumer's epoch in the group, or None.
    """

    consumer_group: str | None = None
    epoch: int | None = None


def validate(options: Mapping[str, str], *, reading: bool = False) -> None:
    """Check names, values and conflicts of all options that are there.

    Args:
        options: as Spark hands them over.
        reading: whether they are known to be a reader's, which needs a stream; a writer whose rows name their streams
            does not.

    Raises:
        OptionError: the first fault found.
    """
    given = OptionReader(options, _FORMAT)
    _source(given, (_stream(given) if reading else _optional_stream(given)) or "", None)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> AmqpSourceOptions:
    """Read the options of a reader.

    Args:
        options: as Spark hands them over.
        streaming: whether they are for ``readStream``: the default start is then ``latest``, else ``earliest``.

    Raises:
        OptionError: an option that is unknown, has a bad value, contradicts another, or does not suit the mode.
    """
    given = OptionReader(options, _FORMAT, reading=True)
    return _source(given, _stream(given), streaming)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a writer.

    Raises:
        OptionError: an option that is unknown, is for reading only, has a bad value, or contradicts another.
    """
    given = OptionReader(options, _FORMAT, reading=False)
    return SinkOptions(read_endpoint(given), _optional_stream(given), request_timeout_ms(given))


def _source(given: OptionReader, stream: str, streaming: bool | None) -> AmqpSourceOptions:
    common = read_source(given, stream, AmqpSourceOptions, streaming=streaming)
    group, epoch = given.get(CONSUMER_GROUP), given.integer(EPOCH, 0, "an epoch")
    if group is not None and not group.strip():
        raise OptionError(CONSUMER_GROUP, "is empty, expected the name of a group")
    if epoch is not None and group is None:
        raise OptionError(EPOCH, f"needs '{CONSUMER_GROUP}' beside it: an epoch belongs to a group")
    if group is not None and given.has(MIN_PARTITIONS):
        raise OptionError(
            MIN_PARTITIONS,
            f"cannot be used together with '{CONSUMER_GROUP}': a group reads a partition over one link at a time",
        )
    return replace(common, consumer_group=group, epoch=epoch)


def _stream(given: OptionReader) -> str:
    return given.required(STREAM, given.form.stream_example).strip()


def _optional_stream(given: OptionReader) -> str | None:
    return _stream(given) if given.has(STREAM) else None


def _position(option: str, partition: str, value: object) -> Position:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise OptionError(
            option,
            f"partition '{partition}' has the number {value}, but offsets of AMQP event streams are opaque strings, to "
            'be compared and never counted: write an offset as the log gave it, "…" to start after it or {"at": "…"} '
            "to start with it",
        )
    return read_position(option, partition, value)


_FORMAT: Final = Format(
    name="amqp-events",
    schemes=AMQP_SCHEMES,
    url_example="such as amqp://localhost:5672 or amqps://user:password@host",
    stream_example="the name of the log, such as orders",
    naming=f"name the log with option '{STREAM}'",
    position=_position,
    offsets_example='{"0": "earliest", "1": {"at": "00000000000000000042"}, "2": "00000000000000000042"}',
    reading=(CONSUMER_GROUP, EPOCH),
    refused={
        TOKEN: f"amqp-events does not take it in this version; use '{USERNAME}' and '{PASSWORD}'",
        TOKEN_FILE: f"amqp-events knows no tokens; use '{USERNAME}' and '{PASSWORD_FILE}'",
        TOKEN_PROVIDER: f"amqp-events knows no tokens; use '{USERNAME}' and '{PASSWORD_PROVIDER}'",
    },
)
