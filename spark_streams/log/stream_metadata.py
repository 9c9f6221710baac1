"""Names the folder of a stream, and reads and writes its metadata, the file ``stream.json``.

The file is replaced as a whole; at that moment a change of the stream's partitions takes effect.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import msgspec

from spark_streams.errors import CorruptLog
from spark_streams.log.config import StreamConfig
from spark_streams.log.partition_tree import PartitionTree
from spark_streams.log.storage.files import write_atomically

METADATA_FILE = "stream.json"
SPLITS = "splits"
"""Folder with a file for each partition whose history was redistributed."""
METADATA_VERSION = 1
SPLIT_METADATA_VERSION = 2
"""The version of a stream whose partitions were split: its partitions are a tree, and not a number."""
MAX_NAME_BYTES = 200
"""The longest name: percent-encoded, it still fits the 255 bytes of a file name in almost every case."""
MAX_PARTITION_NAME_BYTES = 255
"""The longest name that RabbitMQ's clients can give a partition, as at a broker: that of a queue."""


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


class StreamMetadata(msgspec.Struct, frozen=True, omit_defaults=True, rename={"tree": "partitions"}):
    """The content of ``stream.json``.

    Args:
        name: the stream's name.
        incarnation: an identifier that is new for every creation of a stream.
        config: the stream's settings.
        tree: the present and past partitions.
        created_ms: when it was created, in ms since the epoch.
        partition_names: the names that clients of RabbitMQ gave the first partitions; None when they gave none.
        maker: the user who made it, for whose share of the log's partitions it counts; None: it counts for nobody.
    """

    name: str
    incarnation: str
    config: StreamConfig
    tree: PartitionTree
    created_ms: int
    partition_names: tuple[str, ...] | None = None
    maker: str | None = None

    def write(self, folder: Path) -> None:
        """Write the file into the stream's folder, whole or not at all.

        Raises:
            OSError: the system refused.
        """
        content = msgspec.to_builtins(self, enc_hook=PartitionTree.to_metadata)
        split = not isinstance(content["partitions"], int)
        content["version"] = SPLIT_METADATA_VERSION if split else METADATA_VERSION
        content["crc32c"] = _checksum(content)
        write_atomically(folder / METADATA_FILE, json.dumps(content, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> StreamMetadata:
        """Read the file of a stream's folder, and check that the folders of the partitions are there.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptLog: the file fails its check, or a folder or file that it names is missing.
        """
        path = folder / METADATA_FILE
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            version = content["version"]
            if version not in (METADATA_VERSION, SPLIT_METADATA_VERSION):
                raise ValueError(f"version {version}, this release reads up to {SPLIT_METADATA_VERSION}")
            stored, found = content.pop("crc32c", None), _checksum(content)
            if stored != found:
                raise ValueError(f"CRC-32C is {found}, the file says {stored}")
            unknown = sorted(set(content["config"]) - {field.name for field in dataclasses.fields(StreamConfig)})
            if unknown:
                # Going on without the setting could remove or store records against the will of the stream's owner.
                raise ValueError(f"setting {', '.join(unknown)} is of a newer release: open the log with that one")
            metadata = msgspec.convert(content, cls, dec_hook=lambda _, tree: PartitionTree.from_metadata(tree))
            if folder_name(metadata.name) != folder.name:
                raise ValueError(f"the folder is another stream's than '{metadata.name}'")
            for node in metadata.tree.nodes.values():
                if node.gone and not (folder / SPLITS / node.id).is_file():
                    raise ValueError(f"what is known about the split of partition {node.id} is missing")
            for name in metadata.tree.ids:
                if not (folder / name).is_dir():
                    count = len(metadata.tree.ids)
                    raise ValueError(f"it counts {count} partitions, and the folder of partition {name} is missing")
            return metadata
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise CorruptLog(str(path), 0, f"the stream's metadata cannot be read: {fault}") from fault


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32C of metadata: a flipped bit in a number would hide partitions or remove records, silently."""
    return f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"
