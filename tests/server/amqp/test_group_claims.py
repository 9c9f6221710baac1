"""Claims on partitions, without connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server.amqp.consumer_groups import Claim, Group, Groups
from spark_streams.server.amqp.error_conditions import LinkRefused

G = Group("i", "g", "ann")


@pytest.fixture
def log() -> Iterator[ReferenceLog]:
    with ReferenceLog() as opened:
        yield opened


class Member:
    """Releases its claim when it is stolen, as a link does."""

    def __init__(self, groups: Groups, claim: Claim) -> None:
        self.groups, self.claim, self.stolen_by = groups, claim, None
        claim.end_owner = self.end

    def end(self, refusal: LinkRefused | None) -> None:
        if refusal is not None:
            assert refusal.name == "amqp:link:stolen" and refusal.info is not None
            self.stolen_by: Any = refusal.info["x-opt-epoch"]
        self.groups.release(self.claim)


class Waiter:
    def __init__(self, groups: Groups) -> None:
        self.groups, self.got = groups, []
        groups.wait(G, self.try_again)

    def try_again(self) -> None:
        free = self.groups.free(G, ["0"])
        if free:
            self.groups.leave(G, self.try_again)
            self.got: list[Any] = [Member(self.groups, self.groups.claim(G, free[0], None))]


def test_a_greater_epoch_steals_and_those_in_line_get_nothing_by_it(log: ReferenceLog) -> None:
    groups = Groups(log, reset_epoch=True, most=9)
    first = Member(groups, groups.claim(G, "0", 1))
    waiter = Waiter(groups)
    for epoch in (None, 0, 1):
        with pytest.raises(LinkRefused) as refused:
            groups.claim(G, "0", epoch)
        assert refused.value.name == "amqp:resource-locked"
    taker = Member(groups, groups.claim(G, "0", 2))
    assert first.stolen_by == 2 and waiter.got == [] and taker.stolen_by is None
    groups.release(first.claim)  # once more: it no longer has anything
    assert groups.free(G, ["0"]) == []
    groups.release(taker.claim)
    assert len(waiter.got) == 1 and groups.free(G, ["0"]) == []


def test_those_in_line_are_served_in_their_order(log: ReferenceLog) -> None:
    groups = Groups(log, reset_epoch=True, most=9)
    owner = Member(groups, groups.claim(G, "0", None))
    waiters = [Waiter(groups) for _ in range(3)]
    groups.release(owner.claim)
    assert [len(w.got) for w in waiters] == [1, 0, 0]
    groups.leave(G, waiters[1].try_again)
    assert groups.renegotiate("i", "g") == 1
    assert [len(w.got) for w in waiters] == [1, 0, 1]


def test_epochs_outlive_the_process_unless_they_are_reset(log: ReferenceLog) -> None:
    there = G._replace(incarnation=log.create_stream("orders").incarnation)
    claim = Groups(log, reset_epoch=False, most=9).claim(there, "0", 7)
    assert claim.epoch == 7
    assert Groups(log, reset_epoch=False, most=9).claim(there, "0", None).epoch == 7
    assert Groups(log, reset_epoch=False, most=9).claim(there, "0", 3).epoch == 7
    assert Groups(log, reset_epoch=False, most=9).claim(there._replace(incarnation="another"), "0", None).epoch == 0
    assert Groups(log, reset_epoch=True, most=9).claim(there, "0", None).epoch == 0
