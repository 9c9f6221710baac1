"""The suite of the bench: its page names its measures, each runs, and two revisions can be compared.

Each run is a process of its own, which starts a Spark of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.harness.figures import Figures, read_all
from tests.bench.harness.targets import Target, lines
from tests.bench.peers.__main__ import JVM, MEASURES, PLAIN

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_BROKER = {
    *("rabbitmq-log", "amqp-events", "plain-proton", "event-hubs", "plain-event-hubs"),
    *("feedapi", "plain-feed", "plain-zeroeventhub", "ceiling"),
}
TINY = ("--rows", "2000", "--rounds", "1", "--partitions", "2,3")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench.peers", *words, *TINY]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)


def test_the_page_lists_the_measures_of_both_suites() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    section = page.partition("## The measures")[2].partition("\n## ")[0]
    tables = [re.findall(r"^\| `(\w+)` \|", table, re.M) for table in section.split("| measure |")[1:]]
    assert tables == [list(JVM), list(PLAIN)]


def test_each_file_of_the_suite_is_a_measure() -> None:
    files = {file.stem for file in (ROOT / "tests" / "bench" / "peers").glob("*.py")}
    assert files - {"__main__"} == MEASURES.keys()
    assert len({measure.name for measure in MEASURES.values()}) == len(MEASURES)


def test_targets_name_figures_of_formats_that_are_measured() -> None:
    formats = {measure.name: measure.formats for measure in MEASURES.values()}
    for measure in MEASURES.values():
        for target in measure.targets:
            for name, form, _ in filter(None, (target.over, target.under)):
                assert form in formats[name], target.text


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"at_most": 2.0}, "- met: it: 2.00, target ≤ 2.00"),
        ({"at_most": 1.9}, "- MISSED: it: 2.00, target ≤ 1.90"),
        ({"at_least": 2.1}, "- MISSED: it: 2.00, target ≥ 2.10"),
        ({}, "- it: 2.00"),
    ],
)
def test_a_target_is_judged_by_the_median_of_the_rounds_ratios(bounds: dict[str, float], said: str) -> None:
    figures = Figures()
    for one, other in ((2, 1), (40, 20), (9, 1)):
        figures.add("m", "one", {"f": one})
        figures.add("m", "other", {"f": other})
    target = Target("it", ("m", "one", "f"), ("m", "other", "f"), **bounds)
    assert target.line(figures) == said
    missing = Target("it", ("m", "one", "f"), ("m", "nobody", "f"))
    assert lines([missing, target], figures) == f"\n{said}"


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1_800)
def test_each_measure_runs(tmp_path: Path) -> None:
    # The latency takes seconds of a rate that a slow machine does not keep.
    names = [name for name in MEASURES if name != "latency"]
    said = bench(*names, "--formats", ",".join(sorted(WITHOUT_BROKER)), "--json", str(tmp_path)).stdout
    figures = read_all(tmp_path)
    seen = {(figure.measure, figure.subject) for figure in figures}
    wanted = {
        (MEASURES[name].name, form) for name in names for form in MEASURES[name].formats if form in WITHOUT_BROKER
    }
    assert seen == wanted
    for name in names:
        for line in filter(None, lines(MEASURES[name].targets, figures).splitlines()):
            assert line in said


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_two_revisions_are_compared(tmp_path: Path) -> None:
    said = bench("partitions", "--formats", "amqp-events,rabbitmq-log", "--compare", "HEAD").stdout
    assert "| least, old | new | ratio |" in said
    for form in ("amqp-events", "rabbitmq-log"):
        assert f"many partitions, `{form}`: 3: idle, ms |" in said
