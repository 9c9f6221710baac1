"""Every notebook as on Databricks, with its `spark` and `dbutils`: twice, on one log and one volume, as people do."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.testing import LogProcess
from tests.sessions import running_session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
VOLUME = "/Volumes/main/default/spark_streams"
STREAMS = ("orders:4", "telemetry:4", "measurements:3", "payments:2")
"""What the notebooks say must be there; the tour makes its own."""
SHOWN_BY_RUN = {
    "amqp-events": (r"\| +0\|110028\|\n\+", r"\| +0\|220056\|\n\| +2\| +28719\|\n\| +3\| +61253\|\n\+"),
    "event-hubs": (r"\| +0\|0+10000\| +51253\|\n\+", r"\| +0\|0+10000\| +112506\|\n\| +1\|0+89162\| +89162\|"),
    "feedapi": ("180000 payments", "360000 payments"),
    "rabbitmq-stream": (r"\[300000, 0\][^[]*420000 events in", r"\[300000, 0\][^[]*420000 events in"),
    "tour": ("only the log has: +0\n.*only the feed has: 0\n +16 events", "has: +0\n.*has: 0\n +32 events"),
}
READ_BY_RUN = {
    "amqp-events": 200_000,
    "event-hubs": 200_000,
    "feedapi": 180_000,
    "rabbitmq-stream": 420_000,
    "tour": 200_000,
}
"""Events that the query with the listener reads: those of one run, as it goes on from its checkpoint."""


class Secrets:
    """`dbutils.secrets`: what each notebook asks for, by scope and key."""

    def __init__(self, urls: dict[str, str]) -> None:
        self._urls = urls

    def get(self, scope: str, key: str) -> str:
        assert scope == "spark-streams"
        return self._urls[key]


class Notebook:
    """One run, cell by cell, in one namespace; `dbutils.library.restartPython()` empties it, as there."""

    def __init__(self, path: Path, volume: Path, spark: Any) -> None:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        self._cells = ["".join(cell["source"]).replace(VOLUME, str(volume)) for cell in cells]
        self._given = {"spark": spark, "dbutils": self}
        self.library = self
        self.restarts = 0
        self.installed: list[str] = []
        self.names: dict[str, Any] = dict(self._given)

    def restartPython(self) -> None:  # Databricks' name
        self.restarts += 1
        self.names.clear()
        self.names.update(self._given)

    def run(self) -> str:
        """Return what the cells printed."""
        said = StringIO()
        with redirect_stdout(said):
            for cell in self._cells:
                if cell.startswith("%pip "):
                    assert self.restarts == 0 and "\n" not in cell
                    self.installed.append(cell)
                else:
                    exec(compile(cell, "cell", "exec"), self.names)
        return said.getvalue()


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The secrets of docs/databricks.md, for one log behind three doors."""
    arguments = [word for stream in STREAMS for word in ("--stream", stream)]
    with LogProcess(arguments=arguments) as log:
        doors = {door: url.replace("//", "//guest:guest@") for door, url in log.urls.items()}
        yield {"amqp-url": doors["amqp"], "rabbitmq-url": doors["rabbitmq-stream"], "feed-url": doors["feedapi"]} | {
            "event-hubs-connection": log.event_hubs_connection_string
        }


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that are shown, open until the test's end; nothing is drawn on a screen."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    shown: list[Any] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    with plt.rc_context():
        yield shown
    plt.close("all")


def plotted(figures: list[Any], title: str) -> list[float]:
    """The heights of the one plot whose title begins so: of its line, or of its bars, stacked ones added up."""
    (axis,) = [axis for figure in figures for axis in figure.axes if axis.get_title(loc="left").startswith(title)]
    if axis.lines:
        (line,) = axis.lines
        return [float(y) for y in line.get_ydata()]
    heights: dict[float, float] = {}
    for bar in axis.patches:
        upright = bar.get_x() != 0
        place = round(bar.get_x() if upright else bar.get_y(), 3)
        heights[place] = heights.get(place, 0.0) + (bar.get_height() if upright else bar.get_width())
    return list(heights.values())


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SHOWN_BY_RUN))
def test_it_runs_there_and_again(
    name: str, tmp_path: Path, urls: dict[str, str], figures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "19.0")
    monkeypatch.setattr("spark_streams.testing.notebook.VOLUME", str(tmp_path))
    utilities = SimpleNamespace(DBUtils=lambda spark: SimpleNamespace(secrets=Secrets(urls)))
    monkeypatch.setitem(sys.modules, "pyspark.dbutils", utilities)
    spark = running_session()
    for number, expected in enumerate(SHOWN_BY_RUN[name]):
        figures.clear()
        notebook = Notebook(FOLDER / f"{name}.ipynb", tmp_path, spark)
        said = notebook.run()
        assert re.search(expected, said), (number, said)
        assert notebook.restarts == 1
        assert len(notebook.installed) == 1
        assert not spark.streams.active
        assert spark.range(3).count() == 3, "the session is Databricks': it is not stopped"

        lag, rate, keys = (plotted(figures, title) for title in ("lag", "events per second", "events per key"))
        known = [n for n in lag if not math.isnan(n)]  # a feed tells only at its end
        assert min(known) == 0
        assert name == "feedapi" or (len(known) == len(lag) and lag[-1] == 0 < lag[0])
        assert len(rate) == len(lag) and min(rate) > 0
        assert len(keys) > 1 and min(keys) > 0
        batches = notebook.names.get("batches") or [progress for _, progress in notebook.names["busy"]]
        assert sum(progress.events for progress in batches) == READ_BY_RUN[name]
    assert any(tmp_path.glob(f"{name}/*/metadata")), "a checkpoint on the volume"
