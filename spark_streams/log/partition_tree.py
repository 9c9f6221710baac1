"""The tree of a stream's partitions, past ones included: which partition came from which, and where a key belongs.

Partitions have numbers in the order of their creation; no number is used twice. Roots are the partitions that a stream
was created with and those that were added. A split gives a partition children, in one of two ways:

- it is *closed*: it keeps its records and takes no more, and its children, empty at first, start after it;
- its whole history is *redistributed*: it leaves, and its children have all of its records between them.

A key belongs to the root whose number is (CRC-32 of the key) modulo (roots), and where that root was split, to one of
its children by another hash of the key, and so on down to an open partition. Records of one key are therefore in one
open partition, and earlier ones in the closed partitions that it starts after.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2s
from typing import Any

MAX_PARTITIONS = 10_000
MAX_NUMBER = 32_767
"""Some of FeedAPI's clients read a partition's number as an int16."""
MAX_CHILDREN = 256
"""The file about a split has one byte for each record's child."""


@dataclass(frozen=True)
class PartitionNode:
    """One present or past partition.

    Args:
        id: its number, as text.
        parent: the partition whose split made it; None for a root.
        children: the partitions that its own split made.
        gone: whether its history was redistributed onto its children.
    """

    id: str
    parent: str | None = None
    children: tuple[str, ...] = ()
    gone: bool = False


class KeyTree:
    """Assigns keys to open partitions.

    Args:
        nodes: all nodes.
        among: the open partitions that keys may go to.
    """

    def __init__(self, nodes: Mapping[str, PartitionNode], among: Collection[str]) -> None:
        self._children: dict[str, list[str]] = {}
        reached = set(among)
        for node in reversed(list(nodes.values())):  # a parent comes before its children
            kept = [child for child in node.children if child in reached]
            if kept:
                reached.add(node.id)
                self._children[node.id] = kept
        self._roots = [node.id for node in nodes.values() if node.parent is None and node.id in reached]

    def home(self, key: bytes | memoryview) -> str:
        """Return the open partition that a key belongs to."""
        place = self._roots[zlib.crc32(key) % len(self._roots)]
        while (children := self._children.get(place)) is not None:
            place = children[child_of_key(place, key, len(children))]
        return place

    def homes(self, keys: Sequence[bytes]) -> list[str]:
        """Return the open partition of each of many keys, as ``home`` does."""
        if self._children:
            return [self.home(key) for key in keys]
        count, roots = len(self._roots), self._roots
        return [roots[number % count] for number in map(zlib.crc32, keys)]


def child_of_key(parent: str, key: bytes | memoryview, children: int) -> int:
    """Return the index of the child that a key of a split partition belongs to; independent of its other hashes."""
    digest = blake2s(key, digest_size=8, person=parent.encode()).digest()
    return int.from_bytes(digest, "big") % children


class PartitionTree:
    """All present and past partitions of a stream; immutable.

    Args:
        nodes: in the order of their numbers, ``"0"`` first.
    """

    def __init__(self, nodes: Sequence[PartitionNode]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.ids = tuple(node.id for node in nodes if not node.gone)
        """The partitions that have or take records, closed ones among them."""
        self.open_ids = tuple(node.id for node in nodes if not node.children)
        """The partitions that take records."""
        self.roots = sum(node.parent is None for node in nodes)
        self.keys = KeyTree(self.nodes, self.open_ids)
        """The assignment of keys to all open partitions."""

    def starts_after(self, name: str) -> str | None:
        """Return the closed partition that holds the records before a partition's first one."""
        parent = self.nodes[name].parent
        return None if parent is None or self.nodes[parent].gone else parent

    def cursor_from(self, name: str) -> tuple[str, ...]:
        """Return the redistributed partitions whose history a partition has a share of; nearest first."""
        found = []
        parent = self.nodes[name].parent
        while parent is not None and self.nodes[parent].gone:
            found.append(parent)
            parent = self.nodes[parent].parent
        return tuple(found)

    def keys_among(self, names: Collection[str]) -> KeyTree:
        """Return the assignment of keys when only some of the open partitions may be used."""
        return self.keys if tuple(names) == self.open_ids else KeyTree(self.nodes, names)

    def added(self, count: int) -> PartitionTree:
        """Return the tree with more roots.

        Raises:
            ValueError: ``count`` is not positive, or there would be too many partitions.
        """
        names = self._next(count)
        return PartitionTree([*self.nodes.values(), *(PartitionNode(name) for name in names)])

    def split(self, name: str, into: int, *, history: bool) -> PartitionTree:
        """Return the tree with one partition split.

        Raises:
            ValueError: the partition cannot be split, or not into so many.
        """
        if name not in self.ids:
            raise ValueError(f"there is no partition '{name}'; there are: {', '.join(self.ids)}")
        if self.nodes[name].children:
            raise ValueError(
                f"partition {name} is closed: its keys are on partitions {', '.join(self.nodes[name].children)}, "
                "split one of those"
            )
        if not 2 <= into <= MAX_CHILDREN:
            raise ValueError(f"expected 2 to {MAX_CHILDREN} partitions to split into")
        before = self.starts_after(name) if history else None
        if before is not None:
            # A reader of the children would have to use its cursors and to read the earlier partition first.
            raise ValueError(
                f"the history of partition {name} begins on partition {before}, which is closed: split it without "
                "redistributing its history"
            )
        names = self._next(into)
        nodes = {**self.nodes, name: replace(self.nodes[name], children=names, gone=history)}
        return PartitionTree([*nodes.values(), *(PartitionNode(child, parent=name) for child in names)])

    def _next(self, count: int) -> tuple[str, ...]:
        check_partitions(len(self.ids) + count if count > 0 else 0)
        first = len(self.nodes)
        if first + count > MAX_NUMBER + 1:
            raise ValueError(f"expected partition numbers up to {MAX_NUMBER}, and they are never given twice")
        return tuple(str(number) for number in range(first, first + count))

    def to_metadata(self) -> int | list[dict[str, Any]]:
        """Return the tree as a stream's metadata store it: the number of partitions, or the nodes if one was split."""
        if all(node.parent is None for node in self.nodes.values()):
            return len(self.nodes)
        return [
            {"children": [int(child) for child in node.children], "gone": node.gone} for node in self.nodes.values()
        ]

    @classmethod
    def from_metadata(cls, stored: int | list[dict[str, Any]]) -> PartitionTree:
        """Return the tree of a stream's metadata.

        Raises:
            ValueError, KeyError, TypeError: the stored value is no tree.
        """
        if not isinstance(stored, list):
            return cls(()).added(stored)
        parents: dict[str, str] = {}
        nodes = []
        for number, entry in enumerate(stored):
            children = tuple(str(child) for child in entry["children"])
            if any(int(child) <= number or int(child) >= len(stored) or child in parents for child in children):
                raise ValueError(f"the children of partition {number} cannot be {', '.join(children)}")
            parents.update(dict.fromkeys(children, str(number)))
            gone = bool(entry["gone"])
            if gone and not children:
                raise ValueError(f"partition {number} is gone without children")
            nodes.append(PartitionNode(str(number), parents.get(str(number)), children, gone))
        check_partitions(len([node for node in nodes if not node.gone]))
        return cls(nodes)


def check_partitions(count: int) -> None:
    """Raise ValueError unless a stream may have so many partitions."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise ValueError(f"expected 1 to {MAX_PARTITIONS} partitions")
