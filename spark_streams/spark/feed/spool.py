"""The spool of a query: a folder with the pages that it has fetched and not committed, and a manifest per micro-batch.

::

    <spoolLocation>/<id of the query's spool>/
        <run>-<partition>-<number>.events     events and their checkpoints (page_file.py)
        batch-<number>-<run>.json             the manifest of a micro-batch that this run planned

Guarantee: the driver writes a manifest whole, after the pages that it names, and before Spark knows the micro-batch. So
every micro-batch in Spark's checkpoint has its manifest, and reads the same events again, until it is committed.
On a local file system both are synchronised to the disk; object stores have no such call and need none.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from spark_streams.errors import OptionError, SpoolLost
from spark_streams.spark.feed.page_file import PageFile, faults, sync

_log = logging.getLogger(__name__)

MANIFEST_VERSION: Final = 2
_OPTION: Final = "spoolLocation"


class Spool:
    """The spool of one query; on the driver.

    Args:
        location: value of option ``spoolLocation``; None for a temporary folder, which is removed with the driver.
        identity: the id of the query's spool, from the checkpoint.
    """

    def __init__(self, location: str | None, identity: str) -> None:
        self.lasting = location is not None
        if location is None:
            folder = Path(tempfile.mkdtemp(prefix="spark-streams-spool-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            location = str(folder)
        self._file_system, base = open_file_system(location)
        self.uri = location, identity
        """Location and identity, with which a task opens the folder."""
        self._folder = f"{base.rstrip('/')}/{identity}"
        with faults():
            self._file_system.create_dir(self._folder, recursive=True)

    def writer(self, name: str) -> PageFile:
        """Return a new file for pages."""
        return PageFile(self._file_system, f"{self._folder}/{name}")

    def write_manifest(self, name: str, content: Mapping[str, Any]) -> None:
        """Write the manifest of a micro-batch, whole or not at all; its name is that of ``FeedOffset.manifest``."""
        path = f"{self._folder}/{name}"
        body = json.dumps({"version": MANIFEST_VERSION, **content}).encode()
        with faults():
            if isinstance(self._file_system, pafs.LocalFileSystem):
                Path(f"{path}.new").write_bytes(body)
                sync(f"{path}.new")
                os.replace(f"{path}.new", path)
                sync(self._folder)
            else:
                with self._file_system.open_output_stream(path, compression=None) as stream:
                    stream.write(body)

    def manifest(self, name: str) -> dict[str, Any] | None:
        """Return the manifest of a micro-batch, None when it is not there.

        Raises:
            SpoolLost: the manifest is there and cannot be read.
        """
        path = f"{self._folder}/{name}"
        try:
            with self._file_system.open_input_stream(path) as stream:
                content = json.loads(stream.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as fault:
            raise SpoolLost(f"the manifest {path} cannot be read: {fault}") from None
        if not isinstance(content, dict) or content.get("version") != MANIFEST_VERSION:
            raise SpoolLost(f"the manifest {path} was written by another version of spark-streams")
        return content

    def remove(self, names: list[str]) -> None:
        """Remove files; ignore those that are gone, and log a warning for those that cannot be removed."""
        for name in names:
            try:
                self._file_system.delete_file(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
            except OSError as fault:
                _log.warning("spool: %s/%s cannot be removed: %s", self._folder, name, fault)

    def names(self) -> list[str]:
        """Return the names of all files."""
        with faults():
            found = self._file_system.get_file_info(pafs.FileSelector(self._folder, allow_not_found=True))
        return sorted(each.base_name for each in found if each.is_file)


def open_file_system(location: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system and the path of a location, which is a path, or a URI that Arrow can open.

    Raises:
        OptionError: Arrow cannot open the URI, or the location begins with ``dbfs:``.
    """
    if "://" not in location and not location.startswith("file:"):
        if location.startswith("dbfs:"):
            raise OptionError(_OPTION, f"'{location}' is no path: give the one that files have, such as /Volumes/…")
        return pafs.LocalFileSystem(), str(Path(location).absolute())
    try:
        file_system, path = pafs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as fault:
        raise OptionError(_OPTION, f"'{location}' is no folder that can be opened: {fault}") from None
    return file_system, path
