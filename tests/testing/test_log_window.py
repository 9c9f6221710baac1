"""``pytest --log-window``: a failure says where the log shows its streams, and the log is up until a key is pressed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from spark_streams.testing import LogStream, StreamFactory

FAILS = """
def test_fails(reference_log):
    orders = reference_log.create("orders")
    orders.produce(["a"])
    assert orders.values() == ["b"]

def test_passes(reference_log):
    reference_log.create("payments")

def test_fails_without_a_log():
    assert 0
"""
WORDS = ["-p", "no:cacheprovider", "--log-window"]


def test_a_stream_has_a_page(reference_log: StreamFactory) -> None:
    first, second = reference_log.create("orders"), LogStream(reference_log.process, "a b&c", 1)
    assert reference_log.created == [first]
    assert requests.get(first.window, timeout=120).status_code == 200
    assert second.window.endswith("/stream?stream=a%20b%26c")


@pytest.mark.nightly
def test_at_a_terminal_the_log_is_up_until_a_key_is_pressed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILS)
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "pytest", *WORDS, "--color=no", "test_it.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=its_end, stdout=its_end, stderr=its_end) as process:
        os.close(its_end)
        said = b""
        while b"until you press a key" not in said:
            said += os.read(terminal, 65_536)
        pages = re.findall(r"http://\S+", said.decode().rpartition("window of the reference log")[2])
        assert len(pages) == 1 and "orders-" in pages[0]
        assert "orders-" in requests.get(pages[0], timeout=120).text
        os.write(terminal, b"x")
        assert process.wait(120) == 1
    os.close(terminal)
    with pytest.raises(requests.ConnectionError):
        requests.get(pages[0], timeout=120)


def test_without_a_terminal_only_the_address_is_said(pytester: pytest.Pytester, reference_log: StreamFactory) -> None:
    process = reference_log.process
    pytester.makeconftest(
        "import pytest\nfrom types import SimpleNamespace\n\n@pytest.fixture(scope='session')\n"
        f"def reference_log_process(): return SimpleNamespace(urls={process.urls!r})\n"
    )
    pytester.makepyfile(FAILS)
    told = pytester.runpytest_inprocess(*WORDS, "-k", "without or fails").stdout
    assert told.str().count("/stream?stream=orders-") == 2, "with the failure, and in the summary"
    assert told.str().count("window of the reference log") == 2
    told.fnmatch_lines(["The log has ended with the tests. It stays up when they are run from a terminal*"])
    assert "payments" not in told.str()
