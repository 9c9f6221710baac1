"""Parses the options of format ``rabbitmq-stream``: streams and super streams of RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from spark_streams.endpoint import RABBITMQ_SCHEMES
from spark_streams.errors import OptionError
from spark_streams.options.common import SinkOptions
from spark_streams.options.connection import log_level, read_endpoint, request_timeout_ms
from spark_streams.options.filter_values import ValuedSourceOptions, read_valued
from spark_streams.options.names import (
    COMPRESSION,
    CONSUMER_GROUP,
    CONSUMER_NAME,
    EPOCH,
    FILTER_VALUE_COLUMN,
    FILTER_VALUE_FROM,
    FILTER_VALUES,
    LOAD_BALANCER,
    MATCH_UNFILTERED,
    MAX_IN_FLIGHT,
    MIN_PARTITIONS,
    PASSWORD,
    PASSWORD_FILE,
    PASSWORD_PROVIDER,
    ROUTING,
    SINGLE_ACTIVE_CONSUMER,
    STORE_OFFSETS,
    STREAM,
    SUB_ENTRY_SIZE,
    SUPER_STREAM,
    TOKEN,
    TOKEN_FILE,
    TOKEN_PROVIDER,
    USERNAME,
)
from spark_streams.options.parser import Format, OptionReader
from spark_streams.options.positions import numbered_position
from spark_streams.wire.rabbitmq.publish_encode import Codec, RabbitPublishing, Routing

MAX_NAME_BYTES: Final = 255
"""The most bytes of a consumer's name, in UTF-8: the broker silently drops offsets stored under a longer name."""
MAX_SUB_ENTRY_SIZE: Final = 65_535
"""The most messages of a sub-entry batch, which counts them in 16 bits."""


@dataclass(frozen=True)
class RabbitSourceOptions(ValuedSourceOptions):
    """Everything that a reader of RabbitMQ needs to know; picklable, and safe to print.

    Args:
        consumer_name: the name under which the broker knows this consumer, or None.
        single_active_consumer: whether consumers of that name take turns.
        store_offsets: whether the position that the query has reached is stored in the broker, for tools that show lag.
    """

    consumer_name: str | None = None
    single_active_consumer: bool = False
    store_offsets: bool = False


@dataclass(frozen=True)
class RabbitSinkOptions(RabbitPublishing, SinkOptions):
    """Everything that a writer to RabbitMQ needs to know; picklable, and safe to print.

    Args:
        filter_value_column: the column that has each message's filter value, or None.
    """

    filter_value_column: str | None = None


def validate(options: Mapping[str, str], *, reading: bool = False) -> None:
    """Check names, values and conflicts of all options that are there.

    Args:
        options: as Spark hands them over.
        reading: whether the options are known to be a reader's. A reader needs a stream or super stream; a writer whose
            rows name their streams does not.

    Raises:
        OptionError: the first fault found.
    """
    given = OptionReader(options, FORMAT, reading=reading or None)
    _source(given, None)
    _sink(given)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> RabbitSourceOptions:
    """Read the options of a reader, as Spark hands them over; ``streaming`` says whether they are for ``readStream``.

    Raises:
        OptionError: as for ``OptionReader`` and ``read_source``; or one of this format's own options has a bad value.
    """
    parsed = _source(OptionReader(options, FORMAT, reading=True), streaming)
    if parsed.store_offsets and not streaming:
        raise OptionError(STORE_OFFSETS, "a batch query has no position to go on from: this is for streams")
    return parsed


def parse_sink(options: Mapping[str, str]) -> RabbitSinkOptions:
    """Read the options of a writer.

    Raises:
        OptionError: an option that is unknown, is for reading only, has a bad value, or contradicts another.
    """
    return _sink(OptionReader(options, FORMAT, reading=False))


def _name(given: OptionReader) -> tuple[str | None, bool]:
    """Return the name of the stream to read or write, and whether it is a super stream."""
    option = given.one_of(STREAM, SUPER_STREAM)
    if option is None:
        return None, False
    return given.required(option, "the name of the stream, such as orders").strip(), option == SUPER_STREAM


def _source(given: OptionReader, streaming: bool | None) -> RabbitSourceOptions:
    valued = read_valued(given, _name(given), RabbitSourceOptions, streaming=streaming)
    consumer = given.text(CONSUMER_NAME, "the name of a consumer")
    if consumer is not None and len(consumer.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise OptionError(CONSUMER_NAME, f"is longer than the {MAX_NAME_BYTES} bytes of UTF-8 that RabbitMQ takes")
    single, store = given.boolean(SINGLE_ACTIVE_CONSUMER, False), given.boolean(STORE_OFFSETS, False)
    if consumer is None and (single or store):
        option = SINGLE_ACTIVE_CONSUMER if single else STORE_OFFSETS
        raise OptionError(option, f"needs '{CONSUMER_NAME}' beside it: the broker knows consumers by their name")
    if single and given.has(MIN_PARTITIONS):
        raise OptionError(
            MIN_PARTITIONS,
            f"cannot be used together with '{SINGLE_ACTIVE_CONSUMER}': one consumer of a name reads a partition at a "
            "time",
        )
    return replace(
        valued,
        endpoint=replace(valued.endpoint, load_balancer=given.boolean(LOAD_BALANCER, False)),
        consumer_name=consumer,
        single_active_consumer=single,
        store_offsets=store,
    )


def _sink(given: OptionReader) -> RabbitSinkOptions:
    name, is_super = _name(given)
    routing = given.word(ROUTING, "hash", "rstream", "key")
    given.needs(ROUTING, SUPER_STREAM, "a stream has one partition")
    column = given.text(FILTER_VALUE_COLUMN, "the name of a column")
    size = given.integer(SUB_ENTRY_SIZE, 1, "messages", high=MAX_SUB_ENTRY_SIZE) or 1
    compression = given.word(COMPRESSION, "none", "gzip", "snappy", "lz4", "zstd")
    if compression != "none" and size == 1:
        raise OptionError(
            COMPRESSION, f"needs '{SUB_ENTRY_SIZE}' of more than 1 beside it: what is compressed is a sub-entry batch"
        )
    if column is not None and size > 1:
        raise OptionError(
            FILTER_VALUE_COLUMN,
            f"cannot be used together with '{SUB_ENTRY_SIZE}' of more than 1: a sub-entry batch has no filter values",
        )
    in_flight = given.integer(MAX_IN_FLIGHT, 1, "messages") or max(RabbitPublishing.max_in_flight, size)
    if in_flight < size:
        raise OptionError(
            MAX_IN_FLIGHT, f"{in_flight} is less than the {size} of '{SUB_ENTRY_SIZE}': one batch would not fit"
        )
    return RabbitSinkOptions(
        endpoint=replace(read_endpoint(given), load_balancer=given.boolean(LOAD_BALANCER, False)),
        stream=None if is_super else name,
        request_timeout_ms=request_timeout_ms(given),
        log_level=log_level(given),
        super_stream=name if is_super else None,
        routing=cast(Routing, routing),
        filter_value_column=column,
        compression=cast(Codec, compression),
        sub_entry_size=size,
        max_in_flight=in_flight,
    )


FORMAT: Final = Format(
    name="rabbitmq-stream",
    schemes=RABBITMQ_SCHEMES,
    url_example="such as rabbitmq-stream://localhost:5552 or rabbitmq-stream+tls://user:password@host/vhost",
    stream_example=f"the name of the stream, such as orders; or give '{SUPER_STREAM}' to have all its partitions",
    naming=f"name the stream with option '{STREAM}' or '{SUPER_STREAM}'",
    position=numbered_position,
    offsets_example='{"orders-0": "earliest", "orders-1": 42, "orders-2": {"after": 41}}',
    both=(SUPER_STREAM, LOAD_BALANCER),
    reading=(FILTER_VALUES, MATCH_UNFILTERED, FILTER_VALUE_FROM, CONSUMER_NAME, SINGLE_ACTIVE_CONSUMER, STORE_OFFSETS),
    writing=(ROUTING, FILTER_VALUE_COLUMN, COMPRESSION, SUB_ENTRY_SIZE, MAX_IN_FLIGHT),
    refused={
        CONSUMER_GROUP: f"rabbitmq-stream has no such option; did you mean '{CONSUMER_NAME}'?",
        EPOCH: f"rabbitmq-stream has no such option; did you mean '{CONSUMER_NAME}', with '{SINGLE_ACTIVE_CONSUMER}'?",
        TOKEN: f"rabbitmq-stream knows no tokens; use '{USERNAME}' and '{PASSWORD}'",
        TOKEN_FILE: f"rabbitmq-stream knows no tokens; use '{USERNAME}' and '{PASSWORD_FILE}'",
        TOKEN_PROVIDER: f"rabbitmq-stream knows no tokens; use '{USERNAME}' and '{PASSWORD_PROVIDER}'",
    },
)
