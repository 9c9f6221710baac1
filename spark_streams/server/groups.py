"""Consumer groups: who owns which partition of a log, and with which epoch.

::

    claim(partition)  no owner            -> owner, epoch max(stored, given)               A-27
                      owner, epoch > its  -> the owner is told ``stolen`` and closed, new owner
                      owner, otherwise    -> refused, amqp:resource-locked
    claim(any)        a free partition    -> owner
                      none                -> refused, amqp:link:detach-forced, or waits in line

Spec: Event Stream Extensions §4.5 (ES-200 to ES-212), A-2, A-19, A-26 to A-28.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from spark_streams.log import ReferenceLog
from spark_streams.log.no_room import is_full
from spark_streams.server.conditions import INTERNAL_ERROR, RESOURCE_LIMIT, RESOURCE_LOCKED, LinkRefused

__all__ = ["Claim", "Groups", "Owner"]

NAMESPACE: Final = "amqp-epochs"


class Owner(Protocol):
    """A link that holds a claim."""

    def stolen(self, epoch: int) -> None:
        """End the link: a claim with this epoch has displaced it."""

    def renegotiate(self) -> None:
        """End the link gracefully, for the group to be distributed anew."""


class Waiter(Protocol):
    """An attach that waits for a partition to become free."""

    def try_again(self) -> None:
        """Claim once more; stays in line when there is still none."""


@dataclass
class Claim:
    """One link's hold on one partition within a group; ``release`` it when the link ends."""

    key: tuple[str, str, str]
    epoch: int
    owner: Owner | None = None


@dataclass
class _Line:
    waiters: list[Waiter] = field(default_factory=list)


class Groups:
    """All groups of all logs.

    Args:
        log: its state store keeps epochs when they are not reset.
        reset_epoch: whether an epoch counter goes back to 0 when no link remains.

    """

    def __init__(self, log: ReferenceLog, reset_epoch: bool) -> None:
        self._log = log
        self._reset = reset_epoch
        self._claims: dict[tuple[str, str, str], Claim] = {}
        self._lines: dict[tuple[str, str], _Line] = {}

    def claim(self, incarnation: str, group: str, partition: str, epoch: int | None) -> Claim:
        """Take a partition; the displaced owner, if any, is ended before this returns.

        Args:
            incarnation: the log's; a log that was deleted and made again has other groups.
            group: the group's name.
            partition: which.
            epoch: as the link gave it, or None.

        Raises:
            LinkRefused: another link has it, and the epoch is not above its own. Nothing has changed then.

        """
        key = (incarnation, group, partition)
        current = self._claims.get(key)
        if current is None:
            claim = Claim(key, max(self._stored(key), epoch or 0))
        else:
            if epoch is None or epoch <= current.epoch:
                given = "without an epoch" if epoch is None else f"with epoch {epoch}"
                raise LinkRefused(
                    RESOURCE_LOCKED,
                    f"partition '{partition}' is taken in consumer group '{group}' with epoch {current.epoch}, and "
                    f"this link came {given}: give a greater one to take it over",
                )
            claim = Claim(key, epoch)
        if not self._reset and claim.epoch > self._stored(key):
            try:
                self._log.state.put(NAMESPACE, "\n".join(key), str(claim.epoch).encode())
            except OSError as fault:
                name = RESOURCE_LIMIT if is_full(fault) else INTERNAL_ERROR
                raise LinkRefused(name, f"the epoch cannot be recorded: {fault}") from fault
        # Recorded before the old owner is ended: its release must not look as if the partition were free.
        self._claims[key] = claim
        if current is not None and current.owner is not None:
            current.owner.stolen(claim.epoch)
        return claim

    def free(self, incarnation: str, group: str, partitions: Iterable[str]) -> list[str]:
        """Return those of the partitions that nobody in the group has."""
        return [p for p in partitions if (incarnation, group, p) not in self._claims]

    def release(self, claim: Claim) -> None:
        """Give a partition back; who waits is served in the order of coming. A displaced claim changes nothing."""
        if self._claims.get(claim.key) is not claim:
            return
        del self._claims[claim.key]
        line = self._lines.get(claim.key[:2])
        if line is not None:
            for waiter in list(line.waiters):
                waiter.try_again()

    def wait(self, incarnation: str, group: str, waiter: Waiter) -> None:
        """Stand in line."""
        self._lines.setdefault((incarnation, group), _Line()).waiters.append(waiter)

    def leave(self, incarnation: str, group: str, waiter: Waiter) -> None:
        """Leave the line."""
        line = self._lines.get((incarnation, group))
        if line is not None and waiter in line.waiters:
            line.waiters.remove(waiter)
            if not line.waiters:
                del self._lines[incarnation, group]

    def renegotiate(self, incarnation: str, group: str) -> int:
        """Gracefully end all links of a group (ES-107, ES-207); returns how many."""
        claims = [claim for key, claim in self._claims.items() if key[:2] == (incarnation, group)]
        for claim in claims:
            if claim.owner is not None:
                claim.owner.renegotiate()
        return len(claims)

    def _stored(self, key: tuple[str, str, str]) -> int:
        if self._reset:
            return 0
        stored = self._log.state.get(NAMESPACE, "\n".join(key))
        return int(stored) if stored is not None else 0
