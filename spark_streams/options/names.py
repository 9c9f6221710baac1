"""Defines the name of every option, which no other module spells, and what a format says of its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_streams.position import Position

URL: Final = "url"
CONNECTION_STRING: Final = "connectionString"
STREAM: Final = "stream"
USERNAME: Final = "username"
PASSWORD: Final = "password"
PASSWORD_FILE: Final = "passwordFile"
PASSWORD_PROVIDER: Final = "passwordProvider"
TLS_CA_FILE: Final = "tls.caFile"
TLS_CERT_FILE: Final = "tls.certFile"
TLS_KEY_FILE: Final = "tls.keyFile"
TLS_VERIFY_HOSTNAME: Final = "tls.verifyHostname"
REQUEST_TIMEOUT: Final = "requestTimeout"
LOG_LEVEL: Final = "logLevel"

STARTING_OFFSETS: Final = "startingOffsets"
STARTING_TIMESTAMP: Final = "startingTimestamp"
STARTING_OFFSETS_BY_TIMESTAMP: Final = "startingOffsetsByTimestamp"
STARTING_EXPRESSION: Final = "startingExpression"
STARTING_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
ENDING_OFFSETS: Final = "endingOffsets"
ENDING_TIMESTAMP: Final = "endingTimestamp"
ENDING_OFFSETS_BY_TIMESTAMP: Final = "endingOffsetsByTimestamp"
FAIL_ON_DATA_LOSS: Final = "failOnDataLoss"
MAX_OFFSETS_PER_TRIGGER: Final = "maxOffsetsPerTrigger"
MIN_OFFSETS_PER_TRIGGER: Final = "minOffsetsPerTrigger"
MAX_TRIGGER_DELAY: Final = "maxTriggerDelay"
MIN_PARTITIONS: Final = "minPartitions"
POLL_INTERVAL: Final = "pollInterval"
TIMESTAMP_OVERFLOW: Final = "timestampOverflow"
FILTER: Final = "filter"
PUSHDOWN: Final = "pushdown"

CONSUMER_GROUP: Final = "consumerGroup"
EPOCH: Final = "epoch"

KEY_ANNOTATION: Final = "keyAnnotation"
EXCHANGE: Final = "exchange"
ROUTING_KEY_COLUMN: Final = "routingKeyColumn"

SUPER_STREAM: Final = "superStream"
LOAD_BALANCER: Final = "loadBalancer"
FILTER_VALUES: Final = "filterValues"
MATCH_UNFILTERED: Final = "matchUnfiltered"
FILTER_VALUE_FROM: Final = "filterValueFrom"
CONSUMER_NAME: Final = "consumerName"
SINGLE_ACTIVE_CONSUMER: Final = "singleActiveConsumer"
STORE_OFFSETS: Final = "storeOffsets"
ROUTING: Final = "routing"
FILTER_VALUE_COLUMN: Final = "filterValueColumn"
COMPRESSION: Final = "compression"
SUB_ENTRY_SIZE: Final = "subEntrySize"
MAX_IN_FLIGHT: Final = "maxInFlight"

DIALECT: Final = "dialect"
PARTITIONS: Final = "partitions"
ORDERED: Final = "ordered"
SPOOL_LOCATION: Final = "spoolLocation"
KEY_FIELD: Final = "keyField"
TIMESTAMP_FIELD: Final = "timestampField"
PAGE_SIZE: Final = "pageSize"
MAX_BYTES_PER_TRIGGER: Final = "maxBytesPerTrigger"
MAX_LINE_BYTES: Final = "maxLineBytes"
FILTER_FIELDS: Final = "filterFields"
FEED_FILTER_PREFIX: Final = "filter-"
"""The prefix of the options that name a filter of the feed's own."""

TOKEN: Final = "token"
TOKEN_FILE: Final = "tokenFile"
TOKEN_PROVIDER: Final = "tokenProvider"
TRANSPORT: Final = "transport"
CUSTOM_ENDPOINT: Final = "customEndpoint"

QUERY_NAME: Final = "queryName"
"""The query's name. Spark adds it to the options of a stream's writer; users add it to those of the reader."""
PATH: Final = "path"
"""The option as which Spark passes the argument of ``load`` and ``save``."""

OF_ADDRESSES: Final = (
    USERNAME, PASSWORD, PASSWORD_FILE, PASSWORD_PROVIDER, TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_VERIFY_HOSTNAME,
)  # fmt: skip
"""The options for credentials and TLS of an address."""

OF_EVERY_FORMAT: Final = (URL, STREAM, *OF_ADDRESSES, REQUEST_TIMEOUT, LOG_LEVEL)
"""The options of readers and writers of all formats."""

OF_EVERY_READER: Final = (
    STARTING_OFFSETS, STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_EXPRESSION, STARTING_STRATEGY,
    ENDING_OFFSETS, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, FAIL_ON_DATA_LOSS, MAX_OFFSETS_PER_TRIGGER,
    MIN_OFFSETS_PER_TRIGGER, MAX_TRIGGER_DELAY, MIN_PARTITIONS, POLL_INTERVAL, TIMESTAMP_OVERFLOW,
    FILTER, PUSHDOWN,
)  # fmt: skip
"""The options of readers of all formats, which no writer accepts."""

OF_SPARK: Final = frozenset(
    (PATH, "paths", "checkpointlocation", QUERY_NAME.lower(), "outputmode", "asyncprogresstrackingenabled",
     "asyncprogresstrackingcheckpointintervalms", "__provider__", "name", "sourcename")
)  # fmt: skip
"""The names that Spark itself puts into the map of options, or takes from it; in lower case."""

TABLE_PROVIDER: Final = "provider"
"""The property of a table of the catalog that names its format; no option of ours has that name."""
TABLE_OPTION_PREFIX: Final = "option."
"""The prefix of the table properties that hold the ``OPTIONS (…)`` of ``CREATE TABLE``."""

SECRET: Final = frozenset((URL, CONNECTION_STRING.lower(), PASSWORD.lower(), TOKEN))
"""Options that hold secrets; in lower case."""


@dataclass(frozen=True, eq=False)
class Format:
    """The names and forms of one format's options.

    Args:
        name: the format's name, for messages.
        schemes: the schemes that its urls may have.
        url_example: the text after "is required" when there is no url.
        stream_example: the text after "is required" when there is no stream.
        naming: how to name a stream, for users who gave it to ``load``.
        position: reads one JSON value of a position; its arguments are option, partition and value, and it raises
            OptionError.
        offsets_example: a JSON object of positions, for messages.
        reading: options that only its readers have, without those of ``OF_EVERY_READER``.
        writing: options that only its writers have.
        both: options of its readers and writers, without those of ``OF_EVERY_FORMAT``.
        prefixes: prefixes, in lower case, of options whose names the user completes.
        refused: options that it does not accept, with the reason: options of other formats, or of later versions.
    """

    name: str
    schemes: frozenset[str]
    url_example: str
    stream_example: str
    naming: str
    position: Callable[[str, str, object], Position]
    offsets_example: str
    reading: tuple[str, ...] = ()
    writing: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> tuple[str, ...]:
        """All names that the format accepts."""
        return (*OF_EVERY_FORMAT, *self.both, *OF_EVERY_READER, *self.reading, *self.writing)
