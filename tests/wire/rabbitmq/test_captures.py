"""Commands as rstream and real brokers sent them, both directions: each is read, written again and cut everywhere."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq import connection_commands
from spark_streams.wire.rabbitmq.connection_commands import (
    CloseAnswer,
    ExchangeCommandVersionsAnswer,
    Heartbeat,
    OpenAnswer,
    PeerPropertiesAnswer,
    SaslHandshakeAnswer,
    Tune,
    TuneAnswer,
)
from spark_streams.wire.rabbitmq.consumer_commands import (
    ConsumerUpdate,
    CreditAnswer,
    OffsetSpecification,
    OffsetType,
    ResolveOffsetSpec,
    Subscribe,
)
from spark_streams.wire.rabbitmq.frames import Command, Frame, FrameReader, ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import (
    CreateSuperStream,
    MetadataUpdate,
    PartitionsAnswer,
    StreamStatsAnswer,
)

GOLDEN = Path(__file__).parent / "golden"


def captured(broker: str) -> dict[str, bytes]:
    lines = (GOLDEN / f"rabbitmq-{broker}.hex").read_text().splitlines()
    return {f"{broker}-{line.split()[0]}": bytes.fromhex(line.split()[1]) for line in lines if not line.startswith("#")}


def key_of(raw: bytes) -> tuple[int, int]:
    key, version = struct.unpack_from(">HH", raw, 4)
    return key, version


FRAMES = captured("3.10") | captured("4.3")
UNMARKED = {name: raw for name, raw in FRAMES.items() if re.match(r"3\.10-server-(route|partitions)-", name)}
"""RabbitMQ 3.10 forgets the bit that marks these as answers."""
FRAMES |= {name: raw[:4] + bytes([0x80 | raw[4]]) + raw[5:] for name, raw in UNMARKED.items()}
COMMANDS = {name: raw for name, raw in FRAMES.items() if key_of(raw) in connection_commands.COMMANDS}
COLUMNAR = {name: raw for name, raw in FRAMES.items() if key_of(raw)[0] in connection_commands.COLUMNAR_KEYS}
ODD = set(FRAMES) - set(COMMANDS) - set(COLUMNAR)

EMPTY_PROPERTIES = b"\0\0\0\0"
"""Some clients write the count of no properties, ours leaves it out; both are in the captures."""


def frame_of(raw: bytes) -> Frame:
    reader = FrameReader(0)
    reader.feed(raw)
    frame = reader.next()
    assert frame is not None
    assert reader.next() is None
    return frame


def found(name: str) -> Command:
    return connection_commands.decode(frame_of(FRAMES[name]))


def test_every_command_was_captured() -> None:
    assert {key_of(raw) for raw in COMMANDS.values()} == set(connection_commands.COMMANDS)
    assert {key_of(raw) for raw in COLUMNAR.values()} == {(2, 1), (2, 2), (3, 1), (4, 1), (8, 1), (8, 2)}
    assert {key_of(FRAMES[name])[0] for name in ODD} == {0x63}, "sent on purpose, for the broker to close"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_captured_command_is_read_and_written_again(name: str) -> None:
    raw = FRAMES[name]
    value = found(name)
    ours = value.encode()
    if ours == raw:
        return
    assert isinstance(value, (Subscribe, ResolveOffsetSpec)), f"{value} is written as {ours.hex()}"
    assert not value.properties
    assert ours[4:] + EMPTY_PROPERTIES == raw[4:]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_captured_command_cut_anywhere(name: str) -> None:
    raw = FRAMES[name]
    whole = found(name)
    for end in range(8, len(raw)):
        cut = struct.pack(">I", end - 4) + raw[4:end]
        try:
            part = connection_commands.decode(frame_of(cut))
        except RemoteProtocolError:
            continue
        assert type(part) is type(whole)
        assert getattr(part, "code", None) == getattr(whole, "code", None), "only what may be missing is missing"


def test_answers_without_the_bit_are_as_captured() -> None:
    assert len(UNMARKED) == 5
    assert {key_of(raw)[0] for raw in UNMARKED.values()} == {0x18, 0x19}


@pytest.mark.parametrize("name", sorted(ODD))
def test_an_unknown_command(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown frame: key 0x0063"):
        found(name)


def one(kind: type[Command], broker: str, direction: str) -> list[Command]:
    """Return all captured commands of a kind."""
    names = [name for name in COMMANDS if name.startswith(f"{broker}-{direction}-")]
    values = [value for value in map(found, names) if type(value) is kind]
    assert values
    return values


def test_what_a_broker_said() -> None:
    """Not only that the bytes come back: what they mean, as the broker's own tools and settings have it."""
    (tune, *_) = one(Tune, "4.3", "server")
    assert tune == Tune(1 << 20, 60)
    assert TuneAnswer(1 << 20, 60) in one(TuneAnswer, "4.3", "client")
    properties = one(PeerPropertiesAnswer, "4.3", "server")[0]
    assert isinstance(properties, PeerPropertiesAnswer)
    assert properties.properties["product"] == "RabbitMQ"
    assert properties.properties["version"].startswith("4.3.")
    mechanisms = one(SaslHandshakeAnswer, "4.3", "server")[0]
    assert isinstance(mechanisms, SaslHandshakeAnswer)
    assert set(mechanisms.mechanisms) == {"PLAIN", "AMQPLAIN", "ANONYMOUS"}
    opened = one(OpenAnswer, "4.3", "server")[0]
    assert isinstance(opened, OpenAnswer)
    assert opened.properties["advertised_host"] == "127.0.0.1"
    versions = one(ExchangeCommandVersionsAnswer, "4.3", "server")[0]
    assert isinstance(versions, ExchangeCommandVersionsAnswer)
    assert versions.maximum[0x02] == 2
    assert versions.maximum[0x1F] == 1
    assert 0x08 not in versions.maximum, "what it receives"
    opening = {*range(0x11, 0x16), 0x1A, 0x1B}
    assert set(versions.maximum) == {each.key for each in connection_commands.SERVER_RECEIVES} - opening
    assert one(CloseAnswer, "4.3", "server")
    assert one(Heartbeat, "4.3", "server") == [Heartbeat()]
    refused = one(CreditAnswer, "4.3", "server")
    assert {value.code for value in refused if isinstance(value, CreditAnswer)} >= {4}
    (gone,) = one(MetadataUpdate, "4.3", "server")
    assert isinstance(gone, MetadataUpdate)
    assert gone.code == ResponseCode.STREAM_NOT_AVAILABLE


def test_what_newer_brokers_said() -> None:
    asked = one(ConsumerUpdate, "4.3", "server")
    assert {value.active for value in asked if isinstance(value, ConsumerUpdate)} == {0, 1}
    held = [value for value in one(StreamStatsAnswer, "4.3", "server") if isinstance(value, StreamStatsAnswer)]
    names = {"first_chunk_id", "last_chunk_id", "committed_chunk_id", "committed_offset"}
    assert any(names <= set(value.values) for value in held)
    assert any(value.code == ResponseCode.STREAM_DOES_NOT_EXIST for value in held)
    parts = [value for value in one(PartitionsAnswer, "4.3", "server") if isinstance(value, PartitionsAnswer)]
    created = [value for value in one(CreateSuperStream, "4.3", "client") if isinstance(value, CreateSuperStream)]
    assert created[0].partitions in {value.streams for value in parts}


@pytest.mark.parametrize("broker", ["3.10", "4.3"])
def test_the_five_offset_specifications(broker: str) -> None:
    asked = [value.offset for value in one(Subscribe, broker, "client") if isinstance(value, Subscribe)]
    assert {offset.type for offset in asked} == {1, 2, 3, 4, 5}
    assert OffsetSpecification(OffsetType.NEXT) in asked
