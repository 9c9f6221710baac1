"""What docs/log-window.md shows is run as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from spark_streams.cli.log.serve import opened_doors
from spark_streams.protocols import with_doors
from tests.cli.conftest import serving
from tests.docs.pages import blocks

PAGE = "docs/log-window.md"


def test_the_command(tmp_path: Path) -> None:
    (command,) = blocks(PAGE, "bash")
    assert command.split()[:3] == ["spark-streams", "log", "serve"]
    with serving(tmp_path) as start:
        served = start("--web", "0", "--feedapi", "0", *command.split()[3:])  # its own ports may be another log's
        assert "orders" in requests.get(served.doors["web"], timeout=120).text
        assert requests.get(f"{served.doors['web']}/readyz", timeout=120).text == "ready\n"


@pytest.mark.parametrize(
    ("named", "opened"),
    [((), "all"), (("web",), "all"), (("amqp",), ("amqp",)), (("feedapi", "web"), ("feedapi", "web"))],
)
def test_when_the_window_is_opened(named: tuple[str, ...], opened: str | tuple[str, ...]) -> None:
    assert set(opened_doors(named)) == set(with_doors() if opened == "all" else opened)
    assert "web" in with_doors()
