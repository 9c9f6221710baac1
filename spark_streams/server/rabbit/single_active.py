"""Single active consumers: of a group, one receives, and the next takes over when it has said how far it came.

::

    join        first of its group          -> ConsumerUpdate active
    leave       the active one              -> ConsumerUpdate active to the next
    any change  another one should be it    -> ConsumerUpdate inactive to the active one; its answer lets the other in

A group is a name on a stream. On a plain stream its first member is to be the active one. On a partition of a super
stream it is the member whose number is the partition's number modulo the number of members, so that the members of a
super stream share its partitions.

Spec: Streams Protocol Reference, ConsumerUpdate; notes, section 14.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from spark_streams.wire.rabbit.consuming import OffsetSpecification

__all__ = ["Group", "Groups", "Member"]


class Member(Protocol):
    """A subscription of a group."""

    def update(self, active: bool) -> None:
        """Tell the consumer; its answer comes back to ``Group.answered``."""

    def activate(self, offset: OffsetSpecification) -> None:
        """Begin to deliver where the consumer wants to go on."""

    def deactivate(self) -> None:
        """Deliver no more."""


@dataclass
class Group:
    """The members of one group, in the order in which they came.

    Args:
        index: the partition's number in its super stream, None on a plain stream.
    """

    index: int | None
    members: list[Member] = field(default_factory=list)
    active: Member | None = None
    asked: Member | None = None
    """Who was sent a ConsumerUpdate that it has not answered yet."""

    def join(self, member: Member) -> None:
        """Add a member."""
        self.members.append(member)
        self._settle()

    def leave(self, member: Member) -> None:
        """Remove a member, whatever it was."""
        if member not in self.members:
            return
        self.members.remove(member)
        if self.active is member:
            self.active = None
        if self.asked is member:
            self.asked = None
        self._settle()

    def answered(self, member: Member, active: bool, offset: OffsetSpecification) -> None:
        """Take a consumer's answer to ``update``."""
        if self.asked is not member:
            return
        self.asked = None
        if active:
            self.active = member
            member.activate(offset)
        else:
            self.active = None
        self._settle()

    def _settle(self) -> None:
        if self.asked is not None or not self.members:
            return
        wanted = self.members[0 if self.index is None else self.index % len(self.members)]
        if self.active is wanted:
            return
        if self.active is not None:
            self.asked = self.active
            self.active.deactivate()
            self.active.update(False)
        else:
            self.asked = wanted
            wanted.update(True)


class Groups:
    """All groups of all connections."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}

    def of(self, stream_key: str, name: str, index: int | None) -> Group | None:
        """Return the group of a name on a stream, made when it is not there.

        Returns:
            None when the group's members say another partition number, or none: the two do not go together.
        """
        group = self._groups.get((stream_key, name))
        if group is None or not group.members:
            group = self._groups[(stream_key, name)] = Group(index)
        return group if group.index == index else None
