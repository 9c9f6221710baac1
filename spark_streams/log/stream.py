"""One stream: its partitions, where keys belong among them, and how adding and splitting partitions changes them.

A change of partitions takes effect when the metadata (``stream_metadata.py``) are replaced. A killed change leaves
folders of partitions behind that the metadata do not know; the next start removes them.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from spark_streams.log.config import StreamConfig
from spark_streams.log.partition_tree import KeyTree, PartitionTree, child_of_key
from spark_streams.log.redistribution import Redistribution, SplitHistory
from spark_streams.log.storage.files import OpenFile, logger, make_directory, sync_directory
from spark_streams.log.storage.partition import Partition
from spark_streams.log.storage.segment import LOG_SUFFIX
from spark_streams.log.stream_metadata import SPLITS, StreamMetadata
from spark_streams.offsets import format_offset

OpenPartition = Callable[[Path, str, str, StreamConfig], Partition]
"""Opens a partition, given its folder, the stream's name, the partition's identifier and the stream's settings."""


class Stream:
    """An open stream.

    Args:
        folder: the stream's folder.
        metadata: the content of ``stream.json``.
        open_partition: opens a partition of it.

    Attributes:
        name: the stream's name.
        incarnation: the identity of this creation of the stream; it differs from that of a deleted stream of the same
            name, so that a reader notices when its positions are of another stream.
        config: the stream's settings.
        partition_names: the names that clients of RabbitMQ gave its first partitions; None when they gave none.
        created_ms: when it was created, in ms since the epoch.

    Raises:
        CorruptLog: an acknowledged batch fails its check.
    """

    def __init__(self, folder: Path, metadata: StreamMetadata, open_partition: OpenPartition) -> None:
        self.folder = folder
        self.name = metadata.name
        self.incarnation = metadata.incarnation
        self.config = metadata.config
        self.partition_names = metadata.partition_names
        self.created_ms = metadata.created_ms
        self.maker = metadata.maker
        self._open_partition = open_partition
        self._tree = metadata.tree
        self._histories: dict[str, SplitHistory] = {}
        with self._opened(self._tree, self._tree.ids) as opened:
            self._partitions = opened

    @contextmanager
    def _opened(self, tree: PartitionTree, names: Sequence[str]) -> Iterator[dict[str, Partition]]:
        """Open partitions; they are closed when one of them cannot be opened, or the context fails."""
        opened: dict[str, Partition] = {}
        try:
            for name in names:
                partition = self._open_partition(self.folder / name, self.name, name, self.config)
                opened[name] = partition
                partition.successors = tree.nodes[name].children
                partition.starts_after, partition.cursor_from = tree.starts_after(name), tree.cursor_from(name)
            yield opened
        except BaseException:
            _discard(opened)
            raise

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """Identifier to partition, in the order of creation.

        An unpartitioned stream has one, ``"0"``. Partitions that a split closed are among them; partitions whose
        history was redistributed are not, so identifiers need not be consecutive.
        """
        return MappingProxyType(self._partitions)

    @property
    def partitions_before_splits(self) -> int:
        """How many partitions were created or added, splits not counted."""
        return self._tree.roots

    @property
    def partitions_ever(self) -> int:
        """How many partitions there are or were; this is the number of the next one."""
        return len(self._tree.nodes)

    @property
    def open_partitions(self) -> tuple[str, ...]:
        """The partitions that take records, in the order of creation."""
        return self._tree.open_ids

    def home(self, key: bytes | memoryview) -> str:
        """Return the open partition that a key belongs to."""
        return self._tree.keys.home(key)

    def homes_among(self, names: Collection[str]) -> KeyTree:
        """Return the assignment of keys when only some of the open partitions may be used."""
        return self._tree.keys_among(names)

    def translate(self, partition: str, origin: str, offset: int) -> int:
        """Return the offset at which a reader of a redistributed partition continues on another one.

        Args:
            partition: the partition to read now.
            origin: one of its ``cursor_from``, the partition that the reader read.
            offset: the next record of ``origin`` to read.

        Returns:
            The offset, inclusive; below the partition's first one when records in between were removed by retention.

        Raises:
            ValueError: ``origin`` is not in the partition's ``cursor_from``.
            CorruptLog: the file about the split fails its check.
        """
        ancestors = self._tree.cursor_from(partition)
        if origin not in ancestors:
            raise ValueError(f"partition {partition} has no part of the history of partition '{origin}'")
        chain = [partition, *ancestors[: ancestors.index(origin) + 1]]
        for child, parent in reversed(list(pairwise(chain))):
            at = self._tree.nodes[parent].children.index(child)
            offset = self._history(parent).translate(at, offset)
        return offset

    def inherited(self, partition: str, note: bytes) -> dict[str, int]:
        """Return the last sequence number of each publisher in a partition's redistributed ancestors.

        Args:
            partition: the partition.
            note: the name of the publishers' note.

        Raises:
            CorruptLog: the file about a split fails its check.
        """
        found: dict[str, int] = {}
        for ancestor in reversed(self._tree.cursor_from(partition)):
            found.update(self._history(ancestor).notes.get(note.decode(), {}))
        return found

    def _history(self, parent: str) -> SplitHistory:
        known = self._histories.get(parent)
        if known is None:
            known = self._histories[parent] = SplitHistory.read(self.folder / SPLITS / parent)
        return known

    def predecessors(self, name: str) -> list[Partition]:
        """Return the closed partitions that hold the records before a partition's first one, nearest first."""
        partitions = self._partitions
        found = []
        before = partitions[name].starts_after
        while before is not None:
            found.append(partitions[before])
            before = partitions[before].starts_after
        return found

    def add_partitions(self, count: int) -> None:
        """Add ``count`` empty partitions, durably; metadata that are written but not forced to the disk are a warning.

        Raises:
            ValueError: ``count`` is not positive, or there would be too many partitions.
            OSError: the system refused; the stream is as it was.
        """
        tree = self._tree.added(count)
        remove_unknown(self.folder, self._tree)
        # The metadata come after the folders: a partition in the metadata without a folder would count as lost.
        with self._opened(tree, tree.ids[len(self._tree.ids) :]) as opened:
            self._put_into_effect(tree)
            self._tree, self._partitions = tree, {**self._partitions, **opened}

    def split(self, name: str, into: int, *, history: bool) -> None:
        """Split a partition, see ``ReferenceLog.split_partition``; one change of a stream at a time.

        Raises:
            ValueError: the partition cannot be split, or not into so many.
            OSError: the system refused; the partition is as it was.
        """
        tree = self._tree.split(name, into, history=history)
        remove_unknown(self.folder, self._tree)
        try:
            if history:
                self._redistribute(name, tree)
            else:
                self._close(name, tree)
        except BaseException:
            if self._tree is not tree:
                self._sweep()
            raise

    def _close(self, name: str, tree: PartitionTree) -> None:
        parent, names = self._partitions[name], tree.nodes[name].children
        # Appends to the parent wait: it must store no record once its children take records.
        with self._opened(tree, names) as children, parent.held():
            self._put_into_effect(tree)
            # The children first: other threads always see at least one open partition.
            self._partitions, self._tree = {**self._partitions, **children}, tree
            parent.successors = names

    def _redistribute(self, name: str, tree: PartitionTree) -> None:
        parent, names = self._partitions[name], tree.nodes[name].children
        with parent.kept():
            for folder in (self.folder / number for number in names):  # offsets may not begin at 0
                make_directory(folder)
                OpenFile(folder / (format_offset(parent.first_offset) + LOG_SUFFIX), os.O_WRONLY | os.O_CREAT)
            with self._opened(tree, names) as children:
                copies = Redistribution(
                    parent, list(children.values()), lambda key: child_of_key(name, key, len(children))
                )
                before = copies.behind
                copies.catch_up()
                # Producers may be faster than the copies: when the copies do not gain on them any more, producers wait.
                while before // 2 > copies.behind:
                    before = copies.behind
                    for child in children.values():
                        child.sync()
                    copies.catch_up()
                with parent.held():  # appends wait from here on
                    copies.catch_up()
                    for child in children.values():
                        child.sync()
                        sync_directory(self.folder / child.id)
                    make_directory(self.folder / SPLITS)
                    copies.history().write(self.folder / SPLITS / name)
                    sync_directory(self.folder)
                    durable = self._put_into_effect(tree)
                    left = {known: p for known, p in self._partitions.items() if known != name}
                    self._partitions, self._tree = {**left, **children}, tree
                    parent.successors = names
        parent.discard()
        if durable:  # else a power cut may restore the old metadata, and the next start removes the folder
            self._sweep()

    def _put_into_effect(self, tree: PartitionTree) -> bool:
        """Write the metadata, whole or not at all, with another tree; return whether they are on the disk for certain.

        Raises:
            OSError: the metadata could not be written; the old ones are in effect.
        """
        try:
            noted = self.created_ms, self.partition_names, self.maker
            StreamMetadata(self.name, self.incarnation, self.config, tree, *noted).write(self.folder)
        except OSError:
            # The file may be the new one all the same, and the next start reads it.
            if StreamMetadata.read(self.folder).tree.to_metadata() != tree.to_metadata():
                raise
            logger.warning("%s: the new metadata could not be forced to the disk", self.folder, exc_info=True)
            return False
        return True

    def _sweep(self) -> None:
        """Remove the remains of a failed change, and log a refusal of the system."""
        try:
            remove_unknown(self.folder, self._tree)
        except OSError:
            logger.warning("%s: the next start removes what a failed split left", self.folder, exc_info=True)

    def close(self) -> None:
        """Force everything to the disk and close the partitions.

        Raises:
            OSError: the system refused for one of them; all are closed all the same.
        """
        call_all(partition.close for partition in self._partitions.values())

    def discard(self) -> None:
        """Close the partitions without forcing anything to the disk: the stream is being deleted."""
        _discard(self._partitions)


def call_all(functions: Iterable[Callable[[], object]]) -> None:
    """Call all functions, the last one first, even if some fail; then raise the error of a failed one."""
    with ExitStack() as stack:
        for function in functions:
            stack.callback(function)


def _discard(partitions: Mapping[str, Partition]) -> None:
    for partition in partitions.values():
        partition.discard()


def new_stream(
    folder: Path,
    name: str,
    partitions: int,
    config: StreamConfig,
    open_partition: OpenPartition,
    partition_names: tuple[str, ...] | None = None,
    maker: str | None = None,
) -> Stream:
    """Create a stream: its folder, its partitions, and, last, its metadata, with which it exists.

    Args:
        folder: the stream's folder.
        name: the stream's name.
        partitions: how many it starts with.
        config: its settings.
        open_partition: opens a partition of it.
        partition_names: the names that clients of RabbitMQ gave the partitions; None when they gave none.
        maker: the user who makes it, or None.

    Raises:
        ValueError: no stream may have so many partitions, or their number is not that of the names.
        OSError: the system refused; nothing is left behind.
    """
    tree = PartitionTree(()).added(partitions)
    if partition_names is not None and not (len(set(partition_names)) == len(partition_names) == partitions):
        raise ValueError(f"expected {partitions} different names, one for each partition")
    if folder.exists():
        # The caller knows no such stream: a creation or deletion that failed half way left this behind.
        shutil.rmtree(folder)
    make_directory(folder)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        now_ms = time.time_ns() // 1_000_000
        metadata = StreamMetadata(name, uuid.uuid4().hex, config, tree, now_ms, partition_names, maker)
        stream = Stream(folder, metadata, open_partition)
        undo.callback(stream.discard)
        metadata.write(folder)
        sync_directory(folder.parent)
        undo.pop_all()
    return stream


def remove_unknown(folder: Path, tree: PartitionTree) -> None:
    """Remove the folders of partitions that are not in the tree: a killed change left them behind.

    Files about splits may stay: the next split of the same partition overwrites them.
    """
    for path in folder.iterdir():
        if path.name.isdigit() and path.name not in tree.ids:
            logger.info("%s: removed, the change of partitions that made it, or left it, had not ended", path)
            shutil.rmtree(path)


def load_stream(folder: Path, open_partition: OpenPartition) -> Stream | None:
    """Open a stream; None where the folder holds no metadata: its creation never ended.

    Raises:
        CorruptLog: the metadata, or an acknowledged batch, fail their check.
    """
    try:
        metadata = StreamMetadata.read(folder)
    except FileNotFoundError:
        return None
    remove_unknown(folder, metadata.tree)
    return Stream(folder, metadata, open_partition)
