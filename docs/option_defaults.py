"""What a page says where an option is not given: always from what the code has then.

An option that has a value without being given shows that value. One that has none shows the words that stand here for
"nothing", and only as long as the code has nothing there: a default that the code gets takes their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_streams.client.rabbitmq.errors import DEFAULT_LOGIN
from spark_streams.endpoint import with_tls_scheme
from spark_streams.errors import OptionError
from spark_streams.options.names import (
    ENDING_OFFSETS,
    ENDING_OFFSETS_BY_TIMESTAMP,
    ENDING_TIMESTAMP,
    FILTER,
    FILTER_VALUE_FROM,
    FILTER_VALUES,
    KEY_FIELD,
    MATCH_UNFILTERED,
    MAX_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    MIN_OFFSETS_PER_TRIGGER,
    MIN_PARTITIONS,
    PASSWORD,
    STARTING_EXPRESSION,
    STARTING_OFFSETS,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_STRATEGY,
    STARTING_TIMESTAMP,
    STREAM,
    SUPER_STREAM,
    URL,
    USERNAME,
)

__all__ = ["default_of"]

Parse = Callable[..., Any]
"""Reads options; ``streaming`` says whether those of a stream, where it is a reader's."""

_FIELDS: Final = {
    URL: "endpoint",
    USERNAME: "endpoint.username",
    **dict.fromkeys((PASSWORD, "passwordFile", "passwordProvider"), "endpoint.password"),
    **dict.fromkeys(("token", "tokenFile", "tokenProvider"), "endpoint.token"),
    "connectionString": "endpoint.password",
    "transport": "endpoint.transport",
    "customEndpoint": "endpoint.via",
    "tls.caFile": "endpoint.tls.ca_file",
    "tls.certFile": "endpoint.tls.cert_file",
    "tls.keyFile": "endpoint.tls.key_file",
    "tls.verifyHostname": "endpoint.tls.verify_hostname",
    MAX_TRIGGER_DELAY: "max_trigger_delay_ms",
    "filter-<name>": "filters",
    "loadBalancer": "endpoint.load_balancer",
}
"""Where an option that is not called as it is read ends up."""
_STARTS: Final = (STARTING_OFFSETS, STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_EXPRESSION)
_ENDS: Final = (ENDING_OFFSETS, ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP)
_NOTHING: Final[Mapping[str, str]] = {
    FILTER: "all events",
    FILTER_VALUES: "all events",
    "filter-<name>": "all events",
    "filterFields": "what discovery says",
    "filterValueColumn": "none",
    "filterValueFrom": "not known; required with `filterValues`",
    MAX_OFFSETS_PER_TRIGGER: "no limit",
    MIN_OFFSETS_PER_TRIGGER: "any",
    MIN_PARTITIONS: "one task a partition",
    "pageSize": "the feed's",
    "partitions": "required for `v1`",
    "spoolLocation": "a temporary folder",
    "tls.caFile": "the system's authorities",
}
"""What it means that an option has no value; nothing is said of the others."""


def default_of(name: str, least: Mapping[str, str], parse: Parse, *, reads: bool) -> str:
    """Return what a page says of an option that is not given.

    Args:
        name: the option.
        least: what has to be given, so that the rest has its defaults.
        parse: reads the options.
        reads: whether they are a reader's.
    """
    if name in (STREAM, SUPER_STREAM):
        return _stream(name, least, parse)
    if name in least and _is_required(name, {each: least[each] for each in least if each != name}, parse):
        return "required"
    if name in _STARTS:
        return _start(name, least, parse)
    if name in _ENDS:
        ending = parse(least, streaming=False).ending
        return _code(str(ending.everywhere)) if ending is not None and ending.option == name else ""
    parsed = parse({**least, URL: with_tls_scheme(least[URL])})
    if name == STARTING_STRATEGY:
        times, expressions = (_word(parsed.latest_when_no_event), _word(parsed.latest_when_no_match))
        return times if times == expressions else f"{times} for instants, {expressions} for an expression"
    if name == MATCH_UNFILTERED:
        place = {**least, FILTER_VALUE_FROM: "key"}
        beside = {each: parse({**place, each: text}) for each, text in ((FILTER, "key = 'a'"), (FILTER_VALUES, "a"))}
        return ", ".join(f"{_code(parsed.match_unfiltered)} beside {_code(each)}" for each, parsed in beside.items())
    value = parsed
    for field in _FIELDS.get(name, re.sub("([A-Z])", lambda found: "_" + found[1].lower(), name)).split("."):
        value = getattr(value, f"{field}_ms") if hasattr(value, f"{field}_ms") else getattr(value, field)
    if value is None and name in (USERNAME, PASSWORD) and least[URL].startswith("rabbitmq"):
        return _code(DEFAULT_LOGIN[name == PASSWORD])
    if value is None or value == ():
        return "column `key`" if name == KEY_FIELD and not reads else _NOTHING.get(name, "")
    if name == MAX_TRIGGER_DELAY and value % 60_000 == 0:
        return _code(f"{value // 60_000}m")
    return _code(value)


def _stream(name: str, least: Mapping[str, str], parse: Parse) -> str:
    without = {each: value for each, value in least.items() if each != STREAM}
    if _is_required(STREAM, without, parse):
        both = name == SUPER_STREAM or _takes(SUPER_STREAM, without, parse)
        return "one of them is required" if both else "required"
    return "column `stream`" if parse(without).stream is None else "the last part of the url's path"


def _start(name: str, least: Mapping[str, str], parse: Parse) -> str:
    stream, batch = parse(least, streaming=True).starting, parse(least, streaming=False).starting
    there = [
        (f"{_code(str(span.everywhere))} in a {mode}" if stream.everywhere != batch.everywhere else "")
        or _code(str(span.everywhere))
        for span, mode in ((stream, "stream"), (batch, "batch"))
        if span.option == name
    ]
    return ", ".join(dict.fromkeys(there))


def _is_required(name: str, without: Mapping[str, str], parse: Parse) -> bool:
    try:
        parse(without)
    except OptionError as fault:
        return fault.option == name and "is required" in fault.problem
    return False


def _takes(name: str, given: Mapping[str, str], parse: Parse) -> bool:
    try:
        parse({**given, name: "orders"})
    except OptionError:
        return False
    return True


def _word(latest: bool) -> str:
    return _code("latest" if latest else "error")


def _code(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
