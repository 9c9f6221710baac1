"""Consumer groups: which link owns which partition of a log, and with which epoch.

::

    claim(partition)  no owner            -> owner, epoch max(stored, given)               A-27
                      owner, epoch > its  -> the owner is closed with ``stolen``, new owner
                      owner, otherwise    -> refused, amqp:resource-locked
    claim(any)        a free partition    -> owner
                      none                -> refused, amqp:link:detach-forced, or waits

A group that is created because a link names it belongs to the link's user: another user's group of that name is another
group. Groups that the settings list belong to all users who may read the log.

Spec: Event Stream Extensions §4.5 (ES-200 to ES-212), A-2, A-19, A-26 to A-28.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_streams.log import ReferenceLog
from spark_streams.log.storage.files import is_full
from spark_streams.server.amqp.error_conditions import INTERNAL_ERROR, RESOURCE_LOCKED, STOLEN, LinkRefused
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT
from spark_streams.wire.amqp.values import ULong

NAMESPACE: Final = "amqp-epochs"


class Group(NamedTuple):
    """A group of a log.

    Args:
        incarnation: the log's; a log that is deleted and created again has other groups.
        name: the group's name.
        user: the user that it belongs to; None: all users.
    """

    incarnation: str
    name: str
    user: str | None = None


@dataclass
class Claim:
    """One link's hold on one partition within a group; ``release`` it when the link ends.

    Args:
        group: the group.
        partition: the partition's identifier.
        epoch: the epoch of the claim.
        end_owner: ends the link, with an error or without; None until there is a link.
    """

    group: Group
    partition: str
    epoch: int
    end_owner: Callable[[LinkRefused | None], None] | None = None


class Groups:
    """All groups of all logs.

    Args:
        log: its state store keeps epochs when they are not reset.
        reset_epoch: whether an epoch counter goes back to 0 when no link remains.
        most: how many groups one user may have, counting groups with members and groups whose epoch is kept.
    """

    def __init__(self, log: ReferenceLog, reset_epoch: bool, most: int) -> None:
        self._log = log
        self._reset = reset_epoch
        self._claims: dict[tuple[Group, str], Claim] = {}
        self._waiting: dict[Group, list[Callable[[], None]]] = {}
        self._most = most
        self._uses: dict[str | None, Counter[Group]] = {}
        """User to groups, each with the number of its partitions that are claimed or whose epoch is kept."""
        there = {stream.incarnation for stream in log.streams()}
        for key, _ in log.state.items(NAMESPACE):
            group = _group(key)
            if group.incarnation in there:
                self._used(group)
            else:
                log.state.drop(NAMESPACE, key)

    def claim(self, group: Group, partition: str, epoch: int | None) -> Claim:
        """Claim a partition for a group; this ends the displaced owner, if there is one.

        Args:
            group: the group.
            partition: the partition's identifier.
            epoch: the epoch that the link gave, or None.

        Raises:
            LinkRefused: another link owns the partition with the same or a greater epoch; or the user has as many
                groups as it may have; or the epoch cannot be recorded. Nothing has changed then.
        """
        self._check_room(group)
        current = self._claims.get((group, partition))
        if current is not None and (epoch is None or epoch <= current.epoch):
            given = "without an epoch" if epoch is None else f"with epoch {epoch}"
            raise LinkRefused(
                RESOURCE_LOCKED,
                f"partition '{partition}' is taken in consumer group '{group.name}' with epoch {current.epoch}, "
                f"and this link came {given}: give a greater one to take it over",
            )
        stored = self._stored(group, partition)
        claim = Claim(group, partition, max(stored, epoch or 0))
        if not self._reset and claim.epoch > stored:
            key = _key(group, partition)
            try:
                known = self._log.state.get(NAMESPACE, key) is not None
                self._log.state.put(NAMESPACE, key, str(claim.epoch).encode())
            except OSError as fault:
                name = RESOURCE_LIMIT if is_full(fault) else INTERNAL_ERROR
                raise LinkRefused(name, f"the epoch cannot be recorded: {fault}") from fault
            if not known:
                self._used(group)
        if current is None:
            self._used(group)
        # Recorded before the old owner is ended: its release must not look as if the partition were free.
        self._claims[group, partition] = claim
        if current is not None and current.end_owner is not None:
            taken = f"partition '{partition}' was taken by epoch {claim.epoch}"
            current.end_owner(LinkRefused(STOLEN, taken, {"x-opt-epoch": ULong(claim.epoch)}))
        return claim

    def free(self, group: Group, partitions: Iterable[str]) -> list[str]:
        """Return the partitions that no link of the group owns."""
        return [p for p in partitions if (group, p) not in self._claims]

    def release(self, claim: Claim) -> None:
        """Give a partition back; attaches that wait try again in the order in which they came.

        A displaced claim changes nothing.
        """
        if self._claims.get((claim.group, claim.partition)) is not claim:
            return
        del self._claims[claim.group, claim.partition]
        self._used(claim.group, -1)
        for try_again in list(self._waiting.get(claim.group, ())):
            try_again()

    def wait(self, group: Group, try_again: Callable[[], None]) -> None:
        """Call a function whenever a partition of a group becomes free, until ``leave``; first come, first called."""
        self._waiting.setdefault(group, []).append(try_again)

    def leave(self, group: Group, try_again: Callable[[], None]) -> None:
        """Call the function no more."""
        waiting = self._waiting.get(group, [])
        if try_again in waiting:
            waiting.remove(try_again)
            if not waiting:
                del self._waiting[group]

    def renegotiate(self, incarnation: str, name: str) -> int:
        """End all links of every user's group of a name without an error (ES-107, ES-207); return how many."""
        claims = [claim for (group, _), claim in self._claims.items() if group[:2] == (incarnation, name)]
        for claim in claims:
            if claim.end_owner is not None:
                claim.end_owner(None)
        return len(claims)

    def _used(self, group: Group, times: int = 1) -> None:
        uses = self._uses.setdefault(group.user, Counter())
        uses[group] += times
        if uses[group] <= 0:
            del uses[group]

    def _check_room(self, group: Group) -> None:
        uses = self._uses.get(group.user, Counter())
        if group.user is None or group in uses or len(uses) < self._most:
            return
        there = {stream.incarnation for stream in self._log.streams()}
        for gone in [each for each in uses if each.incarnation not in there]:
            del uses[gone]  # the next start removes its stored epochs
        if len(uses) >= self._most:
            raise LinkRefused(
                RESOURCE_LIMIT,
                f"user '{group.user}' has {len(uses)} consumer groups, and max_groups is {self._most}: use one that is "
                "there (those of which an epoch is known stay as long as their stream), or have the setting raised",
            )

    def _stored(self, group: Group, partition: str) -> int:
        if self._reset:
            return 0
        return int(self._log.state.get(NAMESPACE, _key(group, partition)) or 0)


def epochs_in(log: ReferenceLog) -> Iterator[tuple[Group, str, int]]:
    """Yield the epochs that are kept, in any thread: the group, the partition, and the epoch."""
    for key, stored in log.state.walk(NAMESPACE):
        group = _group(key)
        yield group, json.loads(key)[-1] if key.startswith("[") else key.rpartition("\n")[2], int(stored)


def _key(group: Group, partition: str) -> str:
    if group.user is None:
        return "\n".join((group.incarnation, group.name, partition))
    return json.dumps([group.incarnation, group.user, group.name, partition])


def _group(key: str) -> Group:
    """Return the group of a key."""
    if key.startswith("["):
        incarnation, user, name, _ = json.loads(key)
        return Group(incarnation, name, user)
    incarnation, _, rest = key.partition("\n")
    return Group(incarnation, rest.rpartition("\n")[0])
