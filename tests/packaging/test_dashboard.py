"""The dashboard and the example of a scrape in ``conf``: what they name is exported, and their readers take them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_streams.server.web.figures import FIGURES as FIGURES_OF_THE_LOG
from spark_streams.spark.progress.figures import DURATION, FIGURES

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "conf" / "grafana" / "spark-streams.json").read_text())
SCRAPES: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "prometheus.yml").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
SINCE_GRAFANA_9 = 36
"""The version of the schema from which on a panel's own datasource is the object that it is here."""
COLUMNS = 24

OF_ANY_PROCESS = (
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
)
"""Of prometheus_client's collector of processes."""


def series(name: str, labels: tuple[str, ...], is_histogram: bool) -> dict[str, set[str]]:
    """Return the names of the series of a metric, and the labels of each."""
    if not is_histogram:
        return {name: set(labels)}
    return {f"{name}_bucket": {*labels, "le"}, f"{name}_count": set(labels), f"{name}_sum": set(labels)}


EXPORTED: dict[str, set[str]] = {
    **{
        name: labels
        for figures, durations in (
            (FIGURES, {DURATION}),
            (FIGURES_OF_THE_LOG, {each for each in FIGURES_OF_THE_LOG if each.kind == "histogram"}),
        )
        for figure in figures
        for name, labels in series(figure.name, figure.labels, figure in durations).items()
    },
    **{name: set() for name in OF_ANY_PROCESS},
}
FROM_SCRAPES = {"instance", "job"}
"""Labels that Prometheus itself gives all that it scrapes."""

EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
ALL_EXPRESSIONS = EXPRESSIONS + [each["definition"] for each in VARIABLES.values() if "definition" in each]


def named(expression: str) -> set[str]:
    """Return the names of metrics in an expression, or a query of a variable."""
    return set(re.findall(r"\b(?:spark_streams|process)_\w+", expression))


@pytest.mark.parametrize("expression", ALL_EXPRESSIONS)
def test_it_names_what_is_exported_with_the_labels_that_it_has(expression: str) -> None:
    assert named(expression) and named(expression) <= EXPORTED.keys()
    labels = set[str]().union(*(EXPORTED[name] for name in named(expression))) | FROM_SCRAPES
    asked = set(re.findall(r"(\w+)=~", expression))
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        asked |= set(grouped.split(", "))
    assert asked <= labels


def test_a_legend_shows_labels_that_are_there() -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.search(r"by \(([^)]*)\)", target["expr"])
            labels = set[str]().union(*(EXPORTED[name] for name in named(target["expr"]))) | FROM_SCRAPES
            assert shown <= (labels if kept is None else set(kept[1].split(", "))), panel["title"]


def test_all_that_is_exported_is_shown() -> None:
    def base(name: str) -> str:
        return re.sub(r"(_seconds)_(bucket|count|sum)$", r"\1", name)

    shown = {base(name) for expression in EXPRESSIONS for name in named(expression)}
    assert {base(name) for name in EXPORTED} - shown == set()


def test_rates_are_of_what_counts_and_what_counts_is_shown_as_a_rate() -> None:
    counting = re.compile(r"_total|_bucket|_count$|_current_offset")
    for expression in EXPRESSIONS:
        for name in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
            assert counting.search(name), expression
        for name in named(expression):
            if name.endswith(("_total", "_bucket", "_count")):
                assert re.search(rf"(?:rate|increase)\({name}\b", expression), expression


def test_a_loss_in_the_first_batch_of_a_driver_is_seen() -> None:
    """Its counter begins with it, and ``increase`` is of two values that differ."""
    rare = [e for e in EXPRESSIONS if re.search(r"query_(?:losses|retries)_total", e)]
    assert len(rare) == 4
    for expression in rare:
        once = re.search(r"\((\w+\{[^}]*\}) unless \1 offset (\$\w+)\) or increase\(\1\[\2\]\)", expression)
        assert once is not None, expression


@pytest.mark.parametrize("expression", ALL_EXPRESSIONS)
def test_its_brackets_are_closed_and_its_variables_are_there(expression: str) -> None:
    unquoted = re.sub(r'"[^"]*"', '""', expression)
    open_: list[str] = []
    for character in unquoted:
        if character in "({[":
            open_.append({"(": ")", "{": "}", "[": "]"}[character])
        elif character in ")}]":
            assert open_ and open_.pop() == character
    assert open_ == []
    assert set(re.findall(r"\$(\w+)", expression)) <= {*VARIABLES, "__rate_interval", "__range"}


def test_grafana_takes_it() -> None:
    assert DASHBOARD["schemaVersion"] >= SINCE_GRAFANA_9
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["id"] is None, "the one who imports it gives it a number"
    assert DASHBOARD["title"] and "__inputs" not in DASHBOARD
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    assert {panel["type"] for panel in PANELS} == {"row", "stat", "timeseries"}
    (datasource, *others) = DASHBOARD["templating"]["list"]
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    which = {"type": "prometheus", "uid": f"${{{datasource['name']}}}"}
    for variable in others:
        assert (variable["type"], variable["datasource"]) == ("query", which)
        assert variable["query"]["query"] == variable["definition"]
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == which
            assert panel["description"], f"'{panel['title']}' says what it shows"
            assert [target["refId"] for target in panel["targets"]] == list("ABC"[: len(panel["targets"])])
            assert {json.dumps(target["datasource"]) for target in panel["targets"]} == {json.dumps(which)}


def test_no_panel_covers_another_and_there_are_no_holes() -> None:
    covered: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in covered, f"{panel['title']} covers {covered[x, y]}"
                covered[x, y] = panel["title"]
    assert len(covered) == COLUMNS * (max(y for _, y in covered) + 1)
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ["Queries", "The log"]


def test_the_example_of_a_scrape_has_the_log_and_a_driver_and_no_password() -> None:
    log, queries = SCRAPES["scrape_configs"]
    assert log["metrics_path"] == "/metrics"
    assert log["basic_auth"].keys() == {"username", "password_file"}
    assert queries["job_name"] == "spark-streams-queries"
    for each in (log, queries):
        assert [len(targets["targets"]) for targets in each["static_configs"]] == [1]
