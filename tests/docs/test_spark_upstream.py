"""The patch that docs/spark-upstream.md proposes is one for the Spark that is installed."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.docs.pages import blocks


def test_the_patch_applies_to_the_daemon() -> None:
    (patch,) = blocks("docs/spark-upstream.md", "diff")
    head, _, hunk = patch.partition("@@\n")
    assert head == "--- a/python/pyspark/daemon.py\n+++ b/python/pyspark/daemon.py\n"
    lines = [line for line in hunk.splitlines() if line]
    assert {line[0] for line in lines} == {" ", "+"}
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] == " ")
    after = "".join(f"{line[1:]}\n" for line in lines)
    daemon = (Path(pyspark.__file__).parent / "daemon.py").read_text()
    assert daemon.count(before) == 1
    patched = daemon.replace(before, after)
    compile(patched, "daemon.py", "exec")
    assert patched.count("gc.freeze()") == 1
