"""Decode and encode the arguments of a fetch, in the three dialects, as the pairs of a URL's query.

::

    v1    n=4&cursor0=…&pagesizehint=1000&headers=ce_id,ce_type
    v2a   partition=0&cursor=…&pageSizeHint=1000          or  &stream=5000, &stream=y      and  &filter-subject=…
    v2b   token=…&partition=0&cursor=…&pagesizehint=1000  and  &event-types=a;b  or  &skip-event-types=a;b

Pairs are names and values before percent-encoding: the sender must encode every reserved character, ``;`` too
(C-04; Go drops arguments that hold a raw one).

Spec: feedapi-spec SPEC.md, "Fetch call"; zeroeventhub SPEC.md; docs/specifications.md, P-20 to P-40,
P-50 to P-52, F-20, F-23, F-28 to F-30.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.feed.discovery import MAX_PARTITION_ID
from spark_streams.wire.feed.line import Dialect

FIRST: Final = "_first"
"""The cursor before a partition's first event."""
LAST: Final = "_last"
"""The cursor after a partition's last event, or around it (F-5)."""
ENDLESS: Final = 0
"""The ``Fetch.stream_ms`` of a response without end, ``stream=y``."""
MAX_NUMBER: Final = 2**31 - 1
"""The highest page size, count and duration that are accepted."""

_NUMBER: Final = re.compile("[0-9]{1,10}")
FILTER_PREFIX: Final = "filter-"
"""The prefix of the names of v2a's filter arguments."""


@dataclass(frozen=True)
class Fetch:
    """One fetch of one partition.

    Args:
        dialect: the version of the request.
        partition: 0 to ``MAX_PARTITION_ID``, inclusive.
        cursor: the position to continue after (exclusive): ``FIRST``, ``LAST``, or the cursor of a checkpoint.
        page_size: the desired number of events, a hint; None (or 0, which is not sent: F-20) leaves it to the server.
        stream_ms: milliseconds for the response to stay open, ``ENDLESS`` without end; None requests a page. v2a.
        filters: names and values of filters: ``filter-<name>`` in v2a; in v2b ``event-types`` and ``skip-event-types``.
        token: v2b's token, from the discovery document.
        count: v1's ``n``, the number of partitions.
        headers: v1's names of the headers to return, ``_all`` for every one.
    """

    dialect: Dialect
    partition: int
    cursor: str
    page_size: int | None = None
    stream_ms: int | None = None
    filters: Mapping[str, str] = field(default_factory=dict)
    token: str | None = None
    count: int | None = None
    headers: tuple[str, ...] = ()

    def query(self) -> list[tuple[str, str]]:
        """Return the query's names and values, not yet percent-encoded.

        Raises:
            LocalProtocolError: the dialect has no such argument, or lacks one; or two of them exclude each other.
        """
        self._check()
        if self.dialect is Dialect.V1:
            pairs = [("n", str(self.count)), (f"cursor{self.partition}", self.cursor)]
            if self.headers:
                pairs.append(("headers", ",".join(self.headers)))
        else:
            pairs = [("partition", str(self.partition)), ("cursor", self.cursor)]
            if self.token is not None:
                pairs.insert(0, ("token", self.token))
        if self.page_size:
            pairs.append(("pageSizeHint" if self.dialect is Dialect.V2A else "pagesizehint", str(self.page_size)))
        if self.stream_ms is not None:
            pairs.append(("stream", "y" if self.stream_ms == ENDLESS else str(self.stream_ms)))
        prefix = FILTER_PREFIX if self.dialect is Dialect.V2A else ""
        pairs.extend((prefix + name, value) for name, value in self.filters.items())
        return pairs

    def _check(self) -> None:
        dialect = self.dialect
        if (self.token is not None) != (dialect is Dialect.V2B):
            raise LocalProtocolError(f"{dialect.value}: a token goes with v2b, which needs one")
        if (self.count is not None) != (dialect is Dialect.V1):
            raise LocalProtocolError(f"{dialect.value}: the number of partitions goes with v1, which needs it")
        if self.headers and dialect is not Dialect.V1:
            raise LocalProtocolError(f"{dialect.value}: headers can be asked for in v1 only")
        if self.stream_ms is not None and (dialect is not Dialect.V2A or self.page_size):
            raise LocalProtocolError(f"{dialect.value}: 'stream' is v2a's, and has no page size beside it")
        if self.filters and dialect is Dialect.V1:
            raise LocalProtocolError("v1 has no filters")
        if dialect is Dialect.V2B and (len(self.filters) > 1 or not set(self.filters) <= set(_EVENT_TYPES)):
            raise LocalProtocolError(f"v2b has one filter of {' and '.join(_EVENT_TYPES)}, not {sorted(self.filters)}")


_EVENT_TYPES: Final[tuple[str, ...]] = ("event-types", "skip-event-types")


_PAGE_SIZES: Final[tuple[str, ...]] = ("pageSizeHint", "pagesizehint")
_ARGUMENTS: Final = {
    Dialect.V1: ("n", "cursor0", "headers", *_PAGE_SIZES),
    Dialect.V2A: ("partition", "cursor", "stream", "filter-key", "filter-subject", *_PAGE_SIZES),
    Dialect.V2B: ("token", "partition", "cursor", *_EVENT_TYPES, *_PAGE_SIZES),
}
"""The arguments of each dialect; ``cursor0`` represents those of all partitions, ``filter-key`` any filter."""
_CURSOR: Final = re.compile("cursor[0-9]{1,5}")


def _known(name: str, dialect: Dialect) -> bool:
    if dialect is Dialect.V1 and _CURSOR.fullmatch(name):
        return True
    return name in _ARGUMENTS[dialect] or (dialect is Dialect.V2A and name.startswith(FILTER_PREFIX))


def nearest(name: str, known: Collection[str], likeness: float = 0.5) -> str | None:
    """Return the known name that is most like a given name, perhaps misspelt; None if none is similar.

    Args:
        name: the given name; case and underscores do not count.
        known: the known names.
        likeness: the least similarity, from 0, anything, to 1.
    """
    plain = {each.lower().replace("_", ""): each for each in known}
    found = difflib.get_close_matches(name[:100].lower().replace("_", ""), plain, n=1, cutoff=likeness)
    return plain[found[0]] if found else None


def decode_fetch(pairs: Iterable[tuple[str, str]], dialect: Dialect, *, offered: Iterable[str] | None = None) -> Fetch:
    """Read the arguments of a fetch; the caller checks whether partition, token and cursor are known.

    Args:
        pairs: names and values of the query, percent-decoded, in order. Names that are unlike any of the dialect's are
            skipped, because gateways and later versions add some; a misspelt one is refused, so that its effect is not
            silently missing. Both spellings of the page size are accepted (the first valid one, F-23).
        dialect: the version of the request: ``n`` marks v1, ``partition`` v2a, the path v2b.
        offered: v2a: the names of the filters that the server has; None accepts any. An unknown one is refused, never
            skipped (P-29).

    Raises:
        RemoteProtocolError: an argument is invalid; the message is the text for a 400.
    """
    given = list(pairs)
    single: dict[str, str] = {}
    for name, value in given:
        known = _known(name, dialect)
        if not known and (meant := nearest(name, _ARGUMENTS[dialect], 0.75)):
            raise RemoteProtocolError(f"there is no argument {name:.40}: did you mean {meant}?")
        if known and name in single and name not in _PAGE_SIZES:
            raise RemoteProtocolError(f"argument {name:.200} is given twice")
        single.setdefault(name, value)
    page_size = _page_size(given)
    if dialect is Dialect.V1:
        return _decode_v1(single, page_size)
    partition = _number(single, "partition", MAX_PARTITION_ID)
    cursor = single.get("cursor", "")
    if not cursor:
        raise RemoteProtocolError("no cursor argument")
    if dialect is Dialect.V2B:
        filters = {name: single[name] for name in _EVENT_TYPES if name in single}
        if len(filters) == 2:
            raise RemoteProtocolError("event-types and skip-event-types exclude each other")
        return Fetch(dialect, partition, cursor, page_size, None, filters, single.get("token", ""))
    filters = {name[len(FILTER_PREFIX) :]: value for name, value in single.items() if name.startswith(FILTER_PREFIX)}
    if offered is not None and (unknown := sorted(set(filters) - set(offered))):
        raise RemoteProtocolError(f"filter {unknown[0]} is not supported")
    stream_ms = _stream(single)
    if stream_ms is not None and any(name.lower() == "pagesizehint" for name, _ in given):
        raise RemoteProtocolError("stream and pageSizeHint exclude each other")
    return Fetch(dialect, partition, cursor, page_size, stream_ms, filters)


def _decode_v1(single: dict[str, str], page_size: int | None) -> Fetch:
    count = _number(single, "n", MAX_PARTITION_ID + 1)
    if not count:
        raise RemoteProtocolError("n is 0: expected the number of partitions")
    cursors = [(name[6:], value) for name, value in single.items() if _CURSOR.fullmatch(name)]
    if not cursors:
        raise RemoteProtocolError("cursors are missing")
    if len(cursors) > 1:
        raise RemoteProtocolError("several cursors in one call are not served: ask for one partition at a time")
    partition, cursor = int(cursors[0][0]), cursors[0][1]
    if partition >= count:
        raise RemoteProtocolError(f"cursor{partition}: partitions go from 0 to {count - 1}")
    if not cursor:
        raise RemoteProtocolError(f"cursor{partition} is empty")
    headers = tuple(name for name in single.get("headers", "").split(",") if name)
    return Fetch(Dialect.V1, partition, cursor, page_size, count=count, headers=headers)


def _number(single: Mapping[str, str], name: str, most: int) -> int:
    text = single.get(name)
    if text is None:
        raise RemoteProtocolError(f"no {name} argument")
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise RemoteProtocolError(f"{name} is {text!r:.40}: expected an integer from 0 to {most}")
    return int(text)


def _page_size(pairs: Iterable[tuple[str, str]]) -> int | None:
    """Return the first valid page size; 0 leaves it to the server."""
    given = [value for name, value in pairs if name in _PAGE_SIZES and value]
    for value in given:
        if _NUMBER.fullmatch(value):
            return min(int(value), MAX_NUMBER) or None
    if given:
        raise RemoteProtocolError(f"pagesizehint is {given[0]!r:.40}: expected an integer")
    return None


def _stream(single: Mapping[str, str]) -> int | None:
    text = single.get("stream")
    if text is None:
        return None
    if text == "y":
        return ENDLESS
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= MAX_NUMBER:
        raise RemoteProtocolError(f"stream is {text!r:.40}: expected a number of milliseconds above 0, or y")
    return int(text)
