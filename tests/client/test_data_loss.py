"""What is gone: the table of ADR 34, position by position, and the one policy."""

from __future__ import annotations

import logging
from typing import Final

import pytest

from spark_streams.client.data_loss import DataLoss, LossPolicy, instead_of, is_past_end, place
from spark_streams.client.log_client import Bounds
from spark_streams.errors import NotFound, PositionLost
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Matching

KEPT: Final = "kept"
REMOVED: Final = "removed"
PAST: Final = "past the end"


def tells(earliest: str | None, latest: str | None, truncated: str | None) -> Bounds:
    """A partition of a peer that tells the newest offset it has removed, None for none."""
    return Bounds(earliest, latest, truncated, tells_truncated=True)


def silent(earliest: str | None, latest: str | None) -> Bounds:
    """A partition of a peer that does not tell what it has removed."""
    return Bounds(earliest, latest)


TABLE = {
    # Partition                               EARLIEST  At("5")  After("5")
    "empty from the start": (tells(None, None, None), KEPT, PAST, PAST),
    "empty, removed before": (tells(None, None, "3"), REMOVED, PAST, PAST),
    "empty, removed up to it": (tells(None, None, "5"), REMOVED, REMOVED, KEPT),
    "empty, removed behind it": (tells(None, None, "7"), REMOVED, REMOVED, REMOVED),
    "events around it": (tells("1", "9", None), KEPT, KEPT, KEPT),
    "it is the newest": (tells("1", "5", None), KEPT, KEPT, KEPT),
    "truncated long before": (tells("4", "9", "3"), REMOVED, KEPT, KEPT),
    "truncated just before": (tells("5", "9", "4"), REMOVED, KEPT, KEPT),
    "truncated at it": (tells("6", "9", "5"), REMOVED, REMOVED, KEPT),
    "truncated behind it": (tells("8", "9", "7"), REMOVED, REMOVED, REMOVED),
    "no event has it, none behind it removed": (tells("7", "9", "3"), REMOVED, KEPT, KEPT),
    "ends before it": (tells("1", "3", None), KEPT, PAST, PAST),
    "ends before it, truncated": (tells("2", "3", "1"), REMOVED, PAST, PAST),
    "silent: empty": (silent(None, None), KEPT, REMOVED, KEPT),
    "silent: events around it": (silent("1", "9"), KEPT, KEPT, KEPT),
    "silent: it is the newest": (silent("1", "5"), KEPT, KEPT, KEPT),
    "silent: begins with it": (silent("5", "9"), KEPT, KEPT, KEPT),
    "silent: begins behind it": (silent("6", "9"), KEPT, REMOVED, REMOVED),
    "silent: begins far behind it": (silent("8", "9"), KEPT, REMOVED, REMOVED),
    "silent: ends before it": (silent("1", "3"), KEPT, PAST, PAST),
}
"""Kind of partition to its bounds, and what became of the events from three positions on.

Two are decisions (ADR 34). EARLIEST is written down for a partition that had never had an event, so what was removed
since was never read. At names an event that was there, and an empty partition has it no more, whether its peer tells or
not; After names one that was read, so nothing is known to be missing, and the next event tells.
"""


def fate(position: object, bounds: Bounds) -> str:
    if instead_of(position, bounds) is None:
        assert not is_past_end(position, bounds)
        return KEPT
    return PAST if is_past_end(position, bounds) else REMOVED


@pytest.mark.parametrize("kind", TABLE)
def test_what_is_lost(kind: str) -> None:
    bounds, *answers = TABLE[kind]
    assert [fate(position, bounds) for position in (EARLIEST, At("5"), After("5"))] == answers


@pytest.mark.parametrize("kind", TABLE)
@pytest.mark.parametrize("position", [LATEST, AtTime(5), Matching("key = '5'")], ids=str)
def test_a_question_to_the_log_as_it_is_has_lost_nothing(kind: str, position: object) -> None:
    """The log's answer is a position; a feed's cursor has no bounds, and its peer tells the loss (status 400, 410)."""
    assert fate(position, TABLE[kind][0]) == KEPT


@pytest.mark.parametrize(
    ("kind", "position", "words"),
    [
        ("truncated behind it", After("5"), "the partition holds events from '8' to '9', '7' and older were removed"),
        ("silent: begins behind it", At("5"), "the partition holds events from '6' to '9'"),
        ("silent: empty", At("5"), "the partition holds no events"),
        ("empty, removed behind it", EARLIEST, "the partition holds no events, '7' and older were removed"),
        ("empty from the start", At("5"), "the partition has never had an event: the log was created again, "),
        ("ends before it", After("5"), "the partition holds events from '1' to '3': the log was created again, "),
    ],
)
def test_what_is_there_instead(kind: str, position: object, words: str) -> None:
    said = instead_of(position, TABLE[kind][0])
    assert said is not None and said.startswith(words) and (words.endswith(", ") or said == words)


def test_where_reading_was_to_go_on() -> None:
    assert [place(p) for p in (None, EARLIEST, At("5"))] == ["from its beginning", "from its beginning", "at '5'"]


def test_a_loss_is_an_error() -> None:
    policy = LossPolicy("orders", fail=True)
    with pytest.raises(PositionLost, match=r"'orders' partition '0': .* go on at '5', but gone\. Events may .*'false'"):
        policy.report("0", "at '5'", "gone")
    fault = NotFound("amqp:not-found", None, "attach")
    with pytest.raises(NotFound) as raised:
        policy.report("0", "at '5'", "gone", fault)
    assert raised.value is fault and policy.losses == []


def test_or_a_warning_once_for_each(caplog: pytest.LogCaptureFixture) -> None:
    policy = LossPolicy("orders", fail=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            policy.report("0", "at '5'", "gone")
            policy.report("1", "at '5'", "gone", NotFound("amqp:not-found", None, "attach"))
            policy.report(None, "at '5'", "gone")
    assert policy.losses == [DataLoss(p, "at '5'", "gone") for p in ("0", "1", None)]
    end = "Events may have been lost; failOnDataLoss is false: going on with what is left"
    assert [record.getMessage() for record in caplog.records] == [
        f"stream 'orders'{where}: reading was to go on at '5', but gone. {end}"
        for where in (" partition '0'", " partition '1'", "")
    ]
