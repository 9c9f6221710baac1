"""Single active consumers: one of a group receives; the next receives once the first has reported its offset.

::

    join        first of its group          -> ConsumerUpdate active
    leave       the active one              -> ConsumerUpdate active to the next
    any change  another should be active    -> ConsumerUpdate inactive to the active one; its answer lets the other in

A group is a name on a stream. On a plain stream its first member should be active. On a partition of a super stream the
member whose number is the partition's number modulo the number of members should be active, so that the members share
the partitions of the super stream.

Spec: Streams Protocol Reference, ConsumerUpdate; docs/specifications.md, S-141 to S-143.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Member(Protocol):
    """A subscription of a group."""

    def update(self, active: bool) -> None:
        """Send the consumer a ConsumerUpdate; its answer comes back to ``Group.answered``."""


class Group:
    """The members of one group, in the order in which they came.

    Args:
        index: the partition's number in its super stream, None on a plain stream.
        forget: called when the last member has left.
    """

    def __init__(self, index: int | None, forget: Callable[[], None]) -> None:
        self.index = index
        self._forget = forget
        self._members: list[Member] = []
        self._active: Member | None = None
        self._updated: Member | None = None
        """The member whose ConsumerUpdate is not answered yet; no other member gets one meanwhile."""
        self._ended = False

    def join(self, member: Member) -> None:
        """Add a member."""
        self._members.append(member)
        self._settle()

    def leave(self, member: Member) -> None:
        """Remove a member, active or not."""
        self._members.remove(member)
        if self._active is member:
            self._active = None
        if self._updated is member:
            self._updated = None
        if self._members:
            self._settle()
        else:
            self._forget()

    def answered(self, member: Member, active: bool) -> bool:
        """Handle a consumer's answer to ``update``; return whether it receives from now on.

        When it has agreed to be active, and another member should be active by now, it gets a ConsumerUpdate inactive
        at once, before it receives anything.
        """
        if self._updated is not member:
            return False
        self._updated = None
        self._active = member if active else None
        self._settle()
        return active and self._updated is None

    def end(self) -> None:
        """Activate no member any more: the stream is gone, and the members are about to leave."""
        self._ended = True

    def _settle(self) -> None:
        if self._ended or self._updated is not None:
            return
        wanted = self._members[0 if self.index is None else self.index % len(self._members)]
        if self._active is wanted:
            return
        self._updated = wanted if self._active is None else self._active
        self._updated.update(self._active is None)


class Groups:
    """All groups of all connections."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, stream_key: str, name: str, index: int | None) -> Group | None:
        """Return the group of a name on a stream, and create it when there is none; the caller is about to join it.

        Args:
            stream_key: identifies the stream; one that was deleted and created again has another key.
            name: the group's name.
            index: the partition's number in its super stream, None for a consumer of the stream alone.

        Returns:
            None when the group's members have another partition number, or none: such members cannot share a group.
        """
        key = stream_key, name
        group = self._groups.setdefault(key, Group(index, lambda: self._forget(key)))
        return group if group.index == index else None

    def _forget(self, key: tuple[str, str]) -> None:
        del self._groups[key]
