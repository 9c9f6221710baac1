"""Filtered subscriptions to stored batches that mix filter values: the door sends the runs that match, and no more.

A broker sends whole chunks, which a client has to be ready for; so what is asserted of both is what a client needs:
every record that matches comes, once, at its offset. What is asserted of the door alone is that others do not come.

Spec: Streams Protocol Reference, Subscribe (filter.*), Deliver; docs/specifications.md,
S-31 to S-37, S-52, S-91 to S-93.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from spark_streams.log import LogConfig, StreamConfig
from spark_streams.log.format.batch_headers import RecordCodes, encode_codes
from spark_streams.server import turns
from spark_streams.server.rabbitmq.chunk_parts import CHUNK_BYTES
from spark_streams.server.rabbitmq.chunks import Chunks
from spark_streams.server.rabbitmq.filter_values import (
    FEW,
    MAX_TABLE,
    VALUES_NOTE,
    Sought,
    ValueColumn,
    value_notes,
    values_of,
)
from spark_streams.server.rabbitmq.subscription import Subscription
from spark_streams.server.turns import Turn
from spark_streams.wire.rabbitmq.publish_decode import decode_publish
from tests.real_rabbitmq.by_hand import CONSUMER_UPDATE, DELIVER, FIRST, RESPONSE, Chunk, Peer, filtered, offset
from tests.server.rabbitmq.consuming import delivered, grant, records

Entry = tuple["str | None", bytes]


def publish(peer: Peer, stream: str, entries: Sequence[Entry], each: int = 1_000) -> None:
    """Publish entries, each frame stored before the next: a stored batch a frame."""
    assert peer.declare(250, stream) == 1
    for first in range(0, len(entries), each):
        part = entries[first : first + each]
        peer.publish(250, [filtered(first + n, value, body) for n, (value, body) in enumerate(part)], version=2)
        peer.confirmed(len(part))
    peer.ask(6, bytes([250]))  # DeletePublisher


def rows_of(chunks: Sequence[Chunk]) -> list[tuple[int, bytes]]:
    """Return offset and message of all records; the chunks have to be well-formed and in order."""
    rows: list[tuple[int, bytes]] = []
    for each in chunks:
        found = records(each)
        assert each.crc == zlib.crc32(each.rest[: each.data_length])
        assert len(each.rest) == each.data_length
        assert len(found) == each.records == each.entries
        assert not rows or rows[-1][0] < each.first
        rows += [(each.first + n, body) for n, body in enumerate(found)]
    return rows


def mixed(count: int, size: int = 200) -> list[Entry]:
    """Entries of which one in a hundred is `rare`."""
    return [("rare" if n % 100 == 37 else "often", b"%06d" % n + b"." * (size + n % 3)) for n in range(count)]


def bodies(entries: Sequence[Entry], *values: str | None) -> list[tuple[int, bytes]]:
    return [(n, body) for n, (value, body) in enumerate(entries) if value in values]


def all_delivered(peer: Peer, stream: str, subscription: int = 1) -> list[Chunk]:
    """Everything that comes while credit is granted."""
    found: list[Chunk] = []
    while part := delivered(peer, stream):
        found += part
        grant(peer, subscription, len(part))
    return found


@pytest.mark.parametrize("versions", [(), ((DELIVER, 1, 2),)], ids=["deliver-1", "deliver-2"])
def test_every_record_that_matches_comes_once(broker: Any, versions: Any) -> None:
    entries = mixed(3_000)
    stream, peer = broker.stream(), broker.peer(versions)
    publish(peer, stream, entries)
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "rare"}) == 1
    found = rows_of(all_delivered(peer, stream))
    assert [row for row in found if row in set(bodies(entries, "rare"))] == bodies(entries, "rare")


def test_only_what_matches_comes_and_bytes_fall_in_proportion(door: Any) -> None:
    entries = mixed(10_000)
    stream, peer = door.stream(), door.peer()
    publish(peer, stream, entries)
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "rare"}) == 1
    chunks = all_delivered(peer, stream)
    assert rows_of(chunks) == bodies(entries, "rare")
    assert peer.subscribe(2, stream, FIRST, 10) == 1
    whole = all_delivered(peer, stream, 2)
    assert rows_of(whole) == list(enumerate(body for _, body in entries))
    sent, everything = (sum(CHUNK_BYTES + each.data_length for each in part) for part in (chunks, whole))
    # A hundredth of the entries, each with a header: a chunk's 57 bytes beside an entry of some 210.
    assert sent < everything * 0.01 * (210 + CHUNK_BYTES) / 210 * 1.05


def test_chunks_tell_the_size_of_the_trailer_and_bloom_filter_also_where_only_some_of_it_comes(broker: Any) -> None:
    """As test_subscribe.py has it without a filter: 10 bytes and the reference."""
    entries = mixed(2_000)
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [filtered(1 + n, value, body) for n, (value, body) in enumerate(entries)], version=2)
    peer.confirmed(len(entries))
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "rare"}) == 1
    found = all_delivered(peer, stream)
    assert [row for row in rows_of(found) if row in set(bodies(entries, "rare"))] == bodies(entries, "rare")
    assert {(each.trailer_length, each.bloom_size) for each in found} == {(13, 16)}


def test_a_run_of_neighbours_is_one_chunk(door: Any) -> None:
    big = b"x" * 300
    values = ["a", "a", "b", "b", "a", None, "", "b", "b", "b", "a"]
    entries: list[Entry] = [(value, b"%02d" % n + big) for n, value in enumerate(values)]
    stream, peer = door.stream(), door.peer()
    publish(peer, stream, entries)
    asked: list[tuple[dict[str, str], list[tuple[int, int]]]] = [
        ({"filter.0": "a"}, [(0, 2), (4, 1), (10, 1)]),
        ({"filter.0": "b"}, [(2, 2), (7, 3)]),
        ({"filter.0": "c", "match-unfiltered": "true"}, [(5, 2)]),
        ({"filter.0": "b", "match-unfiltered": "true"}, [(2, 2), (5, 5)]),
        ({"filter.0": "a", "filter.1": "b"}, [(0, 5), (7, 4)]),
        ({"filter.0": "a", "filter.1": "b", "match-unfiltered": "true"}, [(0, 11)]),
        ({"filter.0": ""}, [(5, 2)]),
        ({"filter.0": "c"}, []),
    ]
    for number, (properties, expected) in enumerate(asked):
        assert peer.subscribe(number, stream, FIRST, 10, properties) == 1
        assert [(each.first, each.records) for each in delivered(peer, stream)] == expected, properties


def test_a_gap_that_takes_fewer_bytes_than_a_chunk_is_sent_along(door: Any) -> None:
    def entries(gap: int) -> list[Entry]:
        return [("a", b"first"), ("b", b"." * gap), ("a", b"second"), ("b", b"b" * 200)]

    for gap, expected in ((CHUNK_BYTES - 4, [(0, 3)]), (CHUNK_BYTES - 3, [(0, 1), (2, 1)])):
        stream, peer = door.stream(f"gap{gap}"), door.peer()
        publish(peer, stream, entries(gap))
        assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "a"}) == 1
        assert [(each.first, each.records) for each in delivered(peer, stream)] == expected


def test_a_run_costs_one_credit_and_the_next_one_waits_for_more(door: Any) -> None:
    entries = mixed(1_000)
    stream, peer = door.stream(), door.peer()
    publish(peer, stream, entries)
    expected = bodies(entries, "rare")
    assert peer.subscribe(1, stream, FIRST, 3, {"filter.0": "rare"}) == 1
    assert rows_of(delivered(peer, stream)) == expected[:3]
    assert delivered(peer, stream) == []
    for n in range(3, 6):
        grant(peer, 1, 1)
        assert rows_of(delivered(peer, stream)) == expected[n : n + 1]
    grant(peer, 1, 100)
    assert rows_of(delivered(peer, stream)) == expected[6:]
    publish(peer, stream, [("often", b"x"), ("rare", b"y")])
    assert [each[1] for each in rows_of(delivered(peer, stream))][-1] == b"y"


def test_a_start_inside_of_a_batch_begins_with_its_chunk(door: Any) -> None:
    entries = mixed(1_000)
    stream, peer = door.stream(), door.peer()
    publish(peer, stream, entries)
    assert peer.subscribe(1, stream, offset(500), 100, {"filter.0": "rare"}) == 1
    found = rows_of(all_delivered(peer, stream))
    assert [row for row in found if row[0] >= 500] == bodies(entries, "rare")[5:]


@pytest.mark.parametrize("properties", [{}, {"x-opt-selections": "true"}, {"match-unfiltered": "true"}])
@pytest.mark.parametrize("start", [1_000, 1_037, 1_038])
def test_no_chunk_lies_wholly_before_the_offset_that_is_asked_for(
    broker: Any, properties: dict[str, str], start: int
) -> None:
    """Clients leave out what lies before it in the first chunk that comes, and in no other."""
    stream, peer = broker.stream(), broker.peer()
    publish(peer, stream, mixed(2_000), each=2_000)
    assert peer.subscribe(1, stream, offset(start), 10, {"filter.0": "rare", **properties}) == 1
    first, *others = all_delivered(peer, stream)
    assert first.first + first.records > start
    assert all(each.first > start for each in others)


def test_no_chunk_lies_wholly_before_the_offset_that_a_consumer_of_a_group_answers(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    publish(peer, stream, mixed(2_000), each=2_000)
    properties = {"filter.0": "rare", "single-active-consumer": "true", "name": "group"}
    assert peer.subscribe(1, stream, FIRST, 10, properties) == 1
    asked = peer.expect(CONSUMER_UPDATE)
    peer.send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IH", asked.correlation, 1) + offset(1_000))
    first, *others = all_delivered(peer, stream)
    assert first.first + first.records > 1_000
    assert all(each.first > 1_000 for each in others)


def test_batches_of_any_kind_side_by_side(doors: Callable[..., Any]) -> None:
    """Mixed ones, of one value, without any, and those of a log that does not know which record has which."""
    chance = random.Random(7)
    door = doors()
    stream, peer = door.stream(), door.peer()
    partition = door.partition(stream)
    entries: list[Entry] = []
    unknown: set[int] = set()
    for n in range(60):
        kind, count = chance.randrange(4), chance.randrange(1, 40)
        values: list[str | None] = [chance.choice(["a", "b", "c", None, ""]) for _ in range(count)]
        if kind in (0, 3):
            values = [values[0]] * count
        part: list[Entry] = [(value, b"%d-%d" % (n, row) + b"." * 99) for row, value in enumerate(values)]
        if kind == 3:
            notes = [note for note in value_notes([(_column(part), 0, count)], 16) if note[0] != VALUES_NOTE]
            door.server.call(lambda part=part, notes=notes: partition.append([b for _, b in part], notes=notes))
            unknown.update(range(len(entries), len(entries) + count))
        else:
            publish(peer, stream, part)
        entries += part
    for number, asked in enumerate([("a",), ("b", "c"), ("d",), ("a", None, "")]):
        properties = {f"filter.{i}": value for i, value in enumerate(asked) if value}
        properties |= {"match-unfiltered": "true"} if None in asked else {}
        assert peer.subscribe(number, stream, FIRST, 10, properties) == 1
        found = rows_of(all_delivered(peer, stream, number))
        wanted = bodies(entries, *asked)
        assert [row for row in found if row in set(wanted)] == wanted
        assert all(entries[row][1] == body for row, body in found)


def _column(entries: Sequence[Entry]) -> ValueColumn:
    known = sorted({value.encode() for value, _ in entries if value})
    codes = [1 + known.index(value.encode()) if value else 0 for value, _ in entries]
    return ValueColumn(np.array(codes, np.int64), tuple(known))


def test_another_start_and_retention_change_nothing(doors: Callable[..., Any]) -> None:
    entries = mixed(4_000)
    first = doors(folder="kept")
    stream = "kept-stream"
    peer = first.peer()
    assert peer.create(stream, **{"stream-max-segment-size-bytes": "200000", "max-length-bytes": "500000"}) == 1
    publish(peer, stream, entries, each=500)
    peer.close()  # or the server waits for its farewell
    first.server.stop()
    first.log.close()
    door = doors(folder="kept")
    peer = door.peer()
    door.server.call(door.log.enforce_retention)
    begin = door.partition(stream).first_offset
    assert 0 < begin < 4_000
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "rare"}) == 1
    assert rows_of(all_delivered(peer, stream)) == [row for row in bodies(entries, "rare") if row[0] >= begin]


def test_retention_under_a_subscription_that_waits_for_credit(doors: Callable[..., Any]) -> None:
    door = doors(log_config=LogConfig())
    stream, peer = door.stream(**{"stream-max-segment-size-bytes": "200000", "max-length-bytes": "500000"}), door.peer()
    entries = mixed(6_000)
    publish(peer, stream, entries[:1_000], each=500)
    assert peer.subscribe(1, stream, FIRST, 2, {"filter.0": "rare"}) == 1
    assert rows_of(delivered(peer, stream)) == bodies(entries, "rare")[:2]
    publish(peer, stream, entries[1_000:], each=500)
    door.server.call(door.log.enforce_retention)
    begin = door.partition(stream).first_offset
    assert begin > 1_000
    grant(peer, 1, 10)
    assert rows_of(all_delivered(peer, stream)) == [row for row in bodies(entries, "rare") if row[0] >= begin]


def test_a_split_that_takes_the_history_along(doors: Callable[..., Any]) -> None:
    door = doors()
    log = door.server.call(lambda: door.log.create_stream("s", 1, StreamConfig()))
    peer = door.peer()
    entries = mixed(2_000)
    publish(peer, "s", entries)
    door.server.call(lambda: door.log.split_partition("s", "0", history=True))
    again, found = door.peer(), []
    for number, partition in enumerate(log.partitions):
        assert again.subscribe(number, f"s-{partition}", FIRST, 10, {"filter.0": "rare"}) == 1
        found += [body for _, body in rows_of(all_delivered(again, f"s-{partition}", number))]
    assert len(log.partitions) == 2
    assert sorted(found) == [body for _, body in bodies(entries, "rare")]


def test_many_values_are_told_by_two_bytes_a_record(door: Any) -> None:
    """Beyond what a table holds; values of any length."""
    entries: list[Entry] = [(f"{n % 1_000}" * 40, b"%06d" % n + b"." * 100) for n in range(3_000)]
    stream, peer = door.stream(), door.peer()
    publish(peer, stream, entries, each=3_000)
    note = next(value for name, value in door.partition(stream).last_batch().notes if name == VALUES_NOTE)
    assert len(note) <= 2 * 3_000 + 9
    assert len({value for value, _ in entries}) > MAX_TABLE
    wanted = str(77) * 40
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": wanted}) == 1
    found = rows_of(all_delivered(peer, stream))
    # One value in 65,535 passes by mistake: with these none does.
    assert found == bodies(entries, wanted)


@pytest.mark.parametrize("count", [1, 2, 255, 256, 700])
def test_what_is_wanted_is_never_left_out(count: int) -> None:
    chance = np.random.default_rng(count)
    values = tuple(b"value %d" % n for n in range(count))
    codes = chance.integers(0, count + 1, 2_000)
    notes = value_notes(
        [(ValueColumn(codes, values), 0, 1_200), (None, 0, 5), (ValueColumn(codes, values), 1_200, 2_000)], 16
    )
    codes = np.concatenate((codes[:1_200], np.zeros(5, np.int64), codes[1_200:]))
    for asked, unfiltered in ((values[:1], False), (values[-1:], True), (values[::2], False), ((b"",), False)):
        sought = Sought(asked, unfiltered)
        assert sought.may_match(notes)
        found = sought.rows(notes, 2_005)
        assert found is not None
        numbers = [1 + values.index(value) for value in asked if value]
        wanted = np.isin(codes, numbers) | ((codes == 0) & (unfiltered or b"" in asked))
        assert not (wanted & ~found).any()
        assert (found & ~wanted).mean() < 0.02
    assert Sought([values[0]], False).rows(notes, 2_004) is None  # of another batch


def test_a_damaged_note_has_the_whole_batch_sent(door: Any) -> None:
    stream, peer = door.stream(), door.peer()
    partition = door.partition(stream)
    codes = RecordCodes(np.array([1, 2]), 2, b"\0\0\0\0")  # code 2 is not in the table
    for value in (b"", b"garbage that is no note", None, encode_codes(codes)):
        notes = [(b"rabbitmq-publishers", b"{"), (b"rabbitmq-bloom", b"\xff" * 16), (VALUES_NOTE, value)]
        door.server.call(lambda notes=notes: partition.append([b"x", b"y"], notes=notes))
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "a"}) == 1
    assert [(each.first, each.records) for each in delivered(peer, stream)] == [(0, 2), (2, 2), (4, 2), (6, 2)]


def test_a_client_that_takes_selections_gets_one_for_each_chunk(door: Any) -> None:
    """Ours does; to a broker the property means nothing."""
    entries = mixed(3_000)
    stream, peer = door.stream(), door.peer()
    publish(peer, stream, entries)
    publish(peer, stream, [("rare", b"1"), ("rare", b"2")])
    found: dict[str, list[Chunk]] = {}
    for number, asked in enumerate(("true", "TRUE", "false")):
        properties = {"filter.0": "rare", "x-opt-selections": asked}
        assert peer.subscribe(number, stream, FIRST, 10, properties) == 1
        found[asked] = all_delivered(peer, stream, number)
    assert [(each.type, each.first, each.entries, each.records) for each in found["true"]] == [
        (128, 0, 10, 1_000),
        (128, 1_000, 10, 1_000),
        (128, 2_000, 10, 1_000),
        (0, 3_000, 2, 2),
    ]
    for each in found["true"][:3]:
        offsets = [each.first + int(n) for n in np.frombuffer(each.rest[: 4 * each.entries], ">u4")]
        assert offsets == [each.first + 37 + 100 * n for n in range(10)]
        assert each.crc == zlib.crc32(each.rest)
    assert {each.type for asked in ("TRUE", "false") for each in found[asked]} == {0}
    assert rows_of(found["false"]) == [*bodies(entries, "rare"), (3_000, b"1"), (3_001, b"2")]


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 500])
def test_values_of_a_frame(count: int) -> None:
    """One by one and in columns."""
    values = [("é" * (n % 3), None, "b", "b" * (n % 40))[n % 4] for n in range(count)]
    entries = b"".join(filtered(n, value, b"m" * (n % 9)) for n, value in enumerate(values))
    frame = b"\x07" + struct.pack(">I", count) + entries
    published = decode_publish(frame, 0, len(frame), 2)
    found = values_of(published)
    expected = [value.encode() if value else None for value in values]
    if not any(expected):
        assert found is None
        return
    assert found is not None
    assert [(None, *found.values)[code] for code in found.codes.tolist()] == expected
    assert len(set(found.values)) == len(found.values)
    kept = np.arange(count) % 5 != 3
    some = found.only(kept)
    assert [(None, *some.values)[code] for code in some.codes.tolist()] == np.array(expected)[kept].tolist()


def chunk_for_each_record(door: Any, count: int, rare: int) -> str:
    """A stream with one stored batch of ``count`` records, each with a time of its own; only one is `rare`."""
    name = f"{door.prefix}-times"
    log_stream = door.log.create_stream(name, 1, StreamConfig(timestamp_type="create"))
    codes = np.ones(count, np.int64)
    codes[rare] = 2
    log_stream.partitions["0"].append(
        [b"\0Su\xa0\x04%04d" % n for n in range(count)],
        timestamps=np.arange(count) + 1_000,
        notes=value_notes([(ValueColumn(codes, (b"often", b"rare")), 0, count)], 16),
    )
    return name


def test_chunks_of_a_batch_without_a_wanted_record_are_not_looked_at(
    door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    run = Chunks.run
    stream, peer = chunk_for_each_record(door, 500, 400), door.peer()
    monkeypatch.setattr(Chunks, "run", lambda self, at, *limits: looked.append(at) or run(self, at, *limits))
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "rare"}) == 1
    (only,) = all_delivered(peer, stream)
    assert only.first == 400
    assert set(looked) == {400, 499}, "the wanted one, and the last one, whose id is in each Deliver"


def test_a_turn_ends_between_two_chunks_of_a_batch(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    deliver = Subscription.deliver

    def counted(self: Subscription, budget: int, turn: Turn) -> tuple[int, bool]:
        credit = self._credit
        delivered = deliver(self, budget, turn)
        sent.append(credit - self._credit)
        return delivered

    stream, peer = chunk_for_each_record(door, 50, 0), door.peer()
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(Subscription, "deliver", counted)
    assert peer.subscribe(1, stream, FIRST, 100, {"filter.0": "often"}) == 1
    assert [each.first for each in all_delivered(peer, stream)] == list(range(1, 50))
    assert max(sent) == 1
