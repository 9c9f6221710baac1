"""The client of feeds against servers that misbehave."""

from __future__ import annotations

import contextlib
import gzip
import time
import tracemalloc
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_streams.client.feed.client import FeedClient
from spark_streams.client.feed.http import Conflict, Expired, Unavailable
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    OptionError,
    Refused,
    RemoteProtocolError,
    SparkStreamsError,
)
from spark_streams.wire.feed.line import Dialect
from tests.client.feed.scripted import (
    QUICK,
    BadFeed,
    Part,
    Reply,
    Scripted,
    answers,
    client_of,
    numbered,
    read,
    zipped,
)

DISCOVERY = b'{"partitions": [{"id": "0"}, {"id": "1", "closed": true, "lastCursor": "z"}]}'
EVENT = b'{"event": {"n": 1}}\n'
LINES = EVENT + b'{"cursor": "c1"}\n'


class TestDialect:
    @pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
    def test_c01_is_told_from_the_answer_to_a_call_without_arguments(self, dialect: str) -> None:
        with BadFeed({0: Part(numbered(0, 3))}, dialect) as feed, client_of(f"{feed.url}/x", partitions=1) as client:
            assert [p.id for p in client.discover().partitions] == [0]
            assert client.dialect is Dialect(dialect)
            assert feed.asked[0].pairs == []
            assert read(client)[0] == numbered(0, 3)

    def test_c01_version_1_without_a_number_of_partitions_names_the_option(self) -> None:
        with (
            BadFeed({0: Part()}, "v1") as feed,
            client_of(f"{feed.url}/x") as client,
            pytest.raises(OptionError, match=r"partitions.*version 1"),
        ):
            client.discover()

    def test_f27_status_400_of_a_fetch_is_no_sign_of_version_1(self) -> None:
        with BadFeed({0: Part()}) as feed, client_of(feed.url, partitions=1) as client:
            client.discover()
            with pytest.raises(Refused, match=r"status 400.*no such cursor"):
                read(client, "nosuch")
            assert client.dialect is Dialect.V2A

    @pytest.mark.parametrize(
        ("status", "kind"), [(401, AuthenticationFailed), (403, Refused), (404, NotFound), (500, Unavailable)]
    )
    def test_c01_other_statuses_are_errors_and_not_version_1(self, status: int, kind: type[SparkStreamsError]) -> None:
        with (
            Scripted(answers(Reply(b"\n  the reason\nmore", status))) as server,
            client_of(server.url + "/x?k=geheim", partitions=1) as client,
            pytest.raises(kind) as caught,
        ):
            client.discover()
        said = str(caught.value)
        assert f"status {status}" in said and "the reason" in said
        assert "127.0.0.1" in said and "/x?***" in said
        assert "more" not in said and "geheim" not in said
        assert len(server.asked) == (QUICK.attempts if status == 500 else 1)

    def test_said_to_be_another_one_than_it_is(self) -> None:
        with (
            BadFeed({0: Part()}, "v2b") as feed,
            client_of(feed.url, "v2a") as client,
            pytest.raises(OptionError, match=r"dialect.*v2a.*v2b"),
        ):
            client.discover()

    @pytest.mark.parametrize("body", [b"<html><body>Sign in</body></html>", b"[]", b'{"a": 1}', b"", b"\xff\xfe"])
    @pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json", None])
    def test_something_else_is_an_error_with_its_first_line(self, body: bytes, kind: str | None) -> None:
        with (
            Scripted(answers(Reply(body, kind=kind))) as server,
            client_of(server.url) as client,
            pytest.raises(RemoteProtocolError) as caught,
        ):
            client.discover()
        assert server.url in str(caught.value)
        if body.startswith(b"<"):
            assert "<html><body>Sign in" in str(caught.value)

    def test_a_discovery_that_never_ends_is_not_kept(self) -> None:
        with (
            Scripted(answers(Reply([b" " * 2**20] * 40, length=False))) as server,
            client_of(server.url) as client,
            pytest.raises(RemoteProtocolError, match="longer than"),
        ):
            client.discover()


class TestQuery:
    @pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
    @pytest.mark.parametrize("cursor", ["a+b/c=;&%", "ö ü", "100%25", "x#y?z", '"\\'])
    def test_c04_a_cursor_with_reserved_characters_comes_back_as_it_was(self, dialect: str, cursor: str) -> None:
        answer = f'{{"partition": 0, "cursor": "{cursor}"}}\n'.replace("\\", "\\\\").replace('""\\', '"\\"\\')
        with BadFeed({0: Part()}, dialect) as feed, client_of(feed.url, partitions=1) as client:
            client.discover()
            feed.faults = [Reply(answer.encode())] * 2
            assert read(client)[1] == [cursor]
            read(client, cursor)
            assert feed.asked[-1]["cursor0" if dialect == "v1" else "cursor"] == cursor

    def test_a_base_with_a_query_and_a_slash(self) -> None:
        with BadFeed({0: Part(numbered(0, 1))}, "v2b") as feed, client_of(f"{feed.url}/a/b/?k=geheim&l=1") as client:
            client.discover()
            read(client)
            assert feed.asked[0].path == "/a/b/" and feed.asked[1].path == "/a/b/events"
            assert feed.asked[0].pairs == [("k", "geheim"), ("l", "1")]
            assert feed.asked[1].pairs[:2] == [("k", "geheim"), ("l", "1")]

    def test_page_size_is_asked_for_unless_the_response_is_long(self) -> None:
        with BadFeed({0: Part(numbered(0, 1))}) as feed, client_of(feed.url, page_size=17) as client:
            client.discover()
            read(client)
            assert feed.asked[-1]["pageSizeHint"] == "17"
            list(client.lines(0, "_first", stream_ms=1))
            assert "pageSizeHint" not in feed.asked[-1] and feed.asked[-1]["stream"] == "1"

    def test_filters_are_sent_as_the_feed_spells_them(self) -> None:
        with BadFeed({0: Part(numbered(0, 1))}) as feed:
            feed.filters = ("Subject",)
            with client_of(feed.url, "v2a", filters={"subject": "a;b"}) as client:
                read(client)
                assert feed.asked[-1]["filter-Subject"] == "a;b"

    @pytest.mark.parametrize("dialect", ["v1", "v2b"])
    def test_filters_where_there_are_none(self, dialect: str) -> None:
        with (
            BadFeed({0: Part()}, dialect) as feed,
            client_of(feed.url, filters={"a": "1"}, partitions=1) as client,
            pytest.raises(OptionError, match=rf"filter-a.*{dialect}"),
        ):
            client.discover()

    def test_a_filter_that_is_not_offered(self) -> None:
        with BadFeed({0: Part()}) as feed, client_of(feed.url, filters={"nosuch": "1"}) as client:
            feed.filters = ("subject",)
            with pytest.raises(OptionError, match=r"filter-nosuch.*'subject'"):
                client.discover()


class TestFetch:
    @pytest.fixture
    def feed(self) -> Iterator[BadFeed]:
        with BadFeed({0: Part(numbered(0, 10))}) as feed:
            yield feed

    @pytest.fixture
    def client(self, feed: BadFeed) -> Iterator[FeedClient]:
        with client_of(feed.url, "v2a") as client:
            yield client

    @pytest.mark.parametrize("reply", [Reply(LINES), Reply(LINES, chunked=True), Reply([LINES], length=False)])
    def test_ends_in_every_way_that_http_knows(self, feed: BadFeed, client: FeedClient, reply: Reply) -> None:
        feed.faults = [reply]
        assert read(client) == ([b'{"n": 1}'], ["c1"])

    def test_gzip(self, feed: BadFeed, client: FeedClient) -> None:
        many = b"".join(b'{"event": %b}\n' % each for each in numbered(0, 5_000)) + b'{"cursor": "c"}\n'
        feed.faults = [zipped(many)]
        assert read(client) == (numbered(0, 5_000), ["c"])

    def test_gzip_is_asked_for_but_not_first_on_this_machine(
        self, feed: BadFeed, client: FeedClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read(client)
        assert feed.asked[-1].headers["Accept-Encoding"] == "identity, gzip;q=0.5"
        with Scripted(answers(Reply(LINES))) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            with client_of("http://feed.example/x", "v2a") as far:
                assert read(far) == ([b'{"n": 1}'], ["c1"])
            assert proxy.asked[-1].headers["Accept-Encoding"].startswith("gzip")

    @pytest.mark.parametrize("cut", [False, True])
    def test_what_comes_in_bulk_is_handed_on_in_large_blocks(
        self, feed: BadFeed, client: FeedClient, cut: bool
    ) -> None:
        event = b'{"event": {"x": "%b"}}\n{"cursor": "c"}\n' % (b"x" * 1_000)
        piece = event * 30
        feed.faults = [Reply([piece] * 200 + [event], chunked=True, cut=cut)]
        sizes = []
        with pytest.raises(ConnectionLost) if cut else contextlib.nullcontext():
            for lines in client.lines(0, "_first"):
                sizes.append(int(lines.ends[-1]))
        assert sum(sizes) == len(piece) * 200 + len(event)  # also of a response that breaks off
        assert len(sizes) <= 8 and max(sizes) <= (1 << 20) + len(piece)

    @pytest.mark.parametrize("packed", [False, True])
    def test_a_page_is_held_block_by_block(self, feed: BadFeed, client: FeedClient, packed: bool) -> None:
        event = b'{"event": {"x": "%b"}}\n' % (b"x" * 1_000)
        piece = event * 100
        count = 400

        def page() -> Iterator[bytes]:
            packer = zlib.compressobj(1, wbits=31)
            for _ in range(count):
                yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) if packed else piece
            yield packer.compress(b'{"cursor": "c"}\n') + packer.flush() if packed else b'{"cursor": "c"}\n'

        feed.faults = [Reply(page(), chunked=True, headers={"Content-Encoding": "gzip"} if packed else {})]
        events = 0
        arrow = pa.total_allocated_bytes()
        most_arrow = 0
        tracemalloc.start()
        try:
            for lines in client.lines(0, "_first"):
                events += lines.count
                most_arrow = max(most_arrow, pa.total_allocated_bytes() - arrow)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert events == count * 100
        assert most + most_arrow < len(piece) * count / 3

    def test_gzip_that_is_none(self, feed: BadFeed, client: FeedClient) -> None:
        feed.faults = [Reply(LINES, headers={"Content-Encoding": "gzip"})]
        with pytest.raises(ConnectionLost):
            read(client)

    @pytest.mark.parametrize("chunked", [True, False])
    def test_lines_come_as_they_are_sent(self, feed: BadFeed, client: FeedClient, chunked: bool) -> None:
        taken: list[list[str]] = []

        def slowly() -> Iterator[bytes]:
            yield LINES
            deadline = time.monotonic() + 240
            while not taken and time.monotonic() < deadline:
                time.sleep(0.005)
            yield LINES if taken else b"too late"

        feed.faults = [Reply(slowly(), chunked=chunked, length=False)]
        with client_of(feed.url, "v2a", timeout_ms=120_000) as patient:
            for lines in patient.lines(0, "_first"):
                taken.append(lines.cursors.to_pylist())
        assert taken == [["c1"], ["c1"]]

    @pytest.mark.parametrize("cut", range(1, len(LINES)))
    @pytest.mark.parametrize("chunked", [True, False])
    def test_c18_cut_anywhere_is_a_lost_connection(
        self, feed: BadFeed, client: FeedClient, cut: int, chunked: bool
    ) -> None:
        feed.faults = [Reply(LINES[:cut], chunked=chunked, cut=True)]
        with pytest.raises(ConnectionLost):
            read(client)

    @pytest.mark.parametrize("cut", [*range(1, len(EVENT) - 1), *range(len(EVENT) + 1, len(LINES) - 1)])
    @pytest.mark.parametrize("length", [True, False])
    def test_c18_ended_properly_inside_a_line(self, feed: BadFeed, client: FeedClient, cut: int, length: bool) -> None:
        feed.faults = [Reply(LINES[:cut], length=length)]
        came: list[str] = []
        with pytest.raises(ConnectionLost, match="inside a line"):
            for lines in client.lines(0, "_first"):
                came += lines.cursors.to_pylist()
        assert came == []

    @pytest.mark.parametrize(("dialect", "first"), [("v1", "application/zeh-v1"), ("v2a", "application/x-ndjson")])
    def test_version_1_is_asked_for_by_its_media_type(self, dialect: str, first: str) -> None:
        with BadFeed({0: Part()}, dialect) as feed, client_of(feed.url, dialect, partitions=1) as client:
            client.discover()
            read(client)
            accepted = [each.strip() for each in feed.fetches[-1].headers["Accept"].split(",")]
        assert accepted[0] == first and "*/*;q=0.5" in accepted
        assert ("application/x-ndjson;q=0.9" in accepted) == (dialect == "v1")

    @pytest.mark.parametrize(
        "kind", ["application/zeh-v1", "Application/ZEH-V1; charset=utf-8", "application/x-ndjson"]
    )
    def test_version_1_is_taken_by_either_name(self, kind: str) -> None:
        with BadFeed({0: Part()}, "v1") as feed, client_of(feed.url, "v1", partitions=1) as client:
            feed.faults = [Reply(b'{"partition": 0, "cursor": "c"}\n', kind=kind)]
            assert read(client) == ([], ["c"])

    def test_another_version_of_zeroeventhub_is_not_read_as_version_1(self) -> None:
        with BadFeed({0: Part()}, "v1") as feed, client_of(feed.url, "v1", partitions=1) as client:
            feed.faults = [Reply(b'{"partition": 0, "cursor": "c"}\n', kind="application/zeh-v2")]
            with pytest.raises(
                RemoteProtocolError, match=r"answered application/zeh-v2.*application/zeh-v1 was expected"
            ):
                read(client)

    @pytest.mark.parametrize("end", [b"", b"\r", b" ", b"\n\r"])
    @pytest.mark.parametrize("framing", [{"length": True}, {"chunked": True}, {"length": False}])
    def test_the_last_line_needs_no_newline(
        self, feed: BadFeed, client: FeedClient, end: bytes, framing: dict[str, bool]
    ) -> None:
        feed.faults = [Reply(LINES.removesuffix(b"\n") + end, **framing)]  # type: ignore[arg-type]
        assert read(client) == ([b'{"n": 1}'], ["c1"])

    def test_blocks_are_of_whole_lines_though_the_last_has_no_newline(self, feed: BadFeed, client: FeedClient) -> None:
        feed.faults = [Reply(LINES.removesuffix(b"\n"))]
        assert [lines.ends.tolist() for lines in client.lines(0, "_first")] == [[], [len(LINES) - len(EVENT)]]

    @pytest.mark.parametrize("size", [1_000, 200_000])
    def test_a_cut_event_that_ends_with_a_brace_is_none(self, feed: BadFeed, client: FeedClient, size: int) -> None:
        cut = b'{"event": {"a": {"b": "%b"}}' % (b"x" * size)
        feed.faults = [Reply(LINES + cut)]
        with pytest.raises(ConnectionLost, match="inside a line"):
            for lines in client.lines(0, "_first"):
                assert lines.count == 1

    @pytest.mark.parametrize(("length", "fault"), [(True, RemoteProtocolError), (False, ConnectionLost)])
    def test_without_a_cursor_a_body_that_ends_with_its_connection_may_be_cut(
        self, feed: BadFeed, client: FeedClient, length: bool, fault: type[SparkStreamsError]
    ) -> None:
        feed.faults = [Reply(EVENT, length=length)]
        with pytest.raises(fault, match="no cursor"):
            read(client)

    @pytest.mark.parametrize("cut", range(40, 45))
    def test_gzip_that_is_cut_is_no_end(self, feed: BadFeed, client: FeedClient, cut: int) -> None:
        feed.faults = [Reply(gzip.compress(LINES)[:-cut], headers={"Content-Encoding": "gzip"})]
        with pytest.raises(SparkStreamsError):
            read(client)

    def test_words_of_an_error_behind_the_lines_are_a_failure_that_may_pass(
        self, feed: BadFeed, client: FeedClient
    ) -> None:
        feed.faults = [Reply(LINES + b"Internal server error\n")]
        came: list[str] = []
        with pytest.raises(ConnectionLost, match="Internal server error"):
            for lines in client.lines(0, "_first"):
                came += lines.cursors.to_pylist()
        assert came == ["c1"]

    def test_a_line_that_is_none_among_others(self, feed: BadFeed, client: FeedClient) -> None:
        feed.faults = [Reply(b"oops\n" + LINES)]
        with pytest.raises(RemoteProtocolError, match=r"GET http.*cursor=_first.*oops"):
            read(client)

    def test_html(self, feed: BadFeed, client: FeedClient) -> None:
        feed.faults = [Reply(b"<html>\nSign in", kind="text/html; charset=utf-8")]
        with pytest.raises(RemoteProtocolError, match="HTML, '<html>'"):
            read(client)

    def test_c05_c06_unknown_lines_and_fields(self, feed: BadFeed, client: FeedClient) -> None:
        feed.faults = [
            Reply(b'{"ping": 1}\r\n\n{}\n{"event": {"a": 1}, "x": 2}\n{"event": "t", "cursor": "c", "y": 1}\n')
        ]
        assert read(client) == ([b'{"a": 1}', b"t"], ["c"])

    def test_c17_a_long_line(self, feed: BadFeed, client: FeedClient) -> None:
        event = b'{"t": "%b"}' % ("\u2028\x85" * 2**20).encode()
        feed.faults = [Reply(b'{"event": %b}\n{"cursor": "c"}\n' % event, chunked=True)] * 2
        assert read(client) == ([event], ["c"])
        with (
            client_of(feed.url, "v2a", max_line_bytes=1_000) as strict,
            pytest.raises(RemoteProtocolError, match="maxLineBytes"),
        ):
            read(strict)

    def test_silence(self, feed: BadFeed, client: FeedClient) -> None:
        done = []

        def silent() -> Iterator[bytes]:
            yield LINES
            while not done:
                time.sleep(0.01)

        feed.faults = [Reply(silent(), chunked=True)]
        try:
            with (
                client_of(feed.url, "v2a", timeout_ms=400) as hasty,
                pytest.raises(DeadlineExceeded, match="requestTimeout"),
            ):
                read(hasty)
        finally:
            done.append(1)

    def test_c19_other_statuses(self, feed: BadFeed, client: FeedClient) -> None:
        feed.faults = [Reply(b"x", status) for status in (400, 401, 403, 404, 409, 410, 429, 502)]
        for kind in (Refused, AuthenticationFailed, Refused, NotFound, Conflict, Expired, Unavailable, Unavailable):
            with pytest.raises(kind):
                read(client)

    def test_c19_a_wait_that_is_refused_says_nothing_about_the_cursor(self, feed: BadFeed, client: FeedClient) -> None:
        """Taken for the cursor's fault, all that was read would be read again."""
        cursor = feed.cursor(0, 1)
        feed.answer = lambda asked: Reply(b"no waiting here", 400) if "stream" in asked else feed.respond(asked)
        with pytest.raises(Refused, match="status 400: no waiting here") as caught:
            list(client.lines(0, cursor, stream_ms=20_000))
        assert not isinstance(caught.value, Expired)
        feed.faults = [Reply(b"a passing mistake", 400)]
        with pytest.raises(Refused, match="a passing mistake") as caught:
            read(client, cursor)
        assert not isinstance(caught.value, Expired)
        with pytest.raises(Expired, match="no such cursor"):
            read(client, "nosuch")

    def test_nobody_there(self, feed: BadFeed) -> None:
        url = feed.url
        feed.__exit__()
        with client_of(f"{url}/x?k=geheim", "v2a") as client, pytest.raises(ConnectFailed) as caught:
            read(client)
        assert "Connection refused" in str(caught.value) and "geheim" not in str(caught.value)
        feed.server.server_close = feed.server.shutdown = lambda: None  # type: ignore[method-assign]

    def test_connections_are_kept(self, feed: BadFeed, client: FeedClient) -> None:
        for _ in range(5):
            read(client)
        assert feed.connections == 1


class TestLast:
    def test_is_the_last_cursor_of_the_response(self) -> None:
        with BadFeed({0: Part(numbered(0, 5))}) as feed, client_of(feed.url, "v2a") as client:
            feed.faults = [Reply(LINES + b'{"event": {"n": 2}}\n{"cursor": "c2"}\n')]
            assert client.last_cursor(0) == "c2"

    def test_p22_without_any_cursor(self) -> None:
        with BadFeed({0: Part()}) as feed, client_of(feed.url, "v2a") as client:
            feed.faults = [Reply(b"")]
            with pytest.raises(RemoteProtocolError, match="no cursor"):
                client.last_cursor(0)

    def test_a_feed_that_does_not_resolve_it(self) -> None:
        with BadFeed({0: Part()}) as feed, client_of(feed.url, "v2a") as client:
            feed.faults = [Reply(b'{"cursor": "_last"}\n')]
            with pytest.raises(RemoteProtocolError, match="_last"):
                client.last_cursor(0)

    def test_is_asked_again_after_a_failure(self) -> None:
        with BadFeed({0: Part()}) as feed, client_of(feed.url, "v2a") as client:
            feed.faults = [Reply(b"", 503), Reply(LINES[:-3]), Reply(LINES)]
            assert client.last_cursor(0) == "c1"
