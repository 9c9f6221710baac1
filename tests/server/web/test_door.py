"""The window's door: what looks at nothing costs nothing."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.server.web.conftest import Window

_PROGRAM = """
import sys, requests
from spark_streams.log import ReferenceLog
from spark_streams.server import ServerThread, WebConfig
with ReferenceLog() as log, ServerThread(log, WebConfig(port=0)) as server:
    before = {"jinja2", "prometheus_client", "spark_streams.server.web.application"} & set(sys.modules)
    status = requests.get(server.urls["web"]).status_code
    after = {"jinja2", "prometheus_client", "spark_streams.server.web.application"} & set(sys.modules)
print(sorted(before), status, sorted(after))
"""


def test_nothing_is_imported_before_somebody_looks() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[] 200 ['jinja2', 'spark_streams.server.web.application']\n", done.stderr


def test_a_door_that_nobody_looked_at_is_closed(window: Window) -> None:
    window.server.stop()
    assert window.server.urls == {}


def test_the_first_ones_who_look_see_the_same(window: Window) -> None:
    window.create()
    with ThreadPoolExecutor(8) as pool:
        pages = set(pool.map(lambda _: window.get("/stream", stream="orders").status_code, range(8)))
    assert pages == {200}
    door = window.server.server.door("web")
    assert door.application._made is not None
