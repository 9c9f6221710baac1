"""How long is tried, as docs/delivery.md says it: the pauses between the tries, added up."""

from __future__ import annotations

import pytest

from spark_streams.client.feed.client import FEED_BACKOFF as FEED
from spark_streams.client.retry import DEFAULT_BACKOFF, LONG_BACKOFF, Attempts, Backoff
from spark_streams.errors import ConnectFailed, ConnectionLost, DeadlineExceeded, SparkStreamsError
from tests.faults.figures import cells


def pauses(backoff: Backoff, fault: SparkStreamsError) -> list[float]:
    """The pauses until it is given up, in seconds."""
    attempts, found = Attempts(backoff), []
    while not fault.given_up:
        try:
            found.append(attempts.pause_s(fault))
        except type(fault):
            assert fault.given_up
    return found


def test_a_peer_that_is_not_there() -> None:
    first, later = (
        round(sum(pauses(DEFAULT_BACKOFF, ConnectFailed("x")))),
        sum(pauses(LONG_BACKOFF, ConnectionLost("x"))),
    )
    feed = round(sum(pauses(FEED, ConnectFailed("x"))))
    assert cells("nobody listens when") == [f"{first} s", f"{first} s", f"{feed} s"]
    assert cells("nobody listens any more") == [f"{round(later, -1):.0f} s"] * 2 + [f"{feed} s"]


@pytest.mark.parametrize("backoff", [DEFAULT_BACKOFF, LONG_BACKOFF, FEED])
def test_a_peer_that_says_nothing(backoff: Backoff) -> None:
    assert len(pauses(backoff, DeadlineExceeded("x"))) == 1, "tried twice"
    assert cells("the peer takes connections") == ["twice `requestTimeout`"] * 3
