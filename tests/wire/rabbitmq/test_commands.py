"""Commands of the stream protocol: bytes of rstream (another implementation), of the grammar, and garbage."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rstream import schema
from rstream.encoding import encode_frame

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.rabbitmq import connection_commands
from spark_streams.wire.rabbitmq.connection_commands import (
    Close,
    CommandVersions,
    ExchangeCommandVersions,
    Heartbeat,
    Open,
    OpenAnswer,
    PeerProperties,
    SaslAuthenticate,
    SaslAuthenticateAnswer,
    SaslHandshake,
    SaslHandshakeAnswer,
    Tune,
)
from spark_streams.wire.rabbitmq.consumer_commands import (
    ConsumerUpdateAnswer,
    Credit,
    CreditAnswer,
    OffsetSpecification,
    OffsetType,
    QueryOffset,
    QueryOffsetAnswer,
    ResolveOffsetSpec,
    ResolveOffsetSpecAnswer,
    StoreOffset,
    Subscribe,
    Unsubscribe,
)
from spark_streams.wire.rabbitmq.fields import Text
from spark_streams.wire.rabbitmq.frames import (
    Answer,
    Command,
    Frame,
    FrameReader,
    FrameTooLarge,
    Request,
    ResponseCode,
    code_name,
)
from spark_streams.wire.rabbitmq.publish_decode import DeclarePublisher, DeletePublisher, QueryPublisherSequence
from spark_streams.wire.rabbitmq.stream_commands import (
    NO_LEADER,
    Broker,
    Create,
    CreateSuperStream,
    Delete,
    DeleteSuperStream,
    Metadata,
    MetadataAnswer,
    MetadataUpdate,
    Partitions,
    Route,
    RouteAnswer,
    StreamMetadata,
    StreamStatsAnswer,
)

PROPERTIES = [schema.Property("product", "x"), schema.Property("version", "1")]
PAIRS = {"product": "x", "version": "1"}

RSTREAM: list[tuple[Any, Command]] = [
    (schema.PeerProperties(7, PROPERTIES), PeerProperties(PAIRS, correlation_id=7)),
    (schema.SaslHandshake(1), SaslHandshake(correlation_id=1)),
    (schema.SaslAuthenticate(2, "PLAIN", b"\0u\0p"), SaslAuthenticate("PLAIN", b"\0u\0p", correlation_id=2)),
    (schema.Tune(1048576, 60), Tune(1048576, 60)),
    (schema.Open(3, "/"), Open("/", correlation_id=3)),
    (schema.Heartbeat(), Heartbeat()),
    (schema.Create(4, "s", [schema.Property("max-age", "7D")]), Create("s", {"max-age": "7D"}, correlation_id=4)),
    (schema.Delete(5, "s"), Delete("s", correlation_id=5)),
    (schema.DeleteSuperStream(6, "s"), DeleteSuperStream("s", correlation_id=6)),
    (schema.DeclarePublisher(8, 9, "ref", "s"), DeclarePublisher(9, "ref", "s", correlation_id=8)),
    (schema.QueryPublisherSequence(9, "ref", "s"), QueryPublisherSequence("ref", "s", correlation_id=9)),
    (schema.DeletePublisher(10, 255), DeletePublisher(255, correlation_id=10)),
    (schema.Metadata(11, ["a", "b"]), Metadata(("a", "b"), correlation_id=11)),
    (schema.MetadataUpdate(schema.MetadataInfo(6, "s")), MetadataUpdate(6, "s")),
    (schema.Close(12, 1, "OK"), Close(1, "OK", correlation_id=12)),
    (
        schema.Subscribe(13, 1, "s", schema.OffsetSpec(schema.OffsetType.FIRST), 10, PROPERTIES),
        Subscribe(1, "s", OffsetSpecification(OffsetType.FIRST), 10, PAIRS, correlation_id=13),
    ),
    (
        schema.Subscribe(14, 1, "s", schema.OffsetSpecOffset(schema.OffsetType.OFFSET, 2**63), 10, PROPERTIES),
        Subscribe(1, "s", OffsetSpecification(OffsetType.OFFSET, 2**63), 10, PAIRS, correlation_id=14),
    ),
    (
        schema.Subscribe(15, 1, "s", schema.OffsetSpecTimestamp(schema.OffsetType.TIMESTAMP, -7), 10, PROPERTIES),
        Subscribe(1, "s", OffsetSpecification(OffsetType.TIMESTAMP, -7), 10, PAIRS, correlation_id=15),
    ),
    (schema.Credit(1, 10), Credit(1, 10)),
    (schema.StoreOffset("r", "s", 42), StoreOffset("r", "s", 42)),
    (schema.QueryOffset(16, "r", "s"), QueryOffset("r", "s", correlation_id=16)),
    (schema.Unsubscribe(17, 3), Unsubscribe(3, correlation_id=17)),
    (schema.SuperStreamRoute(18, "key", "super"), Route("key", "super", correlation_id=18)),
    (schema.SuperStreamPartitions(19, "super"), Partitions("super", correlation_id=19)),
]


def values(command: Command) -> list[Any]:
    return [getattr(command, field.name) for field in dataclasses.fields(command)]


def frame_of(raw: bytes) -> Frame:
    reader = FrameReader(0)
    reader.feed(raw)
    frame = reader.next()
    assert frame is not None
    return frame


@pytest.mark.parametrize(("theirs", "ours"), RSTREAM, ids=lambda each: type(each).__name__)
def test_bytes_are_those_of_rstream(theirs: Any, ours: Command) -> None:
    raw = bytes(encode_frame(theirs))
    assert ours.encode() == raw
    assert connection_commands.decode(frame_of(raw)) == ours


GRAMMAR: list[tuple[str, Command]] = [
    ("00 15 00 01 00000005 0001 2f", Open("/", correlation_id=5)),
    ("80 15 00 01 00000005 000c", OpenAnswer(5, ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)),
    ("80 15 00 01 00000005 0001", OpenAnswer(5)),
    ("80 15 00 01 00000005 0001 00000001 0001 61 0001 62", OpenAnswer(5, properties={"a": "b"})),
    ("80 12 00 01 00000001 0001 00000001 0005 504c41494e", SaslHandshakeAnswer(1, mechanisms=("PLAIN",))),
    ("80 13 00 01 00000001 0001", SaslAuthenticateAnswer(1)),
    ("80 13 00 01 00000001 000a 00000002 abcd", SaslAuthenticateAnswer(1, 0x0A, b"\xab\xcd")),
    ("80 09 00 01 0004 07", CreditAnswer(4, 7)),
    ("80 0b 00 01 00000001 0013 0000000000000000", QueryOffsetAnswer(1, 0x13, 0)),
    ("80 1a 00 01 00000002 0001 0000", ConsumerUpdateAnswer(2)),
    (
        "80 1a 00 01 00000002 0001 0004 000000000000002a",
        ConsumerUpdateAnswer(2, offset=OffsetSpecification(OffsetType.OFFSET, 42)),
    ),
    (
        "00 1b 00 01 00000003 00000001 0008 0001 0002",
        ExchangeCommandVersions((CommandVersions(8, 1, 2),), correlation_id=3),
    ),
    (
        "80 1c 00 01 00000004 0001 00000001 0001 61 ffffffffffffffff",
        StreamStatsAnswer(4, values={"a": -1}),
    ),
    (
        "80 0f 00 01 00000006 00000001 0000 0001 68 000015b0 00000002"
        " 0001 61 0001 0000 00000001 0000 0001 62 0002 ffff 00000000",
        MetadataAnswer(
            6,
            (Broker(0, "h", 5552),),
            (StreamMetadata("a", 1, 0, (0,)), StreamMetadata("b", 2, NO_LEADER, ())),
        ),
    ),
    (
        "00 1d 00 01 00000007 0001 73 00000002 0003 732d30 0003 732d31 00000002 0001 30 0001 31 00000000",
        CreateSuperStream("s", ("s-0", "s-1"), ("0", "1"), correlation_id=7),
    ),
    ("80 18 00 01 00000008 0001 00000001 0003 732d30", RouteAnswer(8, streams=("s-0",))),
    (
        "00 1f 00 01 00000009 0001 73 0005 fffffffffffffffe",
        ResolveOffsetSpec("s", OffsetSpecification(OffsetType.TIMESTAMP, -2), correlation_id=9),
    ),
    (
        "80 1f 00 01 00000009 0001 0004 0000000000000005",
        ResolveOffsetSpecAnswer(9, offset=OffsetSpecification(OffsetType.OFFSET, 5)),
    ),
]
"""Written by hand from the protocol's grammar and docs/specifications.md, S-21 to S-27, S-61 to S-65, S-122, S-142."""


@pytest.mark.parametrize(("text", "value"), GRAMMAR, ids=lambda each: type(each).__name__)
def test_bytes_are_those_of_the_grammar(text: str, value: Command) -> None:
    content = bytes.fromhex(text)
    raw = struct.pack(">I", len(content)) + content
    assert connection_commands.decode(frame_of(raw)) == value
    assert value.encode() == raw


def test_a_challenge_with_the_brokers_int16_length_is_read_too() -> None:
    raw = bytes.fromhex("0000000e 8013 0001 00000001 000a 0002 abcd")
    assert connection_commands.decode(frame_of(raw)) == SaslAuthenticateAnswer(1, 0x0A, b"\xab\xcd")


def test_the_eight_unused_bytes_of_a_consumer_update_answer_are_ignored() -> None:
    raw = bytes.fromhex("00000014 801a 0001 00000002 0001 0003 0000000000000000")
    assert connection_commands.decode(frame_of(raw)) == ConsumerUpdateAnswer(
        2, offset=OffsetSpecification(OffsetType.NEXT)
    )


def test_every_key_of_the_seed_is_known() -> None:
    requests = {key for key, _ in connection_commands.COMMANDS if key < 0x8000}
    assert requests | connection_commands.COLUMNAR_KEYS == set(range(0x01, 0x20))
    answers = {key & 0x7FFF for key, _ in connection_commands.COMMANDS if key >= 0x8000}
    one_way = {0x02, 0x03, 0x04, 0x08, 0x0A, 0x10, 0x17}
    assert answers == set(range(0x01, 0x20)) - one_way


ALL = [value for _, value in (*RSTREAM, *GRAMMAR)]


@pytest.mark.parametrize("value", ALL, ids=lambda each: type(each).__name__)
def test_cut_anywhere_or_with_a_byte_more_it_is_refused_or_another_whole_command(value: Command) -> None:
    raw = value.encode()
    content = raw[4:]
    for end in range(4, len(content)):
        cut = struct.pack(">I", end) + content[:end]
        try:
            found = connection_commands.decode(frame_of(cut))
        except RemoteProtocolError:
            continue
        # Only what may be left out at the end may be missing: all else is read as it was said.
        assert isinstance(found, (Subscribe, Answer, ResolveOffsetSpec, Create, CreateSuperStream, PeerProperties))
        empty: Any = ({}, (), b"", 0, None)
        assert all(said == read or read in empty for said, read in zip(values(value), values(found), strict=True))
    more = struct.pack(">I", len(content) + 1) + content + b"\0"
    if not type(value).EXTRA:
        with pytest.raises(RemoteProtocolError):
            connection_commands.decode(frame_of(more))


@given(st.sampled_from(sorted(connection_commands.COMMANDS)), st.binary(max_size=200))
def test_garbage_is_a_protocol_error_and_nothing_else(key: tuple[int, int], content: bytes) -> None:
    raw = struct.pack(">IHH", len(content) + 4, *key) + content
    try:
        value = connection_commands.decode(frame_of(raw))
    except RemoteProtocolError:
        return
    assert type(value) is connection_commands.COMMANDS[key]


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1), st.binary(max_size=20))
def test_unknown_keys_and_versions_are_protocol_errors(key: int, version: int, content: bytes) -> None:
    if (key, version) in connection_commands.COMMANDS:
        return
    with pytest.raises(RemoteProtocolError, match="unknown frame"):
        connection_commands.decode(frame_of(struct.pack(">IHH", len(content) + 4, key, version) + content))


@pytest.mark.parametrize("count", [2**31 - 1, -1, -(2**31), 1000])
def test_a_count_is_checked_before_anything_is_allocated(count: int) -> None:
    raw = struct.pack(">IHHIi", 12, 0x000F, 1, 1, count)
    with pytest.raises(RemoteProtocolError, match="items"):
        connection_commands.decode(frame_of(raw))


def test_pairs_of_one_key_take_no_memory() -> None:
    count = 50_000
    content = struct.pack(">Ii", 1, count) + b"\xff\xff\xff\xff" * count
    frame = frame_of(struct.pack(">IHH", len(content) + 4, 0x11, 1) + content)
    tracemalloc.start()
    try:
        assert connection_commands.decode(frame) == PeerProperties({"": ""}, correlation_id=1)
        assert tracemalloc.get_traced_memory()[1] < len(content)
    finally:
        tracemalloc.stop()


def test_frames_come_out_whole_whatever_the_pieces() -> None:
    sent = [value for _, value in RSTREAM]
    raw = b"".join(value.encode() for value in sent)
    for size in (1, 3, 7, 64, len(raw)):
        reader = FrameReader(0)
        found = []
        for start in range(0, len(raw), size):
            reader.feed(raw[start : start + size])
            while (frame := reader.next()) is not None:
                found.append(connection_commands.decode(frame))
        assert found == sent


def test_a_frame_beyond_the_limit_is_refused_before_it_has_come() -> None:
    reader = FrameReader(100)
    reader.feed(struct.pack(">I", 101))
    with pytest.raises(FrameTooLarge, match="101"):
        reader.next()


def test_frames_behind_one_are_told_by_their_kind() -> None:
    def publish(content: bytes, version: int = 1) -> bytes:
        return struct.pack(">IHH", 4 + len(content), 2, version) + content

    def bodies_behind(raw: bytes) -> list[bytes]:
        reader = FrameReader(10)
        reader.feed(publish(b"a") + raw)
        frame, found = reader.next(), []
        assert frame is not None
        while (more := reader.next_like(frame)) is not None:
            found.append(more.buffer[more.start : more.end])
            frame = more
        return found

    assert bodies_behind(publish(b"bc") + publish(b"") + publish(b"d")) == [b"bc", b"", b"d"]
    assert bodies_behind(publish(b"bc") + publish(b"d", 2) + publish(b"e")) == [b"bc"]
    assert bodies_behind(publish(b"bc") + struct.pack(">IHH", 4, 3, 1) + publish(b"e")) == [b"bc"]
    assert bodies_behind(publish(b"bc")[:-1]) == bodies_behind(b"") == bodies_behind(b"\0" * 7) == []
    # What is wrong with it is told when it is read.
    assert bodies_behind(publish(b"x" * 7)) == bodies_behind(struct.pack(">IHH", 3, 2, 1)) == []


def test_a_frame_too_short_for_a_key_is_refused() -> None:
    reader = FrameReader(100)
    reader.feed(struct.pack(">I", 3) + b"abc")
    with pytest.raises(RemoteProtocolError, match="3 bytes"):
        reader.next()


@pytest.mark.parametrize(
    "value",
    [
        DeclarePublisher(256, "", "s"),
        DeclarePublisher(-1, "", "s"),
        StoreOffset("r", "s", -1),
        StoreOffset("r", "s" * 40_000, 1),
        Subscribe(1, "s", OffsetSpecification(OffsetType.OFFSET, -1), 1),
        Subscribe(1, "s", OffsetSpecification(65_536), 1),
    ],
    ids=repr,
)
def test_values_that_do_not_fit_are_our_own_fault(value: Command) -> None:
    with pytest.raises(LocalProtocolError):
        value.encode()


def test_lengths_count_bytes_not_characters() -> None:
    raw = Open("é☃", correlation_id=1).encode()
    assert raw == bytes.fromhex("0000000f 0015 0001 00000001 0005 c3a9 e29883")


def test_codes_have_the_names_of_the_table() -> None:
    assert code_name(0x02) == "stream-does-not-exist (0x02)"
    assert code_name(0x77) == "code 0x77"
    assert [int(code) for code in ResponseCode] == list(range(0x01, 0x16))


def test_no_password_shows() -> None:
    assert "p4ss" not in repr(SaslAuthenticate("PLAIN", b"\0u\0p4ss"))
    assert isinstance(SaslAuthenticate("PLAIN"), Request)


def test_a_command_becomes_a_dataclass_when_the_first_is_made_or_read() -> None:
    class Made(Request, key=0x7000):
        name: Text = ""

    class Read(Request, key=0x7001):
        name: Text

    assert not any("__dataclass_fields__" in vars(kind) for kind in (Made, Read))
    assert Made("x", correlation_id=1) == Made("x", correlation_id=1) != Made(correlation_id=1)
    assert Read.decode(frame_of(bytes.fromhex("0000000b 7001 0001 00000001 0001 78"))) == Read("x", correlation_id=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Made("x").name = "y"  # type: ignore[misc]
