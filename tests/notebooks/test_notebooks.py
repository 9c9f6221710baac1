"""Every notebook, top to bottom, on the embedded log; and what is committed of them has outputs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
AT_A_TIME = 2
WHAT_IT_SHOWS = {
    "amqp-events": ["ada", "edsger", "partition"],
    "event-hubs": ["chiller", "pump-1", "00000000000000010000", "the last one: at least one"],
    "feedapi": ["180000 payments", "payments of 380 EUR and more"],
    "rabbitmq-stream": ["[300000, 0]", "420000 events in", "from 1957: 420000"],
    "tour": [
        "Sputnik 1",
        "events that only the log has:  0\nevents that only the feed has: 0\n",
        "16 events from 1957-10-04, as -386380800000",
        *(
            f"{door:16} ['Apollo 11', 'Explorer 1', 'Friendship 7', 'Intelsat I']"
            for door in ("amqp-events", "feedapi")
        ),
        "filter values 'USA'",
    ],
}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def text_of(notebook: Any) -> str:
    """Everything that its cells have printed."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return "".join("".join(output.get("text", "")) for output in outputs)


def pictures_of(notebook: Any) -> int:
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_there_is_one_for_each_protocol_and_a_tour() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(WHAT_IT_SHOWS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_has_outputs_and_nothing_of_a_machine(path: Path) -> None:
    notebook = read(path)
    shown = text_of(notebook)
    for text in WHAT_IT_SHOWS[path.stem]:
        assert text in shown
    assert pictures_of(notebook) >= 1
    assert not re.search(r"/(?:tmp|root|home|Users)/|Traceback|127\.0\.0\.1", path.read_text())


def code_of(notebook: Any) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_installs_as_the_page_says(path: Path) -> None:
    install, restart, *others = code_of(read(path))
    page = " ".join((FOLDER.parent / "docs" / "databricks.md").read_text().split())
    assert f"`{install.replace('--quiet ', '')}`" in page
    assert "dbutils.library.restartPython()" in restart
    assert not any("%pip" in cell for cell in others)
    name = path.stem
    assert others[0].startswith(f'from spark_streams.testing import Notebook\n\nhere = Notebook("{name}"')


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_plots_have_lag_rate_and_events_per_key(path: Path) -> None:
    """What was drawn as these is checked where they are run, in test_on_databricks.py."""
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    drawn = [cell for cell in cells if any("image/png" in out.get("data", {}) for out in cell["outputs"])]
    titles = re.findall(r'set_title\("([^"]*)"', "".join("".join(cell["source"]) for cell in drawn))
    for title in ("lag: events that are left", "events per second", "events per key"):
        assert sum(found.startswith(title) for found in titles) == 1, titles
    assert titles[0] == "events per second", "what one wants to see first"


@pytest.fixture(scope="module")
def executed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Any]]:
    """A function that gives a notebook as it is after a run; those that are asked for run two at a time.

    Each has a process, a Spark and a log of its own, which for most of the time wait for one another.
    """
    wanted = [item.callspec.params["path"] for item in request.session.items if _runs(item)]
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = {path: pool.submit(_execute, path, tmp_path_factory.mktemp(path.stem)) for path in wanted}
        yield lambda path: runs[path].result()
        for run in runs.values():
            run.cancel()


def _runs(item: Any) -> bool:
    return item.path == Path(__file__) and item.originalname == test_it_runs_from_top_to_bottom.__name__


def _execute(path: Path, folder: Path) -> Any:
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell.cell_type != "code" else cell.update(outputs=[], execution_count=None)
    resources = {"metadata": {"path": str(folder)}}
    try:
        nbclient.NotebookClient(notebook, timeout=500, resources=resources).execute()  # an error of a cell ends it
    except RuntimeError as fault:
        # Jupyter looks for free ports, and its kernel takes them some time later: another process may be faster.
        if "Kernel died before replying" not in str(fault):
            raise
        nbclient.NotebookClient(notebook, timeout=500, resources=resources).execute()
    return notebook


@pytest.mark.nightly  # each has a process, a Spark and a log of its own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path: Path, executed: Callable[[Path], Any]) -> None:
    notebook = executed(path)
    shown = text_of(notebook)
    for text in WHAT_IT_SHOWS[path.stem]:
        assert text in shown
    assert pictures_of(notebook) == pictures_of(read(path))
