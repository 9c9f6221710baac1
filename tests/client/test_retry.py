"""The retry loop and the deadline: what is tried again, how often, and how long it waits in between."""

from __future__ import annotations

import pickle

import pytest

from spark_streams.client import retry
from spark_streams.client.retry import Attempts, Backoff, Deadline, retries, retrying
from spark_streams.errors import ConnectionLost, DeadlineExceeded, NotFound, Refused, SparkStreamsError


def test_pauses_double_up_to_a_limit_and_progress_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(retry, "_pause", pauses.append)
    attempts = Attempts(Backoff(attempts=6, first_ms=100, limit_ms=500))
    for _ in range(5):
        attempts.after(ConnectionLost("cut"))
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]
    with pytest.raises(ConnectionLost):
        attempts.after(ConnectionLost("cut"))
    attempts.progressed()
    attempts.after(ConnectionLost("cut"))
    assert pauses[-1] == 0.1


def test_retries_are_counted_and_not_what_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    before, faults = retries(), [ConnectionLost("cut"), ConnectionLost("cut again")]

    def operation() -> str:
        if faults:
            raise faults.pop()
        return "done"

    assert (retrying(operation), retries() - before) == ("done", 2)
    for fault in (NotFound("amqp:not-found", "", "attach"), ConnectionLost("cut")):
        with pytest.raises(type(fault)):
            Attempts(Backoff(attempts=1)).after(fault)
    assert retries() - before == 2


@pytest.mark.parametrize(
    "fault",
    [
        NotFound("amqp:not-found", "", "attach"),
        Refused("amqp:not-allowed", "", "attach"),
    ],
)
def test_what_cannot_help_is_not_tried_again(fault: SparkStreamsError, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(retry, "_pause", pauses.append)
    with pytest.raises(type(fault)):
        Attempts().after(fault)
    assert pauses == []


def test_a_deadline_is_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    for backoff in (retry.DEFAULT_BACKOFF, retry.LONG_BACKOFF):
        attempts = Attempts(backoff)
        attempts.after(DeadlineExceeded("no answer"))
        with pytest.raises(DeadlineExceeded):
            attempts.after(DeadlineExceeded("no answer"))


def test_a_lost_connection_says_what_to_do_once_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    fault = ConnectionLost("x:1: the connection was lost: reset")
    attempts = Attempts(Backoff(attempts=2))
    attempts.after(fault)
    assert str(fault) == "x:1: the connection was lost: reset", "it is tried again: there is nothing to do"
    with pytest.raises(ConnectionLost) as caught:
        attempts.after(fault)
    assert str(caught.value) == (
        "x:1: the connection was lost: reset; see the peer's log, and what lies between; a streaming query goes on "
        "from its checkpoint when it is started again"
    )
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)


def test_what_was_given_up_is_not_tried_again_by_whoever_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise ConnectionLost("cut")

    with pytest.raises(ConnectionLost):
        retrying(lambda: retrying(fails, Backoff(attempts=3)), Backoff(attempts=5))
    assert len(tries) == 3


def test_a_peer_that_was_there_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(retry, "_pause", pauses.append)

    def fails() -> None:
        raise ConnectionLost("cut")

    for was_there, longest in ((False, 4), (True, 60)):
        pauses.clear()
        with pytest.raises(ConnectionLost):
            retrying(fails, was_reached=lambda there=was_there: there)
        assert longest / 2 < sum(pauses) < longest


def test_an_operation_is_tried_until_it_works_or_the_attempts_are_used_up() -> None:
    tries: list[int] = []

    def works_the_third_time() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise Refused("amqp:resource-locked", "", "attach")
        return "done"

    assert retrying(works_the_third_time, Backoff(attempts=3, first_ms=1)) == "done"
    tries.clear()
    with pytest.raises(Refused, match="resource-locked"):
        retrying(works_the_third_time, Backoff(attempts=2, first_ms=1))
    assert len(tries) == 2


def test_a_deadline_says_what_was_waited_for_and_how_long() -> None:
    deadline = Deadline(10_000)
    assert 9 < deadline.left_s("no answer") <= 10
    past = Deadline(0)
    with pytest.raises(DeadlineExceeded, match="no answer to open within 0 ms"):
        past.left_s("no answer to open")
