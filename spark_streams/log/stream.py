"""One stream: a name, its settings, its partitions, and what tells it from another stream of the same name."""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import google_crc32c

from spark_streams.errors import CorruptLog
from spark_streams.log.config import StreamConfig
from spark_streams.log.files import write_atomically
from spark_streams.log.partition import Partition

__all__ = ["Stream", "folder_name", "load_stream", "new_stream"]

METADATA_FILE = "stream.json"
METADATA_VERSION = 1
MAX_NAME_BYTES = 200
"""So that a name, percent-encoded, still fits the 255 bytes of a file name in almost every case."""
MAX_PARTITIONS = 10_000


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

    ``partitions`` maps identifiers, ``"0"`` on, to the open partitions; an unpartitioned stream has the one ``"0"``.
    ``incarnation`` is made anew whenever a stream is created, so that a reader notices one that was deleted and created
    again under the same name.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        incarnation: str,
        config: StreamConfig,
        partition_count: int,
        open_partition: Callable[[Path, str, str, StreamConfig], Partition],
    ) -> None:
        self.folder = folder
        self.name = name
        self.incarnation = incarnation
        self.config = config
        self._open_partition = open_partition
        self._partitions = self._opened(0, partition_count)

    def _opened(self, first: int, count: int) -> dict[str, Partition]:
        """Open partitions, all or none of them."""
        opened: dict[str, Partition] = {}
        try:
            for number in range(first, first + count):
                folder = self.folder / str(number)
                opened[str(number)] = self._open_partition(folder, self.name, str(number), self.config)
        except BaseException:
            for partition in opened.values():
                partition.discard()
            raise
        return opened

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """Identifier to partition, in the order of creation."""
        return MappingProxyType(self._partitions)

    def add_partitions(self, count: int) -> None:
        """Add ``count`` empty partitions, durably.

        Raises:
            ValueError: not a positive number, or too many.

        """
        check_partitions(len(self._partitions) + count if count > 0 else 0)
        # The metadata come after the folders: a partition that they count and that has no folder is a lost one.
        opened = self._opened(len(self._partitions), count)
        try:
            self.write_metadata(len(self._partitions) + count)
        except BaseException:
            for partition in opened.values():
                partition.discard()
            raise
        self._partitions = {**self._partitions, **opened}

    def write_metadata(self, partition_count: int) -> None:
        """Write what the folder's name does not say, whole or not at all."""
        content: dict[str, Any] = {
            "version": METADATA_VERSION,
            "name": self.name,
            "incarnation": self.incarnation,
            "partitions": partition_count,
            "config": dataclasses.asdict(self.config),
        }
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


def check_partitions(count: int) -> None:
    """Raise ValueError unless a stream may have so many partitions."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise ValueError(f"expected 1 to {MAX_PARTITIONS} partitions")


def new_stream(
    folder: Path,
    name: str,
    partitions: int,
    config: StreamConfig,
    open_partition: Callable[[Path, str, str, StreamConfig], Partition],
) -> Stream:
    """Make a stream's folder and metadata; the metadata come last, so that a half-made stream is recognised."""
    check_partitions(partitions)
    if folder.exists():
        # The caller knows no such stream: a creation or deletion that the system refused to end left this behind.
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    try:
        stream = Stream(folder, name, uuid.uuid4().hex, config, partitions, open_partition)
        stream.write_metadata(partitions)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return stream


def load_stream(folder: Path, open_partition: Callable[[Path, str, str, StreamConfig], Partition]) -> Stream | None:
    """Open a stream; None where the folder holds no metadata: its creation never ended.

    Raises:
        CorruptLog: the metadata, or an acknowledged batch, fail their check.

    """
    path = folder / METADATA_FILE
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content["version"] != METADATA_VERSION:
            raise ValueError(f"version {content['version']}, this release reads {METADATA_VERSION}")
        said, found = content.pop("crc32c", None), _checksum(content)
        if said != found:
            raise ValueError(f"CRC-32C is {found}, the file says {said}")
        unknown = sorted(set(content["config"]) - {field.name for field in dataclasses.fields(StreamConfig)})
        if unknown:
            # Going on without it could remove or store records against what the stream's owner asked for.
            raise ValueError(f"setting {', '.join(unknown)} is of a newer release: open the log with that one")
        config = StreamConfig(**content["config"])
        name, incarnation, count = content["name"], content["incarnation"], content["partitions"]
        if folder_name(name) != folder.name:
            raise ValueError(f"the folder is another stream's than '{name}'")
        check_partitions(count)
        for number in range(count):
            if not (folder / str(number)).is_dir():
                raise ValueError(f"it counts {count} partitions, and the folder of partition {number} is missing")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise CorruptLog(str(path), 0, f"the stream's metadata cannot be read: {fault}") from fault
    return Stream(folder, name, incarnation, config, count, open_partition)
