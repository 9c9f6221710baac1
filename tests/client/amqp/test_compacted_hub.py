"""A hub whose numbers have holes: ranges end by numbers, and what no event proves only by a silence (H-6 to H-8).

The client looks every ``LOOK_AFTER_S``, two seconds, which are a hundredth of one here: what the hub does is scripted
by the number of the look, so that no test depends on the machine's speed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import credit, range_reader
from spark_streams.client.amqp.credit import LOOKS_OF_SILENCE
from spark_streams.endpoint import Secret, parse_url
from spark_streams.errors import PositionLost
from spark_streams.position import EARLIEST, After, At
from tests.client.amqp.fake_hub import HUB, FakeHub, Partition
from tests.client.amqp.fake_namespace import KEY, RULE

LAST = 4_229


def offset(number: int) -> str:
    return f"{number:020d}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(credit, "LOOK_AFTER_S", 0.01)
    bodies = [b"%d" % n for n in range(4_210, LAST + 1)]
    with FakeHub({"0": Partition(4_210, bodies, {LAST})}) as served:
        yield served


def numbers(hub: FakeHub, start: Any, end: int, *, rows: int = 97, **more: Any) -> list[int]:
    """The numbers of the rows of a range, by a client of its own."""
    endpoint = parse_url(hub.url).with_credentials(RULE, Secret(KEY))
    with AmqpClient(endpoint, timeout_ms=120_000) as client:
        read = RangeRead(HUB, "0", start, offset(end), ("offset", "value"), **more)
        found = [row for batch in client.fetch(read, max_rows=rows) for row in batch.to_pylist()]
    assert all(row["value"] == b"%d" % int(row["offset"]) for row in found)
    return [int(row["offset"]) for row in found]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("start", [EARLIEST, At(offset(4_210)), After(offset(4_209))], ids=str)
def test_an_end_that_no_event_proves(hub: FakeHub, start: Any, fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Case 16: a partition from 4210 to 4229 without 4229."""
    with caplog.at_level(logging.WARNING):
        assert numbers(hub, start, LAST, fail_on_data_loss=fails) == list(range(4_210, LAST))
    assert hub.looks >= LOOKS_OF_SILENCE + 1
    assert [r.getMessage() for r in caplog.records if f"offset '{offset(LAST)}'" in r.getMessage()] != []
    assert "Events may have been lost" not in caplog.text


def test_nothing_but_holes_is_an_end_too(hub: FakeHub) -> None:
    hub.partitions["0"].holes = set(range(4_221, LAST + 1))
    assert numbers(hub, After(offset(4_224)), 4_227) == []
    hub.partitions["0"].holes = set(range(4_210, LAST + 1))
    assert numbers(hub, EARLIEST, LAST) == []


def test_an_end_in_a_hole_is_proved_by_the_event_behind_it(hub: FakeHub) -> None:
    """As where maxOffsetsPerTrigger cuts: nobody waits."""
    hub.partitions["0"].holes = {4_214, 4_219, 4_220}
    assert numbers(hub, After(offset(4_213)), 4_220) == [4_215, 4_216, 4_217, 4_218]
    assert numbers(hub, After(offset(4_220)), LAST) == list(range(4_221, LAST + 1))
    assert hub.looks < LOOKS_OF_SILENCE


@pytest.mark.parametrize("what", ["created_at", "last number"])
def test_a_hub_that_says_something_else_begins_the_silence_anew(hub: FakeHub, what: str) -> None:
    changed_at = LOOKS_OF_SILENCE - 2

    def look(number: int) -> None:
        if number == changed_at and what == "created_at":
            hub.created_ms += 1
        elif number == changed_at:
            hub.partitions["0"].holes.add(LAST + 1)
            hub.partitions["0"].bodies.append(b"")

    hub.on_look = look
    assert numbers(hub, EARLIEST, LAST) == list(range(4_210, LAST))
    assert hub.looks >= changed_at + LOOKS_OF_SILENCE


@pytest.mark.parametrize("released_at", [1, 10, LOOKS_OF_SILENCE - 1])
def test_a_slow_hub_is_no_end(hub: FakeHub, released_at: int) -> None:
    """Ten looks are the 20 s that the hub's door stalls, while it goes on answering questions."""
    hub.partitions["0"].holes.clear()
    hub.held = True

    def look(number: int) -> None:
        hub.held = number < released_at

    hub.on_look = look
    assert numbers(hub, EARLIEST, LAST) == list(range(4_210, LAST + 1))


def test_a_hub_that_answers_nothing_is_not_silent_meanwhile(hub: FakeHub) -> None:
    """It stalls as a whole in one look: however long that lasts, it counts as one."""
    hub.partitions["0"].holes.clear()
    hub.held = True
    stalled, goes_on, found = threading.Event(), threading.Event(), list[list[int]]()

    def look(number: int) -> None:
        if number == 3:
            stalled.set()
            assert goes_on.wait(120)
        hub.held = number < 6

    hub.on_look = look
    reader = threading.Thread(target=lambda: found.append(numbers(hub, EARLIEST, LAST)))
    reader.start()
    assert stalled.wait(120)
    reader.join(50 * credit.LOOK_AFTER_S)  # as many looks' time as a silence has, and more
    assert reader.is_alive() and hub.looks == 3
    goes_on.set()
    reader.join(120)
    assert found == [list(range(4_210, LAST + 1))]


def test_what_has_no_event_is_a_loss_below_the_first_retained_number(hub: FakeHub) -> None:
    """The first number is read again after the range: retention may have passed the hole before it was read."""
    hub.partitions["0"].holes = {4_215}
    assert numbers(hub, EARLIEST, LAST, rows=8) == [n for n in range(4_210, LAST + 1) if n != 4_215]
    first_look = hub.looks

    def look(number: int) -> None:
        if number == first_look + 2:
            hub.partitions["0"].retain(4_220)

    hub.on_look = look
    with pytest.raises(PositionLost, match=f"after '{offset(4_214)}', but .* from '{offset(4_220)}'"):
        numbers(hub, EARLIEST, LAST, rows=8)


def test_a_hole_at_the_end_is_a_loss_below_the_first_retained_number(hub: FakeHub) -> None:
    last_look = LOOKS_OF_SILENCE + 2

    def look(number: int) -> None:
        if number == last_look:  # the one behind the silence
            hub.partitions["0"].bodies.append(b"%d" % (LAST + 1))
            hub.partitions["0"].retain(LAST + 1)

    hub.on_look = look
    with pytest.raises(PositionLost, match=f"after '{offset(LAST - 1)}'"):
        numbers(hub, EARLIEST, LAST)


def test_an_event_that_comes_below_an_end_is_told(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    partition = hub.partitions["0"]
    assert numbers(hub, EARLIEST, LAST) == list(range(4_210, LAST))
    partition.bodies.append(b"%d" % (LAST + 1))
    assert numbers(hub, After(offset(LAST)), LAST + 1) == [LAST + 1], "it is a hole still"
    partition.holes.clear()
    with pytest.raises(PositionLost, match=rf"after '{offset(LAST)}', but an event up to there has come late"):
        numbers(hub, After(offset(LAST)), LAST + 1)
    with caplog.at_level(logging.WARNING):
        assert numbers(hub, After(offset(LAST)), LAST + 1, fail_on_data_loss=False) == [LAST + 1]
    assert caplog.text.count("Events may have been lost") == 1
    assert numbers(hub, After(offset(LAST - 1)), LAST) == [LAST]
    assert numbers(hub, After(offset(LAST)), LAST + 1) == [LAST + 1], "who has read it goes on behind it"


def test_ends_that_events_prove_are_not_asked_for_again(hub: FakeHub) -> None:
    hub.partitions["0"].holes.clear()
    assert numbers(hub, EARLIEST, LAST) == list(range(4_210, LAST + 1))
    hub.partitions["0"].bodies.append(b"%d" % (LAST + 1))
    assert numbers(hub, After(offset(LAST)), LAST + 1) == [LAST + 1]
    starts = [described.value.rpartition(" ")[2] for attach in hub.attaches for described in attach.filters.values()]
    assert starts == ["'-1'", f"'{LAST + 1}'"]
    assert not any(HUB in key for key in range_reader._unproven if key[0].endswith(f":{hub.port}"))


def test_no_event_at_a_time_or_later(hub: FakeHub) -> None:
    """The hub's last time is that of an event that compaction has removed."""
    endpoint = parse_url(hub.url).with_credentials(RULE, Secret(KEY))
    with AmqpClient(endpoint, timeout_ms=120_000) as client:
        time_ms = hub.partitions["0"].time_ms
        assert client.first_at_time(HUB, "0", time_ms(LAST)) is None
        assert client.first_at_time(HUB, "0", time_ms(LAST - 1)) == offset(LAST - 1)


@pytest.mark.nightly
def test_a_door_that_stalls_for_twenty_seconds(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hub.partitions["0"].holes.clear()
    hub.held = True
    slow = threading.Timer(20, lambda: setattr(hub, "held", False))
    slow.start()
    assert numbers(hub, EARLIEST, LAST) == list(range(4_210, LAST + 1))
    slow.join()
