"""Feeds as peers of the command line, which reads, writes and describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa

from spark_streams.cli.credentials import PeerOptions
from spark_streams.cli.peers.peer import TIMEOUT_MS, Peer, PeerReader, PeerWriter, ReadRequest
from spark_streams.client.digested_rows import PART_SCHEMA
from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.client.feed.publisher import FeedPublisher, HttpFeed
from spark_streams.client.feed.range_reader import BEGINNING, FeedRange, scan
from spark_streams.client.feed.row_decoder import FeedRows
from spark_streams.endpoint import Endpoint
from spark_streams.errors import NotFound, OptionError, Refused
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.secrets import Secret
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import MAX_LINE_BYTES


class FeedPeer(Peer):
    """A feed; an address without a path may be a feed, or the root of several feeds."""

    columns: ClassVar = tuple(COMMON_SCHEMA.names)

    @classmethod
    def read(cls, endpoint: Endpoint, names: Sequence[str], options: PeerOptions, needs_stream: bool) -> Peer:
        """Return the feed of a command's arguments; see ``Peer.read``."""
        if names:
            raise OptionError("URL", f"{endpoint.url}: the address of a feed names it already: leave the stream out")
        if options.token is not None and options.token_file is not None:
            raise OptionError(
                options.option("token-file"),
                f"cannot be used together with {options.option('token')}: give one of them",
            )
        found = Secret(options.token) if options.token else options.secret("TOKEN", options.token_file)
        if found is not None:
            endpoint = endpoint.with_token(found)
        return cls(endpoint, endpoint.path.rstrip("/").rpartition("/")[2] or endpoint.address, options)

    @property
    def names_stream(self) -> bool:
        """Whether the address is certainly one feed's."""
        return bool(self.endpoint.path.strip("/"))

    def named(self, stream: str) -> Peer:
        """Return a feed of this peer; a part ``.`` or ``..`` is an error, as a url's path cannot keep it."""
        if {".", ".."} & {*stream.split("/")}:
            raise OptionError("URL", f"feed '{stream}' cannot be asked for: '.' and '..' are no parts of an address")
        return replace(self, stream=stream, endpoint=replace(self.endpoint, path=f"/{quote(stream)}"))

    def __str__(self) -> str:
        return self.endpoint.url

    def client(self) -> FeedClient:
        """Return a client, of version 1 if the number of partitions is given, else of the feed's own dialect."""
        partitions = self.options.partitions
        where = (self.endpoint, self.stream, None if partitions is None else Dialect.V1, partitions)
        return FeedClient(FeedAddress(*where, {}, None, TIMEOUT_MS, MAX_LINE_BYTES))

    @contextmanager
    def open_reader(self, request: ReadRequest) -> Iterator[PeerReader]:
        """Return a context with a reader; see ``Peer.open_reader``."""
        with self.client() as client:
            yield _FeedReader(client, self.stream, request)

    @contextmanager
    def open_writer(self) -> Iterator[PeerWriter]:
        """Return a context with a writer; see ``Peer.open_writer``."""
        with closing(HttpFeed(self.endpoint, TIMEOUT_MS)) as feed:
            feed.check()
            yield _FeedWriter(FeedPublisher(feed, self.stream, None), _feed_columns)

    def about(self) -> dict[str, Any] | None:
        """Return the names of the feeds; None if the address is one feed's."""
        with self.client() as feeds:
            names = feeds.streams()
        return None if names is None else {"kind": "feeds", "peer": {}, "streams": names}

    def describe(self) -> dict[str, Any]:
        """Return the description of the feed; see ``Peer.describe``."""
        with self.client() as client:
            discovery = client.discover()
            assert client.dialect is not None
            about: dict[str, Any] = {
                "dialect": client.dialect.value,
                "exactly once": _yes(discovery.exactly_once),
                "long responses (stream)": _yes(discovery.stream),
                "filters": list(discovery.filters),
            }
            rows = [
                {
                    "partition": str(p.id),
                    "closed": _yes(p.closed),
                    "last cursor": p.last_cursor or client.last_cursor(p.id),
                    "starts after": p.starts_after,
                    "cursors from": ", ".join(map(str, p.cursor_from)) or None,
                }
                for p in discovery.partitions
            ]
        return {"kind": "feed", "peer": about, "partitions": rows}

    def settings(self) -> dict[str, Any]:
        """Return the settings of a feed of our log; see ``Peer.settings``."""
        with self.client() as client:
            found = client.discover().settings
        if found is None:
            raise Refused("not supported", "the feed does not tell its settings; those of our log do", str(self))
        return dict(found)

    def create(self, partitions: int | None, settings: Mapping[str, str | int]) -> bool:
        """Create the feed; see ``Peer.create``."""
        with self.client() as client, _as_an_extension("create"):
            return client.create(partitions, settings)

    def delete(self) -> None:
        """Delete the feed; see ``Peer.delete``."""
        with self.client() as client, _as_an_extension("delete"):
            client.delete()


@contextmanager
def _as_an_extension(what: str) -> Iterator[None]:
    """Explain the refusal of a server that has no such call."""
    try:
        yield
    except Refused as fault:
        if fault.condition in ("status 405", "status 501"):
            why = f"FeedAPI has no way to {what} a feed, and this server none of its own; the log of this project has"
            raise Refused(fault.condition, why, fault.context) from fault
        raise


class _FeedReader(PeerReader):
    """A reader of a feed, whose end is a page without events."""

    _client: FeedClient

    @property
    def positions(self) -> dict[str, str]:
        return {p: "earliest" if c == BEGINNING else f"after:{c}" for p, c in self._cursors.items()}

    def left(self) -> int | None:
        return None

    def new_events(self) -> Iterator[pa.RecordBatch]:
        for partition in self._partitions():
            cursor = self._cursors.setdefault(partition, BEGINNING)
            end = self._client.last_cursor(int(partition))
            rows = FeedRows(self._stream, int(partition), self._request.columns_read)
            wanted = FeedRange(int(partition), cursor, () if end is None else (end,))
            for batch in scan(self._client, wanted, rows, fail_on_data_loss=self._request.fail_on_loss):
                self._cursors[partition] = batch.column("offset")[-1].as_py()
                yield batch
            self._cursors[partition] = end or self._cursors[partition]

    def _partitions(self) -> list[str]:
        names = [str(p.id) for p in self._client.discover().partitions]
        only = self._request.only
        if only is None:
            return names
        if only not in names:
            raise NotFound("no partition", f"there are: {', '.join(names)}", f"feed '{self._stream}' '{only}'")
        return [only]

    def _begin(self) -> None:
        word, operand = self._request.position
        if word in ("offset", "timestamp"):
            raise OptionError(
                "--from", f"'{self._request.start}': a feed starts at earliest, at latest, or after:CURSOR"
            )
        place: Callable[[str], str] = {
            "earliest": lambda _: BEGINNING,
            "latest": lambda partition: self._client.latest(int(partition)),
            "after": lambda _: operand,
        }[word]
        self._cursors = {partition: place(partition) for partition in self._partitions()}


class _FeedWriter(PeerWriter):
    """A writer of a feed; it has a new publisher for each flush, as a publisher holds its last part until the end."""

    def flush(self) -> None:
        super().flush()
        self._publisher = replace(self._publisher)


def _feed_columns(rows: pa.RecordBatch) -> tuple[dict[str, pa.Array]]:
    return ({field.name: rows.column(field.name).cast(field.type) for field in PART_SCHEMA},)


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
