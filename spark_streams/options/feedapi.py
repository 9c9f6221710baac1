"""Parses the options of format ``feedapi``: feeds over HTTP, FeedAPI version 2 and ZeroEventHub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast
from urllib.parse import unquote, urlsplit

from spark_streams import filters
from spark_streams.endpoint import HTTP_SCHEMES, Endpoint
from spark_streams.errors import FilterError, OptionError
from spark_streams.filters.row_columns import columns_needed
from spark_streams.options.common import SourceOptions, read_source
from spark_streams.options.connection import (
    DEFAULT_LOG_LEVEL,
    DEFAULT_REQUEST_TIMEOUT_MS,
    log_level,
    read_endpoint,
    request_timeout_ms,
)
from spark_streams.options.names import (
    CONSUMER_GROUP,
    DIALECT,
    ENDING_OFFSETS_BY_TIMESTAMP,
    ENDING_TIMESTAMP,
    EPOCH,
    FEED_FILTER_PREFIX,
    FILTER,
    FILTER_FIELDS,
    KEY_FIELD,
    MAX_BYTES_PER_TRIGGER,
    MAX_LINE_BYTES,
    OF_ADDRESSES,
    ORDERED,
    PAGE_SIZE,
    PARTITIONS,
    SPOOL_LOCATION,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_STRATEGY,
    STARTING_TIMESTAMP,
    STREAM,
    TIMESTAMP_FIELD,
    TOKEN,
    TOKEN_FILE,
    TOKEN_PROVIDER,
    URL,
)
from spark_streams.options.parser import Format, OptionReader
from spark_streams.options.positions import read_position
from spark_streams.position import At, AtTime, Matching, Position

DEFAULT_MAX_BYTES_PER_TRIGGER: Final = 256 << 20
"""Bytes of pages that a micro-batch takes from the spool; as many bytes are read ahead for the next micro-batch."""
DEFAULT_POLL_INTERVAL_MS: Final = 1_000
"""Longer than with brokers: each poll is a request to an HTTP service, for each partition."""
DEFAULT_MAX_LINE_BYTES: Final = 64 << 20
MAX_PARTITIONS: Final = 32_768
"""Partition ids are 0 to 32767 (FeedAPI, "partitions")."""

BY_TIME: Final = (
    STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_STRATEGY, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP,
)  # fmt: skip
"""The options of other formats' readers that feeds do not support: cursors have no times."""

_FIELDS_EXAMPLE: Final = "subject=/subject, customer=key"
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)+")


@dataclass(frozen=True)
class FeedSourceOptions(SourceOptions):
    """Everything that a reader of feeds needs to know; picklable, and safe to print.

    Args:
        dialect: the dialect of the feed; ``auto`` finds it out from the feed.
        partitions: number of partitions of a version 1 feed, which does not say it; None for version 2.
        ordered: whether partitions that replace a closed one wait until that one is fully read.
        spool_location: the folder that keeps pages until their micro-batch is committed, as a path or a URI that Arrow
            knows; None for a temporary folder.
        key_field: JSON pointer to the value of ``key``; None for the key that the feed writes beside the event, if any.
        timestamp_field: JSON pointer to the value of ``timestamp``; None for null.
        page_size: the number of events that each request asks for; None asks for no number. A feed may ignore it.
        max_bytes_per_trigger: about how many bytes of pages a micro-batch has.
        max_line_bytes: the most bytes of one line.
        poll_interval_ms: as in ``SourceOptions``, with a longer default.
        filters: names and values of the feed's own filters, which the feed applies.
        filter_fields: the feed's own filters that ``filter`` may be pushed to, each with what it compares: ``key``, or
            a JSON pointer. An empty dict pushes nothing; None uses what discovery declares.
    """

    dialect: Literal["auto", "v1", "v2a", "v2b"] = "auto"
    partitions: int | None = None
    ordered: bool = True
    spool_location: str | None = None
    key_field: str | None = None
    timestamp_field: str | None = None
    page_size: int | None = None
    max_bytes_per_trigger: int = DEFAULT_MAX_BYTES_PER_TRIGGER
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    poll_interval_ms: int = DEFAULT_POLL_INTERVAL_MS
    filters: tuple[tuple[str, str], ...] = field(default=())
    filter_fields: Mapping[str, str] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class FeedSinkOptions:
    """Everything that a writer of feeds needs to know; picklable, and safe to print.

    Args:
        endpoint: the feed's address at a server of the log, with credentials and TLS; None when ``data_dir`` is given.
        data_dir: the data directory of a log on this machine, as an absolute path; None when ``endpoint`` is given.
        stream: the feed's name.
        key_field: JSON pointer to the value that becomes an event's key; None takes column ``key``.
        request_timeout_ms: how many milliseconds the server may be silent, or another process may keep the directory
            open.
        log_level: as ``SourceOptions`` has it.
    """

    endpoint: Endpoint | None
    data_dir: str | None
    stream: str
    key_field: str | None = None
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    log_level: str = DEFAULT_LOG_LEVEL


def validate(options: Mapping[str, str], *, reading: bool = False) -> None:
    """Check names, values and conflicts of all options that are there.

    Args:
        options: as Spark hands them over.
        reading: whether the options are known to be a reader's.

    Raises:
        OptionError: the first fault found.
    """
    given = OptionReader(options, FORMAT, reading=reading or None)
    if reading or _data_dir(given.get(URL) or "") is None:
        _source(given, None)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> FeedSourceOptions:
    """Read the options of a reader, as Spark hands them over; ``streaming`` says whether they are for ``readStream``.

    Raises:
        OptionError: as for ``OptionReader`` and ``read_source``; or one of this format's own options has a bad value.
    """
    given = OptionReader(options, FORMAT, reading=True)
    if not streaming:
        given.refuse(
            (SPOOL_LOCATION, MAX_BYTES_PER_TRIGGER, ORDERED),
            "a batch query reads all partitions at once and keeps nothing: this is for streams",
        )
    return _source(given, streaming)


def _source(given: OptionReader, streaming: bool | None) -> FeedSourceOptions:
    """Read a reader's options; ``streaming`` as for ``read_source``.

    Raises:
        OptionError: as for ``parse_source``.
    """
    given.refuse(
        BY_TIME, "feedapi cannot seek by time, as feeds have cursors only: start 'earliest', 'latest' or after a cursor"
    )
    name = _name(given)
    common = read_source(given, name, FeedSourceOptions, streaming=streaming)
    dialect = given.word(DIALECT, "auto", "v1", "v2a", "v2b")
    count = given.integer(PARTITIONS, 1, "partitions", high=MAX_PARTITIONS)
    if dialect == "v1" and count is None:
        raise OptionError(PARTITIONS, "is required with dialect v1: a version 1 feed does not tell how many it has")
    if dialect in ("v2a", "v2b") and count is not None:
        raise OptionError(PARTITIONS, f"is for version 1 feeds: with dialect {dialect} the feed tells its partitions")
    filters = given.starting_with(FEED_FILTER_PREFIX)
    if "" in filters:
        raise OptionError(FEED_FILTER_PREFIX, "names no filter, expected such as filter-subject")
    if filters and dialect in ("v1", "v2b"):
        raise OptionError(FEED_FILTER_PREFIX + next(iter(filters)), f"dialect {dialect} has no filters; v2a has")
    options = replace(
        common,
        dialect=cast(Any, dialect),
        partitions=count,
        ordered=given.boolean(ORDERED, True),
        spool_location=given.text(SPOOL_LOCATION, "a folder, as a path or a URI"),
        key_field=_pointer(given, KEY_FIELD),
        timestamp_field=_pointer(given, TIMESTAMP_FIELD),
        page_size=given.integer(PAGE_SIZE, 1, "events"),
        max_bytes_per_trigger=given.integer(MAX_BYTES_PER_TRIGGER, 1, "bytes") or DEFAULT_MAX_BYTES_PER_TRIGGER,
        max_line_bytes=given.integer(MAX_LINE_BYTES, 1, "bytes") or DEFAULT_MAX_LINE_BYTES,
        filters=tuple(filters.items()),
        filter_fields=_filter_fields(given, dialect, pushdown=common.pushdown),
    )
    _check_references(options)
    return options


def _filter_fields(given: OptionReader, dialect: str, *, pushdown: bool) -> dict[str, str] | None:
    """Return the fields that the feed's filters compare, as the user declares them."""
    text = given.text(FILTER_FIELDS, f"such as {_FIELDS_EXAMPLE}")
    if text is None:
        return None
    if not given.has(FILTER) and not pushdown:
        raise OptionError(FILTER_FIELDS, f"needs '{FILTER}' beside it: without one there is nothing to push")
    if text.strip().lower() == "none":
        return {}
    if dialect in ("v1", "v2b"):
        raise OptionError(FILTER_FIELDS, f"dialect {dialect} has no filters; v2a has")
    found: dict[str, str] = {}
    for pair in text.split(","):
        name, sign, field_text = (part.strip() for part in pair.partition("="))
        if not name or not sign or not (field_text == "key" or _POINTER.fullmatch(field_text)):
            raise OptionError(
                FILTER_FIELDS,
                f"'{pair.strip()}' is not the name of a filter, '=' and what it compares, which is key or a JSON "
                f"pointer: expected such as {_FIELDS_EXAMPLE}, or none",
            )
        if name in found:
            raise OptionError(FILTER_FIELDS, f"filter '{name}' is there twice")
        found[name] = field_text
    return found


def _check_references(options: FeedSourceOptions) -> None:
    """Refuse filters and expressions that refer to something that a feed's rows do not have.

    Raises:
        OptionError: a time without ``timestampField``, a malformed pointer, or a start that refers to the offset.
    """
    starts = [options.starting.everywhere, *options.starting.each.values()]
    conditions = [(FILTER, options.filter)] if options.filter is not None else []
    conditions += [(options.starting.option, filters.read_filter(s.text)) for s in starts if isinstance(s, Matching)]
    for option, condition in conditions:
        try:
            needed = columns_needed(condition, feed=True)
        except FilterError as fault:
            raise OptionError(option, str(fault)) from None
        if "timestamp" in needed and options.timestamp_field is None:
            raise OptionError(
                option,
                f"looks at a time, and a feed's events have one only where '{TIMESTAMP_FIELD}' says: give that as well",
            )
        if option != FILTER and "offset" in needed:
            raise OptionError(
                option, "looks at the offset, and cursors have no order: start after one with 'startingOffsets'"
            )


def parse_sink(options: Mapping[str, str]) -> FeedSinkOptions:
    """Read the options of a writer.

    Raises:
        OptionError: an option that is unknown, is for reading only, has a bad value, or contradicts another.
    """
    given = OptionReader(options, FORMAT, reading=False)
    for name in given.starting_with(FEED_FILTER_PREFIX):
        raise OptionError(FEED_FILTER_PREFIX + name, "this is for reading; a sink does not take it")
    url = given.required(
        URL, "a feed's own address, such as http://localhost:8080/orders, or the data directory of a log"
    )
    data_dir = _data_dir(url)
    endpoint = None
    if data_dir is None:
        endpoint = read_endpoint(given)
        stream = _name(given)
        if not endpoint.path.strip("/"):
            raise OptionError(URL, f"{endpoint} names no feed, expected such as {endpoint.url.rstrip('/')}/orders")
    else:
        of_addresses = (TOKEN, TOKEN_FILE, TOKEN_PROVIDER, *OF_ADDRESSES)
        given.refuse(of_addresses, f"is for http addresses, and '{URL}' is a data directory: leave it out")
        stream = given.required(STREAM, f"the name of the stream, as '{URL}' is the data directory of a log").strip()
    timeout_ms = request_timeout_ms(given)
    return FeedSinkOptions(endpoint, data_dir, stream, _pointer(given, KEY_FIELD), timeout_ms, log_level(given))


def _data_dir(url: str) -> str | None:
    """Return the absolute path of a url that is a path or ``file:``, None for any other."""
    url = url.strip()
    if url.lower().startswith("file:"):
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise OptionError(URL, f"'{url}' is not on this machine, expected such as file:///var/lib/log")
        return unquote(parts.path)
    return os.path.abspath(url) if url and "://" not in url else None


def _name(given: OptionReader) -> str:
    """Return the feed's name: option ``stream``, or the last segment of the url's path."""
    named = given.text(STREAM, "a name for the feed")
    if named is not None:
        return named
    path = re.sub(r"[?#].*", "", (given.get(URL) or "").partition("://")[2]).rstrip("/")
    return path.rpartition("/")[2] if "/" in path else path.rpartition("@")[2]


def _pointer(given: OptionReader, name: str) -> str | None:
    text = given.text(name, "a JSON pointer such as /customer/id")
    if text is not None and not _POINTER.fullmatch(text):
        raise OptionError(name, f"'{text}' is no JSON pointer (RFC 6901), expected such as /customer/id")
    return text


def _position(option: str, partition: str, value: object) -> Position:
    """Read a position of a feed: ``earliest``, ``latest``, or after a cursor."""
    expected = (
        f'{value!r} is no position in a feed: expected "earliest", "latest", {{"expression": text}}, or a cursor as a '
        'string or as {"after": cursor}; reading starts after it'
    )
    position = read_position(option, partition, value, expected)
    if isinstance(position, (At, AtTime)):
        raise OptionError(option, f"partition '{partition}': {expected}")
    return position


FORMAT: Final = Format(
    name="feedapi",
    schemes=HTTP_SCHEMES,
    url_example="such as https://service/myfeed, the feed's own address",
    stream_example="a name for the feed; its address goes into option 'url'",
    naming="the feed's address goes into option 'url'",
    position=_position,
    offsets_example='{"0": "earliest", "1": "latest", "2": "a cursor"}',
    both=(TOKEN, TOKEN_FILE, TOKEN_PROVIDER, KEY_FIELD),
    reading=(
        DIALECT, PARTITIONS, ORDERED, SPOOL_LOCATION, TIMESTAMP_FIELD, PAGE_SIZE, MAX_BYTES_PER_TRIGGER, MAX_LINE_BYTES,
        FILTER_FIELDS,
    ),
    prefixes=(FEED_FILTER_PREFIX,),
    refused={
        CONSUMER_GROUP: "feeds have no consumer groups; leave it out",
        EPOCH: "feeds have no consumer groups; leave it out",
    },
)  # fmt: skip
