"""Parses the options of format ``amqp-events``.

Option ``dialect`` says what kind of peer it is. An option that only one dialect has implies that dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from spark_streams.endpoint import AMQP_SCHEMES
from spark_streams.errors import OptionError
from spark_streams.filters.tree import KEY, Expression, Operator, Predicate, ValueType, all_of, property_of
from spark_streams.options.common import SinkOptions
from spark_streams.options.connection import log_level, read_endpoint, request_timeout_ms
from spark_streams.options.connection_string import stream_of
from spark_streams.options.filter_values import ValuedSourceOptions, read_valued
from spark_streams.options.names import (
    CONNECTION_STRING,
    CONSUMER_GROUP,
    CUSTOM_ENDPOINT,
    DIALECT,
    EPOCH,
    EXCHANGE,
    FILTER_VALUE_COLUMN,
    FILTER_VALUE_FROM,
    FILTER_VALUES,
    KEY_ANNOTATION,
    MATCH_UNFILTERED,
    MIN_PARTITIONS,
    ROUTING,
    ROUTING_KEY_COLUMN,
    STREAM,
    SUPER_STREAM,
    TOKEN,
    TOKEN_FILE,
    TOKEN_PROVIDER,
    TRANSPORT,
)
from spark_streams.options.parser import Format, OptionReader
from spark_streams.options.positions import numbered_position, read_position
from spark_streams.position import Position
from spark_streams.wire.amqp.dialects import AUTO, DIALECTS, EVENT_HUBS, EVENT_STREAMS, RABBITMQ, Dialect
from spark_streams.wire.amqp.dialects.rabbitmq import exchange_address as exchange_address
from spark_streams.wire.amqp.dialects.rabbitmq import keyed


@dataclass(frozen=True)
class AmqpSourceOptions(ValuedSourceOptions):
    """Everything that a reader of AMQP event streams needs to know; picklable, and safe to print.

    Args:
        consumer_group: the group that the links join, or None.
        epoch: this consumer's epoch in the group, or None.
        dialect: the name of the peer's dialect, or ``auto``.
        key_annotation: RabbitMQ: the annotation that becomes column ``key``; None for property group-id.
        filter: as in ``SourceOptions``; it includes the condition for ``filter_values``.
    """

    consumer_group: str | None = None
    epoch: int | None = None
    dialect: str = AUTO
    key_annotation: str | None = None


@dataclass(frozen=True)
class AmqpSinkOptions(SinkOptions):
    """Everything that a writer to AMQP peers needs to know; picklable, and safe to print.

    Args:
        dialect: the name of the peer's dialect, or ``auto``.
        key_annotation: RabbitMQ: the annotation that column ``key`` becomes; None for property group-id.
        super_stream: RabbitMQ: the super stream that all rows go to, by the hash of their key, or None.
        routing: RabbitMQ: how a key is hashed, as RabbitMQ's clients do or as rstream does.
        exchange: RabbitMQ: the exchange that all rows go to, or None.
        routing_key_column: RabbitMQ: the column with the routing keys; None for an empty routing key.
        filter_value_column: RabbitMQ: the column that has each message's filter value, or None.
    """

    dialect: str = AUTO
    key_annotation: str | None = None
    super_stream: str | None = None
    routing: Literal["hash", "rstream"] = "hash"
    exchange: str | None = None
    routing_key_column: str | None = None
    filter_value_column: str | None = None


def validate(options: Mapping[str, str], *, reading: bool = False) -> None:
    """Check names, values and conflicts of all options that are there.

    Args:
        options: as Spark hands them over.
        reading: whether the options are known to be a reader's. A reader needs a stream; a writer whose rows name
            their streams does not.

    Raises:
        OptionError: the first fault found.
    """
    given = _reader(options, reading=reading or None)
    _source(given, None)
    _sink(given)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> AmqpSourceOptions:
    """Read the options of a reader.

    Args:
        options: as Spark hands them over.
        streaming: whether they are for ``readStream``: the default start is then ``latest``, else ``earliest``.

    Raises:
        OptionError: an option that is unknown, has a bad value, contradicts another, or does not suit the mode.
    """
    return _source(_reader(options, reading=True), streaming)


def parse_sink(options: Mapping[str, str]) -> AmqpSinkOptions:
    """Read the options of a writer.

    Raises:
        OptionError: an option that is unknown, is for reading only, has a bad value, or contradicts another.
    """
    return _sink(_reader(options, reading=False))


def dialect_named(name: str, key_annotation: str | None = None) -> Dialect | None:
    """Return the dialect that a value of option ``dialect`` names; None for ``auto``."""
    if name == RABBITMQ.name and key_annotation is not None:
        return keyed(key_annotation)
    return DIALECTS.get(name)


def _reader(options: Mapping[str, str], *, reading: bool | None = None) -> OptionReader:
    """Return the reader of the options; the dialect decides whether positions are numbers or opaque texts."""
    given = OptionReader(options, FORMAT, reading=reading)
    dialect = DIALECTS.get(_dialect(given))
    if dialect is None or not dialect.numeric_offsets:
        return given
    position = partial(numbered_position, peer=dialect.title)
    form = replace(FORMAT, position=position, offsets_example=_NUMBERS[dialect.name])
    return OptionReader(options, form, reading=reading)


def _dialect(given: OptionReader) -> str:
    """Return the name of the dialect that ``dialect`` or an option of only one dialect names; else ``auto``.

    Raises:
        OptionError: there is no such dialect, or an option belongs to another dialect.
    """
    name = given.word(DIALECT, AUTO, *DIALECTS)
    said_by = DIALECT
    for only, options in ((EVENT_HUBS, (CONNECTION_STRING,)), (RABBITMQ, _OF_RABBITMQ)):
        option = next((option for option in options if given.has(option)), None)
        if option is None:
            continue
        if name not in (AUTO, only.name):
            if said_by == DIALECT:
                raise OptionError(DIALECT, f"'{name}' contradicts '{option}', which is for {only.title} only")
            raise OptionError(option, f"is for dialect {only.title}, and '{said_by}' for {DIALECTS[name].title}")
        name, said_by = only.name, option
    return name


def _source(given: OptionReader, streaming: bool | None) -> AmqpSourceOptions:
    valued = read_valued(given, _named(given), AmqpSourceOptions, streaming=streaming)
    dialect = _dialect(given)
    groups = DIALECTS.get(dialect, EVENT_STREAMS).groups
    group, epoch = given.get(CONSUMER_GROUP), given.integer(EPOCH, 0, "an epoch")
    if group is not None and not group.strip():
        raise OptionError(CONSUMER_GROUP, "is empty, expected the name of a group")
    if groups == "never" and (group is not None or epoch is not None):
        raise OptionError(
            EPOCH if group is None else CONSUMER_GROUP,
            f"{DIALECTS[dialect].title} has none over AMQP 1.0; format 'rabbitmq-stream' has single active consumers",
        )
    if groups == "always":  # readers without an epoch may share a partition
        if epoch is not None and given.has(MIN_PARTITIONS):
            raise OptionError(
                MIN_PARTITIONS,
                f"cannot be used together with '{EPOCH}': with an epoch, one reader at a time has a partition",
            )
    elif epoch is not None and group is None:
        raise OptionError(EPOCH, f"needs '{CONSUMER_GROUP}' beside it: an epoch belongs to a group")
    elif group is not None and given.has(MIN_PARTITIONS):
        raise OptionError(
            MIN_PARTITIONS,
            f"cannot be used together with '{CONSUMER_GROUP}': a group reads a partition over one link at a time",
        )
    return replace(
        valued,
        consumer_group=group,
        epoch=epoch,
        dialect=dialect,
        key_annotation=_key_annotation(given),
        filter=_with_values(valued),
    )


def _with_values(options: AmqpSourceOptions) -> Expression | None:
    """Return ``filter``, narrowed to messages that have one of ``filter_values`` if there are any; None for neither."""
    condition, taken_from = options.filter, options.filter_value_from
    if not options.filter_values or taken_from is None:
        return condition
    place = KEY if taken_from == "key" else property_of(taken_from)
    wanted = Predicate(place, Operator.IN, options.filter_values, ValueType.STRING)
    return wanted if condition is None else all_of([condition, wanted])


def _sink(given: OptionReader) -> AmqpSinkOptions:
    name, is_super = _named(given)
    routing = given.word(ROUTING, "hash", "rstream")
    given.needs(ROUTING, SUPER_STREAM, "it says how a key chooses its partition")
    exchange = given.text(EXCHANGE, "the name of an exchange")
    if exchange is not None and name is not None:
        option = SUPER_STREAM if is_super else STREAM
        raise OptionError(EXCHANGE, f"cannot be used together with '{option}': give one of them")
    given.needs(ROUTING_KEY_COLUMN, EXCHANGE, "only an exchange routes by keys")
    return AmqpSinkOptions(
        read_endpoint(given),
        None if is_super else name,
        request_timeout_ms(given),
        log_level(given),
        dialect=_dialect(given),
        key_annotation=_key_annotation(given),
        super_stream=name if is_super else None,
        routing="rstream" if routing == "rstream" else "hash",
        exchange=exchange,
        routing_key_column=given.text(ROUTING_KEY_COLUMN, "the name of a column"),
        filter_value_column=given.text(FILTER_VALUE_COLUMN, "the name of a column"),
    )


def _named(given: OptionReader) -> tuple[str | None, bool]:
    """Return the name of the stream, and whether it is a super stream; None where rows name their streams.

    A connection string may also name the stream.
    """
    option = given.one_of(STREAM, SUPER_STREAM)
    if option == SUPER_STREAM:
        return given.required(option, given.form.stream_example).strip(), True
    return stream_of(given), False


def _key_annotation(given: OptionReader) -> str | None:
    key = given.text(KEY_ANNOTATION, "an annotation such as x-key")
    if key is not None and not (key.isascii() and key.isprintable() and key.startswith("x-") and len(key) > 2):
        raise OptionError(KEY_ANNOTATION, f"'{key}' is none that RabbitMQ takes, expected ASCII that begins with 'x-'")
    return key


def _position(option: str, partition: str, value: object) -> Position:
    number = value.get("at", value.get("after")) if isinstance(value, dict) else value
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        raise OptionError(
            option,
            f"partition '{partition}' has the number {number}, but offsets of AMQP event streams are opaque strings, "
            'to be compared and never counted: write an offset as the log gave it, "…" to start after it or '
            '{"at": "…"} to start with it; where the peer is RabbitMQ or Event Hubs, whose offsets are numbers, say so '
            f"with option '{DIALECT}'",
        )
    return read_position(option, partition, value)


_WRITING: Final = (ROUTING, EXCHANGE, ROUTING_KEY_COLUMN, FILTER_VALUE_COLUMN)
_OF_RABBITMQ: Final = (SUPER_STREAM, KEY_ANNOTATION, FILTER_VALUES, FILTER_VALUE_FROM, MATCH_UNFILTERED, *_WRITING)
"""The options that only RabbitMQ has."""
_NUMBERS: Final = {
    RABBITMQ.name: '{"orders-0": 42, "orders-1": {"after": 41}}',
    EVENT_HUBS.name: '{"0": 42, "1": {"after": 41}}',
}
"""Examples of positions, with each dialect's own names of partitions."""
FORMAT: Final = Format(
    name="amqp-events",
    schemes=AMQP_SCHEMES,
    url_example="such as amqp://localhost:5672 or amqps://user:password@host; or option 'connectionString'",
    stream_example="the stream's name, such as orders",
    naming=f"name the stream with option '{STREAM}'",
    position=_position,
    offsets_example='{"0": "earliest", "1": {"at": "00000000000000000042"}, "2": "00000000000000000042"}',
    both=(
        *(CONNECTION_STRING, TOKEN, TOKEN_FILE, TOKEN_PROVIDER, TRANSPORT, CUSTOM_ENDPOINT),
        *(DIALECT, SUPER_STREAM, KEY_ANNOTATION),
    ),
    reading=(CONSUMER_GROUP, EPOCH, FILTER_VALUES, FILTER_VALUE_FROM, MATCH_UNFILTERED),
    writing=_WRITING,
)
