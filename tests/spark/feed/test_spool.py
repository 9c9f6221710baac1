"""The spool: files and manifests, whole or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.errors import OptionError, SpoolLost
from spark_streams.spark.feed.page_file import PageRange
from spark_streams.spark.feed.spool import Spool, open_file_system


def test_a_folder_for_each_query(tmp_path: Path) -> None:
    one, two = Spool(str(tmp_path / "a" / "b"), "one"), Spool(str(tmp_path / "a" / "b"), "two")
    for spool in (one, two):
        writer = spool.writer("x.events")
        writer.write(b"1\n")
        writer.write(pa.py_buffer(b"23\n"))
        assert writer.size == 5
        writer.close()
    one.remove(["x.events", "nosuch"])
    assert one.names() == [] and two.names() == ["x.events"]
    assert (tmp_path / "a" / "b" / "two" / "x.events").read_bytes() == b"1\n23\n"


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_as_a_path_or_a_uri(tmp_path: Path, form: str) -> None:
    spool = Spool(form.format(tmp_path), "q")
    spool.write_manifest("m", {"a": 1})
    assert (tmp_path / "q").is_dir() and spool.manifest("m") == {"version": 2, "a": 1}
    location, identity = spool.uri
    _, base = open_file_system(location)
    assert Path(base, identity) == tmp_path / "q"


@pytest.mark.parametrize("location", ["dbfs:/x", "nosuch://bucket/x"])
def test_places_that_are_none(location: str) -> None:
    with pytest.raises(OptionError, match="spoolLocation"):
        Spool(location, "q")


def test_manifests(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "q")
    one, other = "batch-00000000000000000003-a.json", "batch-00000000000000000003-b.json"
    assert spool.manifest(one) is None
    spool.write_manifest(one, {"tasks": [{"pages": [PageRange("f", 1, 2)]}]})
    spool.write_manifest(one, {"tasks": []})
    spool.write_manifest(other, {"tasks": [{"pages": [PageRange("f", 1, 2)]}]})
    again = Spool(str(tmp_path), "q")
    assert again.manifest(one) == {"version": 2, "tasks": []}
    assert again.manifest(other) == {"version": 2, "tasks": [{"pages": [["f", 1, 2]]}]}
    assert again.names() == [one, other]
    again.remove([one])
    assert again.names() == [other]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}'])
def test_a_manifest_that_is_damaged_is_told(tmp_path: Path, content: bytes) -> None:
    spool = Spool(str(tmp_path), "q")
    spool.write_manifest("m", {})
    (path,) = (tmp_path / "q").iterdir()
    path.write_bytes(content)
    with pytest.raises(SpoolLost, match="manifest"):
        spool.manifest("m")


def test_without_a_location_it_is_temporary() -> None:
    spool = Spool(None, "q")
    assert not spool.lasting and Path(spool.uri[0]).is_dir()
    assert Spool(None, "q").uri[0] != spool.uri[0]


def test_what_cannot_be_written_or_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(str(tmp_path), "q")
    (tmp_path / "q" / "folder").mkdir()
    with pytest.raises(SpoolLost, match="room"):
        spool.writer("folder/no/such")
    with caplog.at_level(logging.WARNING):
        spool.remove(["folder"])
    assert "cannot be removed" in caplog.text
    (tmp_path / "blocked").write_text("")
    with pytest.raises(SpoolLost):
        Spool(str(tmp_path / "blocked"), "q")
