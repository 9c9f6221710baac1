"""Discovers the partitions of one feed, and fetches pages of events after a cursor.

The answer to a call without arguments shows the dialect (FeedAPI, "protocol negotiation"): a document with a ``token``
belongs to today's specification (v2b), one without to the specification's first form (v2a), and status 400 means
version 1, ZeroEventHub; for version 1 the user has to give the number of partitions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from spark_streams.client.feed.errors import first_line
from spark_streams.client.feed.http import Conflict, Expired, FeedSession
from spark_streams.client.feed.pushdown import ANY_POINTER
from spark_streams.client.feed.response import Response, parsed_blocks, until
from spark_streams.client.retry import Backoff, retrying
from spark_streams.endpoint import Endpoint
from spark_streams.errors import NotFound, OptionError, Refused, RemoteProtocolError
from spark_streams.redaction import safe_text
from spark_streams.wire.feed.discovery import Discovery, FeedPartition, decode_discovery
from spark_streams.wire.feed.fetch_arguments import FIRST, LAST, Fetch
from spark_streams.wire.feed.line import NDJSON, ZEH_V1, Dialect
from spark_streams.wire.feed.lines import Lines
from spark_streams.wire.feed.strict_json import load_json

FEED_BACKOFF: Final = Backoff(attempts=8, first_ms=200, limit_ms=10_000)
"""Eight tries within about 30 s: a service that is deployed again comes back within that time."""
_ACCEPT_V1: Final = f"{ZEH_V1}, {NDJSON};q=0.9, */*;q=0.5"
MAX_UNKNOWN_CURSORS: Final = 3
"""How many times in a row a partition is read from its beginning because the feed does not know a cursor that it just
gave: once is enough for a feed that was created again; the limit is for a feed that never knows its own cursors."""
MAX_CONFLICTS: Final = 5
"""How many times in a row a token is replaced: once is enough for a feed that has changed; the limit is for a feed that
refuses each token that it just gave (C-16)."""


@dataclass(frozen=True)
class FeedAddress:
    """The address of a feed and its settings: all that a task needs to open a client; picklable.

    Args:
        endpoint: its address, with credentials and TLS.
        stream: its name.
        dialect: the dialect that it speaks, None to find out.
        partitions: number of partitions of a version 1 feed, None when the user gave none.
        filters: names and values of the feed's own filters.
        page_size: the number of events to request in a response, or None.
        timeout_ms: how many milliseconds it may be silent.
        max_line_bytes: bytes of a line, at most.
        pushed: names and values of the feed's filters that a query's filter was pushed to, spelled as the feed does.
    """

    endpoint: Endpoint
    stream: str
    dialect: Dialect | None
    partitions: int | None
    filters: Mapping[str, str]
    page_size: int | None
    timeout_ms: int
    max_line_bytes: int
    pushed: Mapping[str, str] | None = None


@dataclass(eq=False)
class FeedClient(AbstractContextManager["FeedClient"]):
    """A client of one feed; a context manager, for one thread at a time.

    Args:
        address: the feed's address and settings.
        backoff: how many times to try a call, and how long the pauses are.
        pause: waits for a number of seconds; tests, and threads that have to be stopped, give another function.
        awaits: whether a missing feed (status 404) existed before, and may be created again: the error is retriable
            then.
        unknown_cursors: for each partition, how many times in a row the feed did not know the cursor any more; clients
            that read the same partitions in turn share it.
    """

    address: FeedAddress
    _: KW_ONLY
    backoff: Backoff = FEED_BACKOFF
    pause: Callable[[float], object] = time.sleep
    awaits: bool = False
    unknown_cursors: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        address = self.address
        self.dialect = address.dialect
        self._session = FeedSession(address.endpoint, address.timeout_ms)
        self._token: str | None = None
        self._answer: Response | None = None
        self._filters: dict[str, str] | None = None if address.filters else {}
        self._pushed = dict(address.pushed or {})

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def abort(self) -> None:
        """Make a thread that waits for the lines of a response fail at once; any thread may call this."""
        answer = self._answer
        if answer is not None:
            answer.abort()

    def push(self, filters: Mapping[str, str]) -> None:
        """Replace the pushed filters, which the feed checks, from the next call on."""
        self._pushed = dict(filters)

    def streams(self) -> list[str] | None:
        """Return the names of the feeds below this address that we may read; None where the server has no such list.

        FeedAPI has no such list: the log of this project answers at its door's root with ``{"feeds": ["orders"]}``.

        Raises:
            SparkStreamsError: the call failed (``FeedSession.send``), after retries when it is retriable.
        """
        return retrying(self._listing, self.backoff, pause=self.pause)

    def _listing(self) -> list[str] | None:
        try:
            with self._session.send("GET") as answer:
                body = answer.body()
            document = load_json(body, "list of feeds")
        except (NotFound, Refused, RemoteProtocolError) as fault:
            if fault.retriable:
                raise
            return None
        names = document.get("feeds") if isinstance(document, dict) else None
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

    def create(self, partitions: int | None, settings: Mapping[str, str | int]) -> bool:
        """Create the feed, an extension of this project's log.

        Args:
            partitions: how many; None for one, or for as many as there are.
            settings: the log's settings of a stream, such as ``timestamp_type``.

        Returns:
            False if there is such a feed already.

        Raises:
            Conflict: there is a feed of that name with other partitions or settings.
            Refused: the user lacks the permission, or the server creates no feeds.
            SparkStreamsError: the call failed (``FeedSession.send``).
        """
        given = settings if partitions is None else {"partitions": partitions, **settings}
        arguments = [(name, str(value)) for name, value in given.items()]
        with self._session.send("PUT", arguments, accepted=(200, 201)) as answer:
            answer.body()
            return answer.status == 201

    def delete(self) -> None:
        """Delete the feed with all its events, an extension of this project's log.

        Raises:
            NotFound: there is none.
            Refused: the user lacks the permission, or the server deletes no feeds.
            SparkStreamsError: the call failed (``FeedSession.send``).
        """
        self._session.send("DELETE", accepted=(200, 204)).close()

    def discover(self) -> Discovery:
        """Return the feed's present partitions and filters; for a version 1 feed, the user's number of partitions.

        Raises:
            OptionError: the number of partitions of a version 1 feed is missing, or the feed does not offer a filter of
                the user's, or no longer offers a pushed one.
            RemoteProtocolError: the answer is no discovery document.
            SparkStreamsError: the call failed (``FeedSession.send``), after retries when it is retriable.
        """
        return retrying(self._discover, self.backoff, pause=self.pause)

    def _discover(self) -> Discovery:
        discovery = self._describe()
        assert self.dialect is not None
        if self.address.filters and self.dialect is not Dialect.V2A:
            raise OptionError(
                f"filter-{next(iter(self.address.filters))}",
                f"the feed speaks dialect {self.dialect.value}, which has no filters",
            )
        known = [*discovery.filters, *(name for p in discovery.partitions for name in p.filters)]
        for name in self._pushed:
            if name not in known and not (name.startswith("/") and ANY_POINTER in known):
                raise OptionError(
                    "filter",
                    f"the feed does not offer filter '{name}' any more, which the checkpoint's cursors belong to: "
                    "start again with another checkpointLocation",
                )
        # Spark passes option names in lower case; the feed may not accept them so.
        spelled = {name.lower(): name for name in known}
        for name in self.address.filters:
            if name not in spelled:
                offered = safe_text(", ".join(f"'{f}'" for f in dict.fromkeys(known))) or "none"
                raise OptionError(f"filter-{name}", f"the feed does not offer this filter; it offers {offered}")
        self._filters = {spelled[name]: value for name, value in self.address.filters.items()}
        return discovery

    def _describe(self) -> Discovery:
        if self.dialect is Dialect.V1:
            return self._version_1("with dialect v1")
        try:
            with self._get() as answer:
                what, body = answer.what, answer.body()
                begins = first_line(body)
                if answer.media_type == "text/html":
                    raise RemoteProtocolError(f"{what}: answered HTML, '{begins}', where JSON was expected")
        except Refused as fault:
            if fault.condition != "status 400" or self.dialect is not None:
                raise
            return self._version_1("as the feed answers a call without arguments with status 400, as version 1 does")
        try:
            discovery = decode_discovery(body)
        except RemoteProtocolError as fault:
            raise RemoteProtocolError(f"{what}: {fault}; the answer begins with '{begins}'") from None
        found = Dialect.V2A if discovery.token is None else Dialect.V2B
        if self.dialect is not None and self.dialect is not found:
            raise OptionError("dialect", f"is {self.dialect.value}, but the feed speaks {found.value}")
        self.dialect = found
        self._token = discovery.token
        return discovery

    def _version_1(self, why: str) -> Discovery:
        count = self.address.partitions
        if count is None:
            raise OptionError("partitions", f"is required {why}: a version 1 feed does not tell how many it has")
        self.dialect = Dialect.V1
        return Discovery(tuple(FeedPartition(i) for i in range(count)))

    def lines(
        self, partition: int, cursor: str, stops: Collection[str] = (), *, stream_ms: int | None = None
    ) -> Iterator[Lines]:
        """Yield the events and cursors of one response, in blocks as they come.

        This makes one call without retries, since a second call may return other pages. Only an outdated token is
        replaced first.

        The last line needs no newline, and gets one. It has to be a whole JSON object, and a cut line never is one, so
        a part of a line is never returned, however the body ends.

        Args:
            partition: the partition to read.
            cursor: where to begin, exclusive.
            stops: cursors where to end, inclusive, at the first that comes.
            stream_ms: how many milliseconds the feed may keep the response open for new events (``stream``); None for
                one page of the existing ones.

        Raises:
            ConnectionLost: the response ended inside a line (C-18), or the connection broke. Or the last line is not a
                line of a feed: a feed that fails in the middle of a response may add the text of its error, and can be
                called again. Or no cursor came, and the body may have been cut.
            RemoteProtocolError: HTML, a version of ZeroEventHub other than 1, a line that is longer than allowed, or
                another line that is not a line of a feed; or no cursor came.
            Conflict: the feed refuses the token that it just gave.
            Expired: the feed has lost the events after the cursor, or does not know it, as it was created again.
            SparkStreamsError: the call failed otherwise (``FeedSession.send``).
        """
        with self._page(partition, cursor, stream_ms) as answer:
            assert self.dialect is not None
            for lines in parsed_blocks(answer, self.dialect, partition, self.address.max_line_bytes):
                last = until(lines, stops)
                yield last or lines
                if last is not None:
                    return

    def describe(self, partition: int, cursor: str) -> str:
        """Return a call of ``lines`` as messages show it; the dialect has to be known."""
        arguments, below = self._call(partition, cursor, None)
        return f"GET {self._session.shown(arguments, below=below)}"

    def latest(self, partition: int) -> str:
        """Return ``last_cursor``, to start reading there.

        Raises:
            RemoteProtocolError: the response has no cursor; also as for ``last_cursor``.
        """
        last = self.last_cursor(partition)
        if last is None:
            raise RemoteProtocolError(
                f"{self.describe(partition, LAST)}: the response has no cursor, so reading cannot start there; start "
                "'earliest', or after a cursor"
            )
        return last

    def last_cursor(self, partition: int) -> str | None:
        """Return the cursor after the feed's present last event; drop the page that comes with it.

        Returns:
            None where a version 1 feed does not tell it.

        Raises:
            RemoteProtocolError: the cursor is ``_last`` itself.
            SparkStreamsError: the call failed, as for ``lines``, after retries when it is retriable.
        """

        def ask() -> str | None:
            last: str | None = None
            for lines in self.lines(partition, LAST):
                if len(lines.cursors):
                    last = lines.cursors[-1].as_py()
            if last == LAST:
                raise RemoteProtocolError(
                    f"{self.describe(partition, LAST)}: the cursor of the response is '{LAST}' itself, which means "
                    "another place at each call: reading cannot start there; start 'earliest', or after a cursor"
                )
            return last

        return retrying(ask, self.backoff, pause=self.pause)

    def _page(self, partition: int, cursor: str, stream_ms: int | None) -> Response:
        """Request the page after a cursor; if the feed refuses it, find out whether the cursor is the reason.

        Status 400 means any mistake of ours, and no feed reports which. A feed that answers a call from its beginning,
        and refuses the cursor again without ``stream``, was created again, or does not know the cursor any more.
        """
        try:
            self._answer = answer = self._request_page(partition, cursor, stream_ms)
            if cursor not in (FIRST, LAST):
                self.unknown_cursors[partition] = 0
            return answer
        except Refused as fault:
            if fault.condition != "status 400" or cursor in (FIRST, LAST):
                raise
            refused = fault
        try:
            self._request_page(partition, FIRST, None).close()
        except (NotFound, Refused) as fault:
            if fault.retriable:
                raise
            raise refused from None
        try:
            self._request_page(partition, cursor, None).close()
        except Refused as fault:
            if fault.condition != refused.condition:
                raise
            self.unknown_cursors[partition] += 1
            if self.unknown_cursors[partition] > MAX_UNKNOWN_CURSORS:
                raise
            raise Expired(refused.condition, refused.description, refused.context) from None
        raise refused

    def _request_page(self, partition: int, cursor: str, stream_ms: int | None) -> Response:
        wait_ms = 0 if stream_ms is None else stream_ms
        for left in range(MAX_CONFLICTS, -1, -1):
            needs_token = self.dialect is Dialect.V2B and self._token is None
            if self.dialect is None or self._filters is None or needs_token:
                self._discover()
            arguments, below = self._call(partition, cursor, stream_ms)
            headers = {"Accept": _ACCEPT_V1} if self.dialect is Dialect.V1 else None
            try:
                return self._get(arguments, below=below, wait_ms=wait_ms, headers=headers)
            except Conflict:
                # The partitions may have changed; the planning code learns that from its next discovery.
                if self.dialect is not Dialect.V2B or not left:
                    raise
                self._token = None
                if left < MAX_CONFLICTS:
                    self.pause(0.2)
        raise AssertionError("unreachable")

    def _get(self, arguments: Sequence[tuple[str, str]] = (), **how: Any) -> Response:
        """Make a call with ``FeedSession.send``; its ``NotFound`` is ``retriable`` for a client that ``awaits``."""
        try:
            return self._session.send("GET", arguments, **how)
        except NotFound as fault:
            fault.retriable = self.awaits
            raise

    def _call(self, partition: int, cursor: str, stream_ms: int | None) -> tuple[list[tuple[str, str]], str]:
        address, dialect = self.address, self.dialect
        assert dialect is not None
        fetch = Fetch(
            dialect,
            partition,
            cursor,
            page_size=address.page_size if stream_ms is None else None,
            stream_ms=stream_ms,
            filters={**(self._filters or {}), **self._pushed},
            token=self._token,
            count=address.partitions if dialect is Dialect.V1 else None,
        )
        return fetch.query(), "/events" if dialect is Dialect.V2B else ""
