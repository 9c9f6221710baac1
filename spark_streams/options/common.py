"""Reads the options of every format's reader, and defines those of every format's writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from spark_streams.endpoint import Endpoint
from spark_streams.errors import OptionError
from spark_streams.filters.tree import Expression
from spark_streams.options.connection import (
    DEFAULT_LOG_LEVEL,
    DEFAULT_REQUEST_TIMEOUT_MS,
    log_level,
    read_endpoint,
    request_timeout_ms,
)
from spark_streams.options.names import (
    FAIL_ON_DATA_LOSS,
    FILTER,
    MAX_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    MIN_OFFSETS_PER_TRIGGER,
    MIN_PARTITIONS,
    POLL_INTERVAL,
    PUSHDOWN,
    QUERY_NAME,
    STARTING_STRATEGY,
    TIMESTAMP_OVERFLOW,
)
from spark_streams.options.parser import OptionReader
from spark_streams.options.positions import ENDS, PositionRange, read_ending, read_starting, refuse_empty_spans
from spark_streams.options.values import duration_ms, filter_expression
from spark_streams.position import EARLIEST, LATEST

DEFAULT_POLL_INTERVAL_MS: Final = 100
"""An idle default trigger requests the latest offset 50 to 100 times a second; the peer gets ten of these requests."""
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 900_000
"""15 minutes, as in Spark's Kafka source."""


@dataclass(frozen=True)
class SourceOptions:
    """Everything that a reader needs to know; picklable, and safe to print.

    Args:
        format: the format's name.
        endpoint: the peer's endpoint, with credentials and TLS.
        stream: the log's name.
        starting: where reading starts.
        ending: where a batch query stops; an ending position is where reading would continue, so ``{"after": x}``
            includes x and ``{"at": x}`` leaves it out. None in a stream.
        latest_when_no_event: whether a starting timestamp later than every event means the end of the log (True) or
            is an error (False).
        latest_when_no_match: the same for a starting expression that no event matches; False only where the user
            requested an error (E-18).
        fail_on_data_loss: whether missing events fail the query (True) or are logged.
        max_offsets_per_trigger: the most events of a micro-batch; None for no limit.
        min_offsets_per_trigger: events that have to wait before a micro-batch starts, unless ``max_trigger_delay_ms``
            has passed; None to start with any.
        max_trigger_delay_ms: how many milliseconds after the last micro-batch the next one may still wait for
            ``min_offsets_per_trigger``.
        min_partitions: the fewest Spark tasks of a batch, where offsets allow it; None for one task per partition.
        poll_interval_ms: how many milliseconds the peer's answer about its bounds may be reused.
        request_timeout_ms: how many milliseconds to wait for an answer of the peer.
        timestamp_overflow: the treatment of an instant that does not fit Spark's microseconds: ``fail`` fails the
            query, ``null`` makes the cell NULL.
        filter: the condition that is true of every event that becomes a row; None for all events.
        pushdown: whether Spark may push filters of the DataFrame (batch queries).
        log_level: the lowest level of the log lines.
        query_name: the query's name, for log lines; None where the user does not give it: Spark hands it to writers
            only.
    """

    format: str
    endpoint: Endpoint
    stream: str
    starting: PositionRange
    ending: PositionRange | None = None
    latest_when_no_event: bool = False
    latest_when_no_match: bool = True
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    poll_interval_ms: int = DEFAULT_POLL_INTERVAL_MS
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    timestamp_overflow: Literal["fail", "null"] = "fail"
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    filter: Expression | None = None
    pushdown: bool = False
    log_level: str = DEFAULT_LOG_LEVEL
    query_name: str | None = None

    def least_events(self, waited_s: float) -> int | None:
        """Return how many events a micro-batch needs after a wait of so many seconds; None if any number will do."""
        return None if waited_s * 1_000 >= self.max_trigger_delay_ms else self.min_offsets_per_trigger

    @property
    def label(self) -> str:
        """Who reads what, for log lines: the query where its name is known, the format and the stream."""
        return f"{query_label(self.query_name)}{self.format} stream '{self.stream}'"


def query_label(name: str | None) -> str:
    """Return the beginning of a log line about a query: the query's name; empty where the name is not known."""
    return f"query '{name}': " if name else ""


Options = TypeVar("Options", bound=SourceOptions)


def read_source(
    given: OptionReader,
    stream: str,
    kind: type[Options] = SourceOptions,  # type: ignore[assignment]
    *,
    streaming: bool | None,
) -> Options:
    """Read the options that the readers of all formats have; those of a single format keep their defaults.

    Args:
        given: the user's options.
        stream: the stream's name, already read.
        kind: the class of the format's options.
        streaming: whether they are for ``readStream``: the default start is then ``latest``, else ``earliest``; None
            when it is not known yet, so that only options that are wrong in both modes are refused.

    Raises:
        OptionError: a value is bad, options contradict each other, or an option does not suit the mode.
    """
    if streaming:
        given.refuse(ENDS, "a stream has no end: this is for batch queries (spark.read)")
        if given.boolean(PUSHDOWN, False):
            raise OptionError(
                PUSHDOWN, f"Spark pushes filters in batch queries only: say it with '{FILTER}' in a stream"
            )
    elif streaming is False:
        of_triggers = (MAX_OFFSETS_PER_TRIGGER, MIN_OFFSETS_PER_TRIGGER, MAX_TRIGGER_DELAY)
        given.refuse(of_triggers, "a batch query has no triggers: this is for streams")
    starting = read_starting(given, LATEST if streaming else EARLIEST)
    ending = read_ending(given, LATEST if streaming is False else None)
    most, least, delay_ms = _trigger(given)
    strategy = given.word(STARTING_STRATEGY, "error", "latest")
    condition = given.text(FILTER, "such as type = 'order' AND publish_time >= 1585672841000")
    poll = given.integer(POLL_INTERVAL, 0, "milliseconds")
    options = kind(
        format=given.form.name,
        latest_when_no_event=strategy == "latest",
        latest_when_no_match=strategy == "latest" or not given.has(STARTING_STRATEGY),
        timestamp_overflow="null" if given.word(TIMESTAMP_OVERFLOW, "fail", "null") == "null" else "fail",
        endpoint=read_endpoint(given),
        stream=stream,
        starting=starting,
        ending=ending,
        fail_on_data_loss=given.boolean(FAIL_ON_DATA_LOSS, True),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=delay_ms,
        min_partitions=given.integer(MIN_PARTITIONS, 1, "Spark partitions"),
        poll_interval_ms=kind.poll_interval_ms if poll is None else poll,
        request_timeout_ms=request_timeout_ms(given),
        filter=None if condition is None else filter_expression(FILTER, condition),
        pushdown=given.boolean(PUSHDOWN, False),
        log_level=log_level(given),
        query_name=given.get(QUERY_NAME) or None,
    )
    if streaming is False and ending is not None:
        refuse_empty_spans(starting, ending)
    return options


def _trigger(given: OptionReader) -> tuple[int | None, int | None, int]:
    """Return the most and the fewest events of a micro-batch, and the milliseconds it may wait for the fewest."""
    most = given.integer(MAX_OFFSETS_PER_TRIGGER, 1, "events")
    least = given.integer(MIN_OFFSETS_PER_TRIGGER, 1, "events")
    if most is not None and least is not None and least > most:
        raise OptionError(
            MIN_OFFSETS_PER_TRIGGER,
            f"{least} is more than the {most} of '{MAX_OFFSETS_PER_TRIGGER}': no micro-batch could be both",
        )
    delay = given.get(MAX_TRIGGER_DELAY)
    if delay is None:
        return most, least, DEFAULT_MAX_TRIGGER_DELAY_MS
    given.needs(MAX_TRIGGER_DELAY, MIN_OFFSETS_PER_TRIGGER, "nothing waits without it")
    return most, least, duration_ms(MAX_TRIGGER_DELAY, delay)


@dataclass(frozen=True)
class SinkOptions:
    """Everything that a writer needs to know; picklable, and safe to print.

    Args:
        endpoint: the peer's endpoint, with credentials and TLS.
        stream: the log that all rows go to; None when each row names its own in column ``stream``.
        request_timeout_ms: how many milliseconds to wait for credit, and for the outcome of a delivery.
        log_level: as ``SourceOptions`` has it.
    """

    endpoint: Endpoint
    stream: str | None
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    log_level: str = DEFAULT_LOG_LEVEL
