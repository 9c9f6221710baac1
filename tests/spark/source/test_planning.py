"""Where the next micro-batch of a log ends, as tables of states, of what the peer says, and of the ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_streams.client.log_client import Bounds, StreamDescription
from spark_streams.errors import CheckpointError
from spark_streams.position import EARLIEST, After, At, Checkpoint, Position
from spark_streams.spark.source.planning import PlanState, end_without_start, next_end, unread, with_left_out
from spark_streams.spark.source.ranges import Spans

FRESH = PlanState(planned_at=0.0)
EMPTY = Bounds(None, None, None, tells_truncated=True)


def log(created: str | None = "one", gone: tuple[str, ...] = (), **partitions: Bounds) -> StreamDescription:
    return StreamDescription("s", created, partitions, dict.fromkeys(gone, "deleted"))


def held(first: str, last: str, removed: str | None = None) -> Bounds:
    return Bounds(first, last, removed, tells_truncated=True)


def at(created: str | None = "one", **partitions: Position) -> Checkpoint:
    return Checkpoint("amqp-events", "s", partitions, created)


@pytest.mark.parametrize(
    ("begin", "now", "ends", "lost"),
    [
        (at(p=After("3")), log(p=held("0", "7")), {"p": After("7")}, []),
        (at(p=After("7")), log(p=held("0", "7")), {"p": After("7")}, []),
        (at(p=At("2")), log(p=held("0", "7")), {"p": After("7")}, []),
        (at(p=EARLIEST), log(p=EMPTY), {"p": EARLIEST}, []),
        (at(), log(p=EMPTY), {"p": EARLIEST}, []),
        (at(p=EARLIEST), log(p=EMPTY, q=held("0", "4")), {"p": EARLIEST, "q": After("4")}, []),
        (at(p=After("7")), log(p=Bounds(None, None, "7", True)), {"p": After("7")}, []),
        (at(p=After("7")), log(p=Bounds(None, None, None, False)), {"p": After("7")}, []),
        (at(p=After("3")), log(p=Bounds(None, None, "7", True)), {"p": After("7")}, ["p"]),
        (at(p=After("3")), log(p=held("5", "7", "4")), {"p": After("7")}, ["p"]),
        (at(p=After("9")), log(p=held("0", "7")), {"p": After("7")}, ["p"]),
        (at(p=After("9")), log(p=EMPTY), {"p": EARLIEST}, ["p"]),
        (at(p=After("3"), q=After("2")), log(p=held("0", "7")), {"p": After("7"), "q": After("2")}, ["q"]),
        (at(p=After("3"), q=After("2")), log(gone=("q",), p=held("0", "7")), {"p": After("7"), "q": After("2")}, ["q"]),
        (at("one", p=After("3"), q=After("2")), log("two", p=held("0", "1")), {"p": After("1")}, [None]),
        (at(None, p=After("3")), log("two", p=held("0", "7")), {"p": After("7")}, []),
        (at("one", p=After("3")), log(None, p=held("0", "7")), {"p": After("7")}, []),
    ],
    ids=[
        *("grown", "at rest", "from an event on", "empty", "new and empty", "new", "all removed and read"),
        *(
            "emptied by a peer that tells no more",
            "all removed, some unread",
            "the oldest removed",
            "shorter",
            "shorter and empty",
            "missing for a moment",
        ),
        *("unavailable", "created again", "its creation is told now", "its creation is told no more"),
    ],
)
def test_without_a_limit_it_ends_where_the_log_does(
    begin: Checkpoint, now: StreamDescription, ends: dict[str, Position], lost: list[str | None]
) -> None:
    there, losses = unread(FRESH, begin, now)
    assert there.end == at(now.incarnation, **ends)
    assert [loss.partition for loss in losses] == lost


@pytest.mark.parametrize(
    ("begin", "fixed", "now", "ends"),
    [
        (at(p=After("1")), log(p=held("0", "5")), log(p=held("0", "7")), {"p": After("5")}),
        (at(p=After("5")), log(p=held("0", "5")), log(p=held("0", "7")), {"p": After("5")}),
        (at(p=After("6")), log(p=held("0", "5")), log(p=held("0", "7")), {"p": After("6")}),
        (at(p=EARLIEST), log(p=EMPTY), log(p=held("0", "7")), {"p": EARLIEST}),
        (at(p=After("1")), log(p=held("0", "5")), log(p=held("0", "5"), q=held("0", "9")), {"p": After("5")}),
        (at(p=After("1")), log(), log(p=held("0", "5")), {"p": After("1")}),
        (at("one", p=After("1")), log("one", p=held("0", "5")), log("two", p=held("0", "2")), {}),
        (at("one", p=After("1")), log("two", p=held("0", "5")), log("two", p=held("0", "6")), {"p": After("5")}),
    ],
    ids=[
        *("grown since", "reached", "passed", "was empty", "new since", "was missing"),
        *("created again since", "created again before"),
    ],
)
def test_available_now_ends_where_the_log_ended(
    begin: Checkpoint, fixed: StreamDescription, now: StreamDescription, ends: dict[str, Position]
) -> None:
    there, _ = unread(replace(FRESH, fixed=fixed), begin, now)
    assert there.end.partitions == ends


@pytest.mark.parametrize(
    ("begin", "now", "spans"),
    [
        (at(p=After("3")), log(p=held("0", "7")), {"p": (After("3"), "7")}),
        (at(p=At("3")), log(p=held("0", "7")), {"p": (At("3"), "7")}),
        (at(), log(p=held("0", "7")), {"p": (EARLIEST, "7")}),
        (at(p=After("7"), q=EARLIEST), log(p=held("0", "7"), q=EMPTY), {}),
        (at(p=After("9")), log(p=held("0", "7")), {"p": (EARLIEST, "7")}),
        (at("one", p=After("3")), log("two", p=held("0", "7")), {"p": (EARLIEST, "7")}),
    ],
    ids=["behind", "an event", "new", "nothing", "a shorter log is another one", "created again"],
)
def test_what_is_unread(begin: Checkpoint, now: StreamDescription, spans: Spans) -> None:
    there, _ = unread(FRESH, begin, now)
    assert there.spans == spans


@pytest.mark.parametrize(
    ("before", "taken", "ends", "waited"),
    [
        ({}, {"p": (4, "7"), "q": (2, "1")}, {"p": After("7"), "q": After("1")}, {}),
        ({}, {"p": (2, "5"), "q": (0, None)}, {"p": After("5")}, {"q": 1}),
        ({"q": 1}, {"p": (0, None), "q": (1, "0")}, {"p": After("3"), "q": After("0")}, {"p": 1}),
        ({"p": 2, "q": 1}, {"p": (0, None), "q": (0, None)}, {"p": After("3")}, {"p": 3, "q": 2}),
        ({"p": 2}, {"p": (None, "7"), "q": (None, "1")}, {"p": After("7"), "q": After("1")}, {}),
    ],
    ids=["all", "a new one gets nothing yet, and stays new", "in turn", "none", "uncounted"],
)
def test_a_limit_ends_it_earlier(
    before: dict[str, int],
    taken: dict[str, tuple[int | None, str | None]],
    ends: dict[str, Position],
    waited: dict[str, int],
) -> None:
    state = replace(FRESH, waited=before)
    there, _ = unread(state, at(p=After("3"), r=After("2")), log(p=held("0", "7"), q=held("0", "1"), r=held("0", "2")))
    assert there.spans.keys() == {"p", "q"}
    after, end = next_end(state, there, taken)
    assert end == at(r=After("2"), **ends)
    assert after == replace(FRESH, waited=waited)


def test_a_wait_ends_with_the_next_end() -> None:
    there, _ = unread(FRESH, at(p=After("3")), log(p=held("0", "7")))
    after, _ = next_end(replace(FRESH, too_few=there.spans), there, {"p": (4, "7")})
    assert after == FRESH


def test_another_dialect_is_refused() -> None:
    begin = replace(at(p=After("3")), dialect="rabbitmq")
    with pytest.raises(CheckpointError, match="written in dialect 'rabbitmq'"):
        unread(FRESH, begin, replace(log(p=held("0", "7")), dialect="event-hubs"))


@pytest.mark.parametrize(
    ("left_out", "last", "now", "ends"),
    [
        (None, None, log(p=held("0", "7")), {"p": After("7")}),
        (None, at(p=After("3")), log(p=held("0", "7"), q=EMPTY), {"p": After("7"), "q": EARLIEST}),
        (None, at(p=After("3")), log(q=EMPTY), {"p": After("3"), "q": EARLIEST}),
        (None, at(p=After("3")), log(p=EMPTY), {"p": After("3")}),
        (None, at(p=After("3")), log(p=Bounds(None, None, "5", True)), {"p": After("5")}),
        (at(q=After("2")), at(p=After("3")), log(p=held("0", "7")), {"q": After("2"), "p": After("7")}),
        (at(p=After("2")), at(p=After("3")), log(), {"p": After("3")}),
        (at("one", q=After("2")), at("one", p=After("3")), log("two", p=EMPTY), {"p": EARLIEST}),
    ],
    ids=[
        *("first", "grown", "missing", "emptied", "removed", "left out and missing", "left out and back"),
        "created again",
    ],
)
def test_without_a_start_it_ends_where_the_log_does(
    left_out: Checkpoint | None, last: Checkpoint | None, now: StreamDescription, ends: dict[str, Position]
) -> None:
    state = replace(FRESH, left_out=left_out, end=last)
    assert end_without_start(state, "amqp-events", now) == at(now.incarnation, **ends)


@pytest.mark.parametrize(
    ("left_out", "begin", "stop", "left", "begins"),
    [
        (None, at(p=After("1")), at(p=After("3")), {}, {"p": After("1")}),
        (None, at(p=After("1"), q=After("2")), at(p=After("3")), {"q": After("2")}, {"p": After("1"), "q": After("2")}),
        (at(q=After("2")), at(p=After("3")), at(p=After("5")), {"q": After("2")}, {"p": After("3")}),
        (
            at(q=After("2")),
            at(p=After("3")),
            at(p=After("5"), q=After("4")),
            {"q": After("2")},
            {"p": After("3"), "q": After("2")},
        ),
        (at("one", q=After("2")), at("two"), at("two", q=After("4")), {}, {}),
    ],
    ids=["all there", "one missing", "still missing", "back", "back in another log"],
)
def test_without_a_start_what_an_end_lacks_is_not_forgotten(
    left_out: Checkpoint | None,
    begin: Checkpoint,
    stop: Checkpoint,
    left: dict[str, Position],
    begins: dict[str, Position],
) -> None:
    state = replace(FRESH, described=log(), left_out=left_out)
    after, known = with_left_out(state, begin, stop)
    assert known.partitions == begins
    assert after.left_out == replace(begin, partitions=left)
    assert with_left_out(FRESH, begin, stop) == (FRESH, begin), "where Spark tells the start, it tells all"
