"""Options as Spark hands them over -> frozen dataclasses. The only file that spells option names.

Names are compared without regard to case, as Spark's own are. An unknown one is an error that suggests the nearest,
one that belongs to a later version is an error that says so, and Spark's own (``checkpointLocation`` …) pass; the
argument of ``load`` and ``save``, which comes as ``path``, is refused, as it would be dropped without a word.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_streams.endpoint import Endpoint, Secret, Tls, parse_url, redact_url
from spark_streams.errors import OptionError
from spark_streams.option_values import boolean, expression, instant_ms, integer, positions_json
from spark_streams.position import EARLIEST, LATEST, AtTime, Matching, Position

__all__ = ["HiddenOptions", "SinkOptions", "SourceOptions", "Span", "parse_sink_options", "parse_source", "validate"]

URL: Final = "url"
STREAM: Final = "stream"
USERNAME: Final = "username"
PASSWORD: Final = "password"
TLS_CA_FILE: Final = "tls.caFile"
TLS_CERT_FILE: Final = "tls.certFile"
TLS_KEY_FILE: Final = "tls.keyFile"
TLS_VERIFY_HOSTNAME: Final = "tls.verifyHostname"
REQUEST_TIMEOUT: Final = "requestTimeout"

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
MIN_PARTITIONS: Final = "minPartitions"
CONSUMER_GROUP: Final = "consumerGroup"
EPOCH: Final = "epoch"
POLL_INTERVAL: Final = "pollInterval"
TIMESTAMP_OVERFLOW: Final = "timestampOverflow"

COMMON: Final = (
    URL, STREAM, USERNAME, PASSWORD, TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_VERIFY_HOSTNAME, REQUEST_TIMEOUT,
)  # fmt: skip
SOURCE_ONLY: Final = (
    STARTING_OFFSETS, STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_EXPRESSION, STARTING_STRATEGY,
    ENDING_OFFSETS, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, FAIL_ON_DATA_LOSS, MAX_OFFSETS_PER_TRIGGER,
    MIN_PARTITIONS, CONSUMER_GROUP, EPOCH, POLL_INTERVAL, TIMESTAMP_OVERFLOW,
)  # fmt: skip
KNOWN: Final = COMMON + SOURCE_ONLY

LATER: Final = {
    "filter": "amqp-events does not take it in this version; filter the DataFrame instead",
    "pushdown": "amqp-events does not take it in this version; filters of the DataFrame are applied by Spark",
    "token": f"amqp-events does not take it in this version; use '{USERNAME}' and '{PASSWORD}'",
}
"""Options of the other formats or of later versions: never accepted silently."""

OF_SPARK: Final = frozenset(
    ("path", "paths", "checkpointlocation", "queryname", "outputmode", "asyncprogresstrackingenabled",
     "asyncprogresstrackingcheckpointintervalms", "__provider__", "name", "sourcename")
)  # fmt: skip
"""What Spark itself puts into, or takes from, the same map; in lower case."""

SECRET: Final = frozenset((URL, PASSWORD.lower(), "token"))
"""Options that hold secrets; in lower case."""

MAX_INT64: Final = 2**63 - 1
DEFAULT_POLL_INTERVAL_MS: Final = 100
"""An idle default trigger asks for the latest offset 50 to 100 times a second; the peer is asked ten times."""
DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True)
class Span:
    """One side of what is to be read: a position for all partitions, or one for each.

    Args:
        everywhere: the position in every partition, or None when ``each`` says it.
        each: partition identifier to position, complete: every partition of the stream has to be there.
        option: the option that said so, for messages.
    """

    everywhere: Position | None
    each: Mapping[str, Position] = field(default_factory=dict, hash=False)
    option: str = STARTING_OFFSETS


@dataclass(frozen=True)
class SourceOptions:
    """Everything that a reader needs to know; picklable, and safe to print.

    Args:
        endpoint: where the peer is and how to get in.
        stream: the log's name.
        starting: where reading starts.
        ending: where a batch query stops; an ending position is where reading would go on, so ``{"after": x}``
            includes x and ``{"at": x}`` leaves it out. None in a stream.
        latest_when_no_event: what a starting timestamp later than every event means: True the end of the log, False
            an error.
        fail_on_data_loss: whether missing events fail the query (True) or are logged.
        max_offsets_per_trigger: events per micro-batch, at most; None for no limit.
        min_partitions: Spark tasks per batch, at least, where offsets allow it; None for one a partition.
        consumer_group: the group that the links join, or None.
        epoch: this consumer's epoch in the group, or None.
        poll_interval_ms: how long what the peer said about its bounds may be reused.
        request_timeout_ms: how long to wait for an answer of the peer.
        timestamp_overflow: what becomes of an instant that does not fit Spark's microseconds: ``fail`` fails the
            query, ``null`` makes the cell NULL.
    """

    endpoint: Endpoint
    stream: str
    starting: Span
    ending: Span | None = None
    latest_when_no_event: bool = False
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    consumer_group: str | None = None
    epoch: int | None = None
    poll_interval_ms: int = DEFAULT_POLL_INTERVAL_MS
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    timestamp_overflow: Literal["fail", "null"] = "fail"


@dataclass(frozen=True)
class SinkOptions:
    """Everything that a writer needs to know; picklable, and safe to print.

    Args:
        endpoint: where the peer is and how to get in.
        stream: the log that all rows go to; None when each row names its own in column ``stream``.
        request_timeout_ms: how long to wait for credit, and for the outcome of a delivery.
    """

    endpoint: Endpoint
    stream: str | None
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS


class HiddenOptions(Mapping[str, str]):
    """Options as Spark hands them over, safe to print; a pickle of them holds no secret in the clear.

    Args:
        options: name to value.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name: Secret(value) if name.lower() in SECRET else value for name, value in options.items()}

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        return value.reveal() if isinstance(value, Secret) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {n: redact_url(self[n]) if n.lower() == URL else str(value) for n, value in self._values.items()}
        return f"HiddenOptions({shown})"


def validate(options: Mapping[str, str], *, reading: bool = False) -> None:
    """Check names, values and conflicts of all options that are there.

    Args:
        options: as Spark hands them over.
        reading: whether they are known to be a reader's, which needs a stream; a writer whose rows name their streams
            does not.

    Raises:
        OptionError: the first fault found, in the order of this file.
    """
    given = _Given(options)
    _endpoint(given)
    stream = _stream(given) if reading else _optional_stream(given)
    _timeout(given)
    _source(given, stream or "", None, None)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read the options of a reader.

    Args:
        options: as Spark hands them over.
        streaming: whether they are for ``readStream``: the default start is then ``latest``, else ``earliest``.

    Raises:
        OptionError: an option that is unknown, has a bad value, contradicts another, or does not suit the mode.
    """
    given = _Given(options)
    given.no_path()
    if streaming:
        for name in (ENDING_OFFSETS, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP):
            if given.has(name):
                raise OptionError(name, "a stream has no end: this is for batch queries (spark.read)")
        return _source(given, _stream(given), LATEST, None)
    if given.has(MAX_OFFSETS_PER_TRIGGER):
        raise OptionError(MAX_OFFSETS_PER_TRIGGER, "a batch query has no triggers: this is for streams")
    parsed = _source(given, _stream(given), EARLIEST, LATEST)
    _refuse(parsed.starting, LATEST, "a batch query that starts at the latest event has nothing to read")
    if parsed.ending is not None:
        _refuse(parsed.ending, EARLIEST, "a batch query that ends at the earliest event has nothing to read")
        for partition, position in parsed.ending.each.items():
            if isinstance(position, Matching):
                raise OptionError(
                    parsed.ending.option, f"partition '{partition}': an expression says where to start only"
                )
    return parsed


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a writer.

    Raises:
        OptionError: an option that is unknown, is for reading only, has a bad value, or contradicts another.
    """
    given = _Given(options)
    given.no_path()
    for name in SOURCE_ONLY:
        if given.has(name):
            raise OptionError(name, "this is for reading; a sink does not take it")
    return SinkOptions(_endpoint(given), _optional_stream(given), _timeout(given))


class _Given:
    """The options that are there, by lower-case name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in KNOWN}
        later = {name.lower(): name for name in LATER}
        for name in options:
            lower = name.lower()
            if lower in known or lower in OF_SPARK:
                continue
            if lower in later:
                raise OptionError(later[lower], LATER[later[lower]])
            close = difflib.get_close_matches(lower, known, n=1, cutoff=0.5)
            hint = f"did you mean '{known[close[0]]}'?" if close else f"amqp-events knows {', '.join(KNOWN)}"
            raise OptionError(name, f"amqp-events has no such option; {hint}")

    def has(self, name: str) -> bool:
        return self._values.get(name.lower()) is not None

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def no_path(self) -> None:
        """Refuse ``load("orders")`` and ``save("orders")``: their argument would be dropped without a word."""
        if (self.get("path") or "").strip():
            raise OptionError("path", f"load and save take no argument here: name the log with option '{STREAM}'")

    def required(self, name: str, example: str) -> str:
        value = self.get(name)
        if value is None or not value.strip():
            raise OptionError(name, f"is required: {example}")
        return value

    def one_of(self, *names: str) -> str | None:
        """Return the only one of ``names`` that is there, or None."""
        there = [name for name in names if self.has(name)]
        if len(there) > 1:
            raise OptionError(there[1], f"cannot be used together with '{there[0]}': give one of them")
        return there[0] if there else None

    def integer(self, name: str, default: int | None, low: int, unit: str) -> int | None:
        value = self.get(name)
        return default if value is None else integer(name, value, low=low, high=MAX_INT64, unit=unit)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else boolean(name, value)


def _endpoint(given: _Given) -> Endpoint:
    url = given.required(URL, "such as amqp://localhost:5672 or amqps://user:password@host")
    names = [name for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_VERIFY_HOSTNAME) if given.has(name)]
    if names and url.strip().lower().startswith("amqp://"):
        url = "amqps" + url.strip()[4:]  # an option of TLS asks for TLS, on its default port when the url has none
    endpoint = parse_url(url)
    if given.has(USERNAME) or given.has(PASSWORD):
        if endpoint.username is not None:
            name = USERNAME if given.has(USERNAME) else PASSWORD
            raise OptionError(name, f"cannot be used together with credentials in '{URL}': give one of them")
        if not given.has(USERNAME):
            raise OptionError(PASSWORD, f"needs '{USERNAME}' beside it")
        password = given.get(PASSWORD)
        endpoint = endpoint.with_credentials(given.get(USERNAME), None if password is None else Secret(password))
    if endpoint.username is not None and endpoint.password is None:
        raise OptionError(USERNAME if given.has(USERNAME) else URL, f"a user name needs a password, in '{PASSWORD}'")
    if endpoint.tls is None:
        return endpoint
    if given.has(TLS_KEY_FILE) and not given.has(TLS_CERT_FILE):
        raise OptionError(TLS_KEY_FILE, f"needs '{TLS_CERT_FILE}' beside it")
    for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE):
        path = given.get(name)
        if path is not None and not os.path.isfile(path):
            raise OptionError(name, f"'{path}' is not a file that can be found here, expected a PEM file")
    return endpoint.with_tls(
        Tls(
            given.get(TLS_CA_FILE),
            given.get(TLS_CERT_FILE),
            given.get(TLS_KEY_FILE),
            given.boolean(TLS_VERIFY_HOSTNAME, True),
        )
    )


def _stream(given: _Given) -> str:
    return given.required(STREAM, "the name of the log, such as orders").strip()


def _optional_stream(given: _Given) -> str | None:
    return _stream(given) if given.has(STREAM) else None


def _timeout(given: _Given) -> int:
    return given.integer(REQUEST_TIMEOUT, None, 1, "milliseconds") or DEFAULT_REQUEST_TIMEOUT_MS


def _source(given: _Given, stream: str, start: Position | None, end: Position | None) -> SourceOptions:
    starting = _starting(given, start)
    ending = _span(given, ENDING_OFFSETS, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, end)
    strategy = (given.get(STARTING_STRATEGY) or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(STARTING_STRATEGY, f"'{strategy}' is neither 'error' nor 'latest'")
    overflow = (given.get(TIMESTAMP_OVERFLOW) or "fail").strip().lower()
    if overflow not in ("fail", "null"):
        raise OptionError(TIMESTAMP_OVERFLOW, f"'{overflow}' is neither 'fail' nor 'null'")
    group, epoch = given.get(CONSUMER_GROUP), given.integer(EPOCH, None, 0, "an epoch")
    if group is not None and not group.strip():
        raise OptionError(CONSUMER_GROUP, "is empty, expected the name of a group")
    if epoch is not None and group is None:
        raise OptionError(EPOCH, f"needs '{CONSUMER_GROUP}' beside it: an epoch belongs to a group")
    if group is not None and given.has(MIN_PARTITIONS):
        raise OptionError(
            MIN_PARTITIONS,
            f"cannot be used together with '{CONSUMER_GROUP}': a group reads a partition over one link at a time",
        )
    poll = given.integer(POLL_INTERVAL, DEFAULT_POLL_INTERVAL_MS, 0, "milliseconds")
    return SourceOptions(
        endpoint=_endpoint(given),
        stream=stream,
        starting=starting or Span(EARLIEST),
        ending=ending,
        latest_when_no_event=strategy == "latest",
        fail_on_data_loss=given.boolean(FAIL_ON_DATA_LOSS, True),
        max_offsets_per_trigger=given.integer(MAX_OFFSETS_PER_TRIGGER, None, 1, "events"),
        min_partitions=given.integer(MIN_PARTITIONS, None, 1, "Spark partitions"),
        consumer_group=group,
        epoch=epoch,
        poll_interval_ms=DEFAULT_POLL_INTERVAL_MS if poll is None else poll,
        request_timeout_ms=_timeout(given),
        timestamp_overflow="null" if overflow == "null" else "fail",
    )


def _starting(given: _Given, default: Position | None) -> Span | None:
    others = (STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_OFFSETS)
    if given.one_of(*others, STARTING_EXPRESSION) == STARTING_EXPRESSION:
        text = given.required(STARTING_EXPRESSION, "such as d.event-streams-timestamp >= 1585672841000")
        return Span(expression(STARTING_EXPRESSION, text), option=STARTING_EXPRESSION)
    return _span(given, STARTING_OFFSETS, STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, default)


def _span(given: _Given, offsets: str, timestamp: str, by_timestamp: str, default: Position | None) -> Span | None:
    name = given.one_of(timestamp, by_timestamp, offsets)
    if name is None:
        return None if default is None else Span(default, option=offsets)
    text = given.get(name) or ""
    if name == timestamp:
        return Span(AtTime(instant_ms(name, text)), option=name)
    if name == offsets and text.strip().lower() in ("earliest", "latest"):
        return Span(EARLIEST if text.strip().lower() == "earliest" else LATEST, option=name)
    return Span(None, positions_json(name, text, timestamps=name == by_timestamp), name)


def _refuse(span: Span, word: Position, why: str) -> None:
    where = [partition for partition, position in span.each.items() if position == word]
    if span.everywhere == word or where:
        partitions = f" (partition {', '.join(repr(p) for p in where)})" if where else ""
        raise OptionError(span.option, f"'{word}' cannot be used here{partitions}: {why}")
