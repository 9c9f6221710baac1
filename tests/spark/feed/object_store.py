"""An object store behind Arrow's interface: what is written is there once it is closed, whole, and is never renamed."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

SCHEME = "store://"


class _Upload(io.BytesIO):
    """An object while it is written."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store, self._path = store, path

    def close(self) -> None:
        if not self.closed:
            self._store.objects[self._path] = self.getvalue()
        super().close()


class ObjectStore(pafs.FileSystemHandler):  # type: ignore[misc]
    """Objects by their keys; folders are no more than beginnings of keys."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open(self, location: str) -> tuple[pafs.FileSystem, str]:
        """Do what ``open_file_system`` does, for ``store://…``."""
        assert location.startswith(SCHEME)
        return pafs.PyFileSystem(self), location.removeprefix(SCHEME)

    def get_type_name(self) -> str:
        return "object-store"

    def normalize_path(self, path: str) -> str:
        return path

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: there are none."""

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self, path), mode="w")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.objects[path])

    def delete_file(self, path: str) -> None:
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        folder = selector.base_dir.rstrip("/") + "/"
        found = [self._info(key) for key in sorted(self.objects) if key.startswith(folder)]
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(folder)
        return found

    def _info(self, path: str) -> pafs.FileInfo:
        if path in self.objects:
            return pafs.FileInfo(path, pafs.FileType.File, size=len(self.objects[path]))
        return pafs.FileInfo(path, pafs.FileType.NotFound)

    def _refuse(self, *_: Any) -> Any:
        raise NotImplementedError("an object store does not do this")

    open_append_stream = move = copy_file = _refuse
    delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
