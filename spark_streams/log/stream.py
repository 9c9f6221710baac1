"""One stream: a name, its settings, its partitions, and what tells it from another stream of the same name.

``stream.json`` says which partitions there are and how they came to be; it is replaced whole, and that is the moment
in which a change of partitions takes effect. What a killed change left behind, folders of partitions that the metadata
do not know, is removed by the next start.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import google_crc32c

from spark_streams.errors import CorruptLog
from spark_streams.log.config import StreamConfig
from spark_streams.log.partition_tree import KeyTree, PartitionTree, child_of_key
from spark_streams.log.redistribution import Redistribution
from spark_streams.log.split_history import SplitHistory
from spark_streams.log.storage.files import sync_directory, write_atomically
from spark_streams.log.storage.partition import Partition
from spark_streams.log.storage.segment import LOG_SUFFIX
from spark_streams.offsets import format_offset

__all__ = ["Stream", "folder_name", "load_stream", "new_stream"]

METADATA_FILE = "stream.json"
SPLITS = "splits"
"""Folder with a file for each partition whose history was redistributed."""
METADATA_VERSION = 1
SPLIT_METADATA_VERSION = 2
"""Of a stream whose partitions were split: an earlier release would take their number for all there is to know."""
MAX_NAME_BYTES = 200
"""So that a name, percent-encoded, still fits the 255 bytes of a file name in almost every case."""

logger = logging.getLogger("spark_streams.log")


def folder_name(name: str) -> str:
    """Return the folder of a stream: its name with all but letters, digits, ``_``, ``-`` and ``~`` percent-encoded.

    Raises:
        ValueError: an empty name, one that is too long, or one with control characters.

    """
    encoded = quote(name, safe="").replace(".", "%2E")
    if not name or len(encoded) > MAX_NAME_BYTES or any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise ValueError(
            f"{name!r} cannot name a stream: expected 1 to {MAX_NAME_BYTES} bytes when percent-encoded, without "
            "control characters"
        )
    return encoded


class Stream:
    """An open stream.

    ``partitions`` maps identifiers to partitions; an unpartitioned stream has the one ``"0"``. Those that were closed
    by a split are among them, those whose history was redistributed are not: identifiers need not be consecutive.
    ``partition_names`` are those that clients of RabbitMQ gave its first partitions, None when they gave none.
    ``incarnation`` is made anew whenever a stream is created, so that a reader notices one that was deleted and created
    again under the same name.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        incarnation: str,
        config: StreamConfig,
        lineage: PartitionTree,
        open_partition: Callable[[Path, str, str, StreamConfig], Partition],
        partition_names: tuple[str, ...] | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self.incarnation = incarnation
        self.config = config
        self.partition_names = partition_names
        self._open_partition = open_partition
        self._lineage = lineage
        self._histories: dict[str, SplitHistory] = {}
        self._partitions = self._opened(lineage, lineage.ids)

    def _opened(self, lineage: PartitionTree, names: Sequence[str]) -> dict[str, Partition]:
        """Open partitions, all or none of them."""
        opened: dict[str, Partition] = {}
        try:
            for name in names:
                partition = self._open_partition(self.folder / name, self.name, name, self.config)
                opened[name] = partition
                partition.end(lineage.nodes[name].children)
                partition.starts_after, partition.cursor_from = lineage.starts_after(name), lineage.cursor_from(name)
        except BaseException:
            for partition in opened.values():
                partition.discard()
            raise
        return opened

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """Identifier to partition, in the order of creation."""
        return MappingProxyType(self._partitions)

    @property
    def partitions_before_splits(self) -> int:
        """How many partitions there would be if none had been split."""
        return self._lineage.roots

    @property
    def partitions_ever(self) -> int:
        """How many partitions there are or were; the next one gets this number."""
        return len(self._lineage.nodes)

    @property
    def open_partitions(self) -> tuple[str, ...]:
        """The partitions that take records, in the order of creation."""
        return self._lineage.open_ids

    def home(self, key: bytes | memoryview) -> str:
        """Return the open partition that a key belongs to."""
        return self._lineage.home(key)

    def homes_among(self, names: Collection[str]) -> KeyTree:
        """Return what says where keys belong when only some of the open partitions may be used."""
        return self._lineage.tree(names)

    def translate(self, partition: str, origin: str, offset: int) -> int:
        """Return the next record to read on a partition where a reader of one that left had come.

        Args:
            partition: where reading is to go on.
            origin: one of its ``cursor_from``.
            offset: the next record that was to be read on ``origin``.

        Returns:
            The offset, inclusive; below the partition's first one when records in between were removed by retention.

        Raises:
            ValueError: ``origin`` is none of its ``cursor_from``.
            CorruptLog: what is stored about the split fails its check.

        """
        ancestors = self._lineage.cursor_from(partition)
        if origin not in ancestors:
            raise ValueError(f"partition {partition} has no part of the history of partition '{origin}'")
        chain = [partition, *ancestors[: ancestors.index(origin) + 1]]
        for child, parent in reversed(list(pairwise(chain))):
            at = self._lineage.nodes[parent].children.index(child)
            offset = self._history(parent).translate(at, offset)
        return offset

    def inherited(self, partition: str, note: bytes) -> dict[str, int]:
        """Return the last sequence number of each publisher that a partition's redistributed ancestors know.

        Raises:
            CorruptLog: what is stored about a split fails its check.
        """
        found: dict[str, int] = {}
        for ancestor in reversed(self._lineage.cursor_from(partition)):
            found.update(self._history(ancestor).notes.get(note.decode(), {}))
        return found

    def _history(self, parent: str) -> SplitHistory:
        known = self._histories.get(parent)
        if known is None:
            known = self._histories[parent] = SplitHistory.read(self.folder / SPLITS / parent)
        return known

    def predecessors(self, name: str) -> list[Partition]:
        """Return the closed partitions that hold what came before a partition's first record, nearest first."""
        partitions = self._partitions
        found = []
        before = partitions[name].starts_after
        while before is not None:
            found.append(partitions[before])
            before = partitions[before].starts_after
        return found

    def add_partitions(self, count: int) -> None:
        """Add ``count`` empty partitions, durably.

        Raises:
            ValueError: not a positive number, or too many.

        """
        lineage = self._lineage.added(count)
        remove_unknown(self.folder, self._lineage)
        # The metadata come after the folders: a partition that they count and that has no folder is a lost one.
        opened = self._opened(lineage, lineage.ids[len(self._lineage.ids) :])
        try:
            self.write_metadata(lineage)
        except BaseException:
            for partition in opened.values():
                partition.discard()
            raise
        self._lineage, self._partitions = lineage, {**self._partitions, **opened}

    def split(self, name: str, into: int, *, history: bool) -> None:
        """Split a partition, see ``ReferenceLog.split_partition``; one change of a stream at a time.

        Raises:
            ValueError: it cannot be split, or not into so many.
            OSError: the system refused; the partition is as it was.
        """
        lineage = self._lineage.split(name, into, history=history)
        remove_unknown(self.folder, self._lineage)
        try:
            if history:
                self._redistribute(name, lineage)
            else:
                self._close(name, lineage)
        except BaseException:
            if self._lineage is not lineage:
                self._sweep()
            raise

    def _close(self, name: str, lineage: PartitionTree) -> None:
        parent = self._partitions[name]
        opened = self._opened(lineage, lineage.nodes[name].children)
        try:
            # Appends to the parent wait: none may be stored there once its children can be appended to.
            with parent.held():
                self._put_into_effect(lineage)
                # The children first: who looks meanwhile finds at least one partition that is open.
                self._partitions, self._lineage = {**self._partitions, **opened}, lineage
                parent.end(lineage.nodes[name].children)
        except BaseException:
            _discard(opened)
            raise

    def _redistribute(self, name: str, lineage: PartitionTree) -> None:
        parent, names = self._partitions[name], lineage.nodes[name].children
        children: dict[str, Partition] = {}
        try:
            with parent.kept():
                for number in names:
                    make_folder(self.folder / number, parent.first_offset)
                children = self._opened(lineage, names)
                copies = Redistribution(
                    parent, list(children.values()), lambda key: child_of_key(name, key, len(children))
                )
                before = copies.behind
                copies.catch_up()
                # Producers that are faster than this would never be caught up with: they wait as soon as that shows.
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
                    (self.folder / SPLITS).mkdir(exist_ok=True)
                    copies.history().write(self.folder / SPLITS / name)
                    sync_directory(self.folder)
                    durable = self._put_into_effect(lineage)
                    left = {known: p for known, p in self._partitions.items() if known != name}
                    self._partitions, self._lineage = {**left, **children}, lineage
                    parent.end(names)
        except BaseException:
            _discard(children)
            raise
        parent.discard()
        if durable:  # else a power cut may bring the old metadata back, and the next start removes the folder
            self._sweep()

    def _put_into_effect(self, lineage: PartitionTree) -> bool:
        """Write the metadata; return whether they are on the disk, or with the system only.

        Raises:
            OSError: they could not be written, the old ones are there.
        """
        try:
            self.write_metadata(lineage)
        except OSError:
            # The file may be the new one all the same, and the next start goes by what it says.
            if load_metadata(self.folder).lineage.to_metadata() != lineage.to_metadata():
                raise
            logger.warning("%s: the new metadata could not be forced to the disk", self.folder, exc_info=True)
            return False
        return True

    def _sweep(self) -> None:
        """Remove what a change that did not take effect has left behind, as far as the system lets us."""
        try:
            remove_unknown(self.folder, self._lineage)
        except OSError:
            logger.warning("%s: the next start removes what a failed split left", self.folder, exc_info=True)

    def write_metadata(self, lineage: PartitionTree | None = None) -> None:
        """Write what the folder's name does not say, whole or not at all; None: as it is."""
        partitions = (lineage or self._lineage).to_metadata()
        content: dict[str, Any] = {
            "version": METADATA_VERSION if isinstance(partitions, int) else SPLIT_METADATA_VERSION,
            "name": self.name,
            "incarnation": self.incarnation,
            "partitions": partitions,
            "config": dataclasses.asdict(self.config),
        }
        if self.partition_names is not None:
            content["partition_names"] = list(self.partition_names)
        content["crc32c"] = _checksum(content)
        write_atomically(self.folder / METADATA_FILE, json.dumps(content, indent=1).encode())

    def close(self) -> None:
        """Force everything to the disk and close the partitions.

        Raises:
            OSError: the system refused for one of them; all are closed all the same.

        """
        with ExitStack() as stack:
            for partition in self._partitions.values():
                stack.callback(partition.close)

    def discard(self) -> None:
        """Close the partitions without forcing anything to the disk: the stream is being deleted."""
        for partition in self._partitions.values():
            partition.discard()


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32C of metadata: a flipped bit in a number would hide partitions or remove records, silently."""
    return f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"


def _discard(partitions: Mapping[str, Partition]) -> None:
    for partition in partitions.values():
        partition.discard()


def new_stream(
    folder: Path,
    name: str,
    partitions: int,
    config: StreamConfig,
    open_partition: Callable[[Path, str, str, StreamConfig], Partition],
    partition_names: tuple[str, ...] | None = None,
) -> Stream:
    """Make a stream's folder and metadata; the metadata come last, so that a half-made stream is recognised."""
    lineage = PartitionTree.of_roots(partitions)
    if partition_names is not None and not (len(set(partition_names)) == len(partition_names) == partitions):
        raise ValueError(f"expected {partitions} different names, one for each partition")
    if folder.exists():
        # The caller knows no such stream: a creation or deletion that the system refused to end left this behind.
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    try:
        stream = Stream(folder, name, uuid.uuid4().hex, config, lineage, open_partition, partition_names)
        stream.write_metadata()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return stream


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What ``stream.json`` says."""

    name: str
    incarnation: str
    config: StreamConfig
    lineage: PartitionTree
    partition_names: tuple[str, ...] | None


def load_metadata(folder: Path) -> Metadata:
    """Read a stream's metadata.

    Raises:
        FileNotFoundError: there are none.
        CorruptLog: they fail their check.
    """
    path = folder / METADATA_FILE
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        version = content["version"]
        if version not in (METADATA_VERSION, SPLIT_METADATA_VERSION):
            raise ValueError(f"version {version}, this release reads up to {SPLIT_METADATA_VERSION}")
        said, found = content.pop("crc32c", None), _checksum(content)
        if said != found:
            raise ValueError(f"CRC-32C is {found}, the file says {said}")
        unknown = sorted(set(content["config"]) - {field.name for field in dataclasses.fields(StreamConfig)})
        if unknown:
            # Going on without it could remove or store records against what the stream's owner asked for.
            raise ValueError(f"setting {', '.join(unknown)} is of a newer release: open the log with that one")
        lineage = PartitionTree.from_metadata(content["partitions"])
        if folder_name(content["name"]) != folder.name:
            raise ValueError(f"the folder is another stream's than '{content['name']}'")
        for node in lineage.nodes.values():
            if node.gone and not (folder / SPLITS / node.id).is_file():
                raise ValueError(f"what is known about the split of partition {node.id} is missing")
        for name in lineage.ids:
            if not (folder / name).is_dir():
                raise ValueError(
                    f"it counts {len(lineage.ids)} partitions, and the folder of partition {name} is missing"
                )
        names = content.get("partition_names")
        given = None if names is None else tuple(map(str, names))
        return Metadata(content["name"], content["incarnation"], StreamConfig(**content["config"]), lineage, given)
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise CorruptLog(str(path), 0, f"the stream's metadata cannot be read: {fault}") from fault


def make_folder(folder: Path, first_offset: int) -> None:
    """Make the folder of a partition whose offsets do not begin at 0."""
    folder.mkdir()
    (folder / (format_offset(first_offset) + LOG_SUFFIX)).touch()


def remove_unknown(folder: Path, lineage: PartitionTree) -> None:
    """Remove the folders of partitions that are not there, left behind by a change that was killed.

    What was written about splits may stay: it is overwritten when it is needed.
    """
    for path in folder.iterdir():
        if path.name.isdigit() and path.name not in lineage.ids:
            logger.info("%s: removed, the change of partitions that made it, or left it, had not ended", path)
            shutil.rmtree(path)


def load_stream(folder: Path, open_partition: Callable[[Path, str, str, StreamConfig], Partition]) -> Stream | None:
    """Open a stream; None where the folder holds no metadata: its creation never ended.

    Raises:
        CorruptLog: the metadata, or an acknowledged batch, fail their check.

    """
    try:
        said = load_metadata(folder)
    except FileNotFoundError:
        return None
    remove_unknown(folder, said.lineage)
    return Stream(folder, said.name, said.incarnation, said.config, said.lineage, open_partition, said.partition_names)
