"""Every fenced block of the README and of the pages is run, or read as what it is, by a test that is named here.

A block that is new, or in a language that no test knows, fails `test_each_block_has_its_test`. That the named tests do
run the blocks is shown by the slow `test_a_block_that_is_spoiled_fails_its_test`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, SPOILED, blocks
from tests.docs.test_pages import missing, said

README = "tests/docs/test_readme.py"
RABBIT = "tests/docs/test_rabbitmq_pages.py"
FEED_SOURCE, FEED_SINK = "tests/docs/test_feedapi_page.py", "tests/docs/test_feedapi_sink_page.py"
FEED_DOOR = "tests/docs/test_feedapi_door_page.py"
AMQP = "tests/docs/test_amqp_and_filter_pages.py"
SNIPPETS = "tests/docs/test_snippets.py"
SHELL = "tests/docs/test_monitoring_page.py"
SECURITY = "tests/docs/test_security_page.py"
WHEEL = "tests/packaging/test_installed_wheel.py"
HERE = "tests/docs/test_blocks.py"
GUIDES = "tests/docs/test_guides.py"
PIPELINE = "tests/docs/test_guides_pipeline.py"
RUNNING = "tests/docs/test_running_page.py"
HUBS_DOOR = "tests/docs/test_event_hubs_door_page.py"

RUN: dict[str, dict[str, list[tuple[str, int]]]] = {
    "README.md": {
        "bash": [(f"{README}::test_the_make_targets_are_there", 1), (f"{README}::test_the_quick_start", 2)],
        "python": [(f"{README}::test_the_quick_start", 4)],
    },
    "CONTRIBUTING.md": {"bash": [(f"{HERE}::test_the_targets_for_developers", 1)]},
    "docs/amqp-events-door.md": {
        "toml": [(f"{HERE}::test_the_settings_of_the_amqp_door", 1)],
        "sql": [(f"{AMQP}::test_the_doors_full_sql", 1)],
    },
    "docs/amqp-events-sink.md": {
        "python": [(f"{AMQP}::test_writing_events", 1), (f"{AMQP}::test_reading_each_event_once", 1)]
    },
    "docs/amqp-events.md": {
        "python": [(f"{AMQP}::test_reading_events", 3)],
        "json": [(f"{AMQP}::test_the_positions_that_are_shown", 1)],
        "text": [(f"{AMQP}::test_the_line_in_the_log[docs/amqp-events.md]", 1)],
    },
    "docs/databricks.md": {
        "python": [(f"{SNIPPETS}::test_on_databricks", 1)],
        "text": [(f"{HERE}::test_the_setting_that_takes_secrets_out[docs/databricks.md]", 1)],
    },
    "docs/example-project/README.md": {"bash": [(f"{WHEEL}::test_the_example_project_runs_as_its_page_says[4.0]", 1)]},
    "docs/extending.md": {"python": [(f"{SNIPPETS}::test_adding_a_protocol", 2)]},
    "docs/feedapi-door.md": {
        "bash": [(f"{FEED_DOOR}::test_the_commands", 5)],
        "toml": [(f"{FEED_DOOR}::test_the_settings", 1)],
    },
    "docs/feedapi-sink.md": {"python": [(f"{FEED_SINK}::test_the_programs", 3)]},
    "docs/feedapi.md": {"python": [(f"{FEED_SOURCE}::test_the_blocks_of_the_page", 3)]},
    "docs/log-window.md": {"bash": [("tests/docs/test_log_window_page.py::test_the_command", 1)]},
    "docs/event-hubs-door.md": {
        "bash": [(f"{HUBS_DOOR}::test_the_command_and_what_it_prints", 1)],
        "json": [(f"{HUBS_DOOR}::test_the_command_and_what_it_prints", 1)],
        "python": [(f"{HUBS_DOOR}::test_the_program", 1)],
        "toml": [(f"{HUBS_DOOR}::test_the_settings", 1)],
    },
    "docs/from-azure-event-hubs-spark.md": {
        "python": [("tests/docs/test_event_hubs_page.py::test_coming_from_the_scala_connector", 2)]
    },
    "docs/event-hubs.md": {"python": [("tests/docs/test_event_hubs_page.py::test_the_options_of_the_page", 2)]},
    "docs/rabbitmq-amqp.md": {
        "python": [("tests/docs/test_event_hubs_page.py::test_the_options_of_the_page_on_rabbitmq", 1)]
    },
    "docs/filters.md": {
        "python": [(f"{AMQP}::test_the_programs_of_the_filter_language", 2)],
        "bash": [(f"{AMQP}::test_the_commands_that_explain_filters[docs/filters.md]", 1)],
        "sql": [(f"{AMQP}::test_the_programs_of_the_filter_language", 1)],
    },
    "docs/from-kafka.md": {
        "python": [(f"{SNIPPETS}::test_coming_from_kafka", 1), (f"{SNIPPETS}::test_moving_a_job_from_kafka", 1)]
    },
    "docs/from-zeroeventhub.md": {"python": [(f"{SNIPPETS}::test_coming_from_zeroeventhub", 3)]},
    "docs/guides/README.md": {"bash": [(f"{GUIDES}::test_the_streams_and_the_events_of_the_first_page", 2)]},
    "docs/guides/aggregate.md": {"python": [(f"{GUIDES}::test_aggregate", 2)]},
    "docs/guides/batch-to-stream.md": {"python": [(f"{GUIDES}::test_batch_to_stream", 1)]},
    "docs/guides/deduplicate.md": {"python": [(f"{GUIDES}::test_deduplicate", 1)]},
    "docs/guides/delta-and-iceberg.md": {
        "python": [(f"{GUIDES}::test_delta_and_iceberg_with_parquet_in_their_place", 3)]
    },
    "docs/guides/event-schema.md": {"python": [(f"{GUIDES}::test_event_schema", 3)]},
    "docs/guides/foreach-batch.md": {"python": [(f"{GUIDES}::test_foreach_batch", 1)]},
    "docs/guides/join.md": {"python": [(f"{GUIDES}::test_join", 2)]},
    "docs/guides/pipeline.md": {
        "python": [(f"{PIPELINE}::test_the_pipeline_of_the_page", 1)],
        "yaml": [(f"{PIPELINE}::test_the_pipeline_of_the_page", 1)],
        "bash": [(f"{PIPELINE}::test_the_pipeline_of_the_page", 1)],
    },
    "docs/guides/sizing.md": {"python": [(f"{GUIDES}::test_sizing", 1)]},
    "docs/guides/to-table.md": {"python": [(f"{GUIDES}::test_to_table", 1)]},
    "docs/guides/upgrade.md": {"python": [(f"{GUIDES}::test_upgrade", 1)]},
    "docs/how-it-works.md": {
        "mermaid": [
            ("tests/docs/test_pictures.py::test_the_pictures_are_of_kinds_that_are_drawn", 5),
            ("tests/docs/test_state_pictures.py::test_the_pages_pictures_are_those_of_the_code", 2),
        ],
        "text": [(f"{HERE}::test_what_the_drawings_name_is_there", 3)],
    },
    "docs/monitoring.md": {
        "python": [
            (f"{SNIPPETS}::test_seeing_what_happens", 6),
            (f"{SNIPPETS}::test_the_query_on_what_the_tasks_said", 1),
        ],
        "text": [(f"{HERE}::test_the_lines_of_a_batch", 1)],
        "bash": [(f"{SHELL}::test_the_commands_that_speak_with_any_peer", 1)],
    },
    "docs/performance.md": {"bash": [(f"{HERE}::test_the_commands_of_the_bench", 1)]},
    "docs/pushdown.md": {
        "python": [(f"{AMQP}::test_filters_that_are_pushed", 2)],
        "bash": [(f"{AMQP}::test_the_commands_that_explain_filters[docs/pushdown.md]", 1)],
        "text": [(f"{AMQP}::test_the_line_in_the_log[docs/pushdown.md]", 1)],
    },
    "docs/rabbitmq-stream-door.md": {
        "bash": [(f"{RABBIT}::test_the_command_and_the_names_of_the_door_page", 1)],
        "toml": [(f"{RABBIT}::test_the_settings_of_the_door_page", 2)],
        "python": [(f"{RABBIT}::test_the_program_of_the_door_page", 1)],
    },
    "docs/rabbitmq-stream-sink.md": {"python": [(f"{RABBIT}::test_the_blocks_of_the_sink_page", 5)]},
    "docs/rabbitmq-stream.md": {
        "python": [(f"{RABBIT}::test_the_blocks_of_the_source_page", 7)],
        "json": [(f"{RABBIT}::test_the_positions_that_are_shown", 1)],
        "bash": [(f"{AMQP}::test_the_commands_that_explain_filters[docs/rabbitmq-stream.md]", 1)],
    },
    "docs/running-the-log.md": {
        "bash": [(f"{RUNNING}::test_the_commands_for_systemd", 1), (f"{RUNNING}::test_the_commands_for_docker", 1)],
        "toml": [(f"{RUNNING}::test_the_settings", 1)],
        "ini": [(f"{RUNNING}::test_the_files_that_settings_name", 1)],
    },
    "docs/security.md": {
        "python": [(f"{SECURITY}::test_the_function_of_the_page_gives_a_token", 2)],
        "toml": [(f"{SECURITY}::test_the_permissions_of_the_page", 1)],
        "bash": [(f"{SECURITY}::test_the_command_of_the_page", 1)],
        "text": [(f"{HERE}::test_the_setting_that_takes_secrets_out[docs/security.md]", 1)],
    },
    "docs/spark-upstream.md": {
        "diff": [("tests/docs/test_spark_upstream.py::test_the_patch_applies_to_the_daemon", 1)]
    },
    "docs/sql.md": {
        "sql": [("tests/docs/test_sql_page.py::test_the_statements", 4)],
        "python": [("tests/docs/test_sql_page.py::test_the_statements", 3)],
    },
    "docs/testing.md": {"python": [("tests/testing/test_query.py::test_the_page_is_right", 3)]},
}
"""Page, language, tests and how many of the page's blocks in that language each of them takes."""


SPOIL_EACH = f"""
import contextlib, io, json, os, re
import pytest

passed = []
for page, language, number, test in json.loads(os.environ["BLOCKS"]):
    os.environ[{SPOILED!r}] = f"{{page}} {{language}} {{number}}"
    said = io.StringIO()
    ignored = "ignore::pytest.PytestAssertRewriteWarning"  # of what the run before has imported
    with contextlib.redirect_stdout(said):
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-W", ignored, test])
    # Those of the wheel take their block in a fixture.
    end = "error" if "installed_wheel" in test else "failed"
    # A test with parameters fails with each of them.
    *_, summary = said.getvalue().splitlines()
    if code != 1 or not re.match(f"[1-9][0-9]* {{end}}", summary):
        passed.append([page, language, number, test, said.getvalue()[-500:]])
print(json.dumps(passed))
"""
"""Spoils one block after the other and runs its test; prints those that did not fail. In one process, for one Spark."""


def pages() -> list[str]:
    """The pages, as they are named in RUN."""
    files = (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    return [str(file.relative_to(ROOT)) for file in files]


def languages(text: str) -> list[str]:
    """The languages of a page's fences, however they are indented, in the order of the page."""
    return [word.strip() for word in re.findall(r"^[ >]*(?:```+|~~~+)(.*)$", text, re.MULTILINE)[::2]]


def each_block() -> list[tuple[str, str, int, str]]:
    """Page, language, number and test of each block in RUN."""
    return [
        (page, language, number, test)
        for page, by_language in RUN.items()
        for language, tests in by_language.items()
        for number, test in enumerate(test for test, count in tests for _ in range(count))
    ]


def test_each_block_has_its_test() -> None:
    there = {page: languages((ROOT / page).read_text()) for page in pages()}
    listed = {page: sorted(language for of_page, language, *_ in each_block() if of_page == page) for page in there}
    assert {page: sorted(found) for page, found in there.items()} == listed
    for page, found in there.items():
        for language in set(found):
            assert len(blocks(page, language)) == found.count(language), (
                f"{page}: {language}: a fence is not at a line's start"
            )


def test_a_block_without_a_language_or_a_test_is_noticed() -> None:
    assert languages("a\n```\nmake x\n```\n\n  ```bash\n  ls\n  ```\n~~~ sql\n1\n~~~\n") == ["", "bash", "sql"]


def test_each_named_test_is_there() -> None:
    for *_, test in each_block():
        file, _, name = test.partition("[")[0].partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_block_that_is_spoiled_fails_its_test() -> None:
    environment = {**os.environ, "BLOCKS": json.dumps(each_block())}
    command = [sys.executable, "-c", SPOIL_EACH]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    passed = json.loads(ran.stdout)
    assert passed == []


# --- blocks that no other test takes


def test_the_targets_for_developers() -> None:
    (block,) = blocks("CONTRIBUTING.md", "bash")
    shown = [line.partition("#")[0].split() for line in block.splitlines()]
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [words[0] for words in shown] == ["make"] * len(shown)
    assert {words[1] for words in shown} <= targets


def test_the_commands_of_the_bench() -> None:
    (block,) = blocks("docs/performance.md", "bash")
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        told = subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert told.returncode == 0, told.stderr
        runs = re.findall(r"-m (tests\.bench\.peers) (.*)", told.stdout.replace("\\\n", ""))
        assert len(runs) == 1, told.stdout
        given = runs[0][1].partition("--json")[0].split()
        chosen = dict(word.split("=", 1) for word in words[2:])
        expected = chosen.get("ONLY", "").split() + (["--compare", chosen["COMPARE"]] if "COMPARE" in chosen else [])
        assert given == expected
    page = (ROOT / "docs" / "performance.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == measures()


def measures() -> set[str]:
    files = (ROOT / "tests" / "bench" / "peers").glob("[a-z]*.py")
    return {file.stem for file in files if "\nMEASURE = " in file.read_text()}


def test_the_settings_of_the_amqp_door(tmp_path: Path) -> None:
    from spark_streams.cli.log.config_file import read_configuration

    (block,) = blocks("docs/amqp-events-door.md", "toml")
    (tmp_path / "log.toml").write_text(block)
    amqp = read_configuration(tmp_path / "log.toml").doors["amqp"]
    assert amqp.users == {"writer": "secret", "reader": "another secret"}
    assert amqp.permissions.keys() == {"reader"}
    assert amqp.permissions["reader"].allow("read", "orders-2") and not amqp.permissions["reader"].allow("write", "x")


@pytest.mark.parametrize("page", ["docs/security.md", "docs/databricks.md"])
def test_the_setting_that_takes_secrets_out(page: str) -> None:
    """It is the one that ``tests/e2e/test_secrets.py`` runs Spark with."""
    (setting,) = blocks(page, "text")
    assert setting.split() in [
        line.split() for line in (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    ]


def test_the_lines_of_a_batch() -> None:
    (block,) = blocks("docs/monitoring.md", "text")
    source, sink = (re.sub(r"^query 'orders': [a-z-]+ stream '\w+'", "…", line) for line in block.splitlines())
    assert source[0] == sink[0] == "…"
    assert missing([re.sub(r"'orders'|\{.*\}|[0-9.]+|, lag ", "…", source)], said()) == []
    assert missing([re.sub(r"[0-9.]+|, by |tasks", "…", sink)], said()) == []


def test_what_the_drawings_name_is_there() -> None:
    rooms, positions, doors = blocks("docs/how-it-works.md", "text")
    package = ROOT / "spark_streams"
    folders = {"spark_streams", "sources", "sinks", *(file.parent.name for file in package.rglob("*/*.py"))}
    named = set(re.findall(r"\b(\w+)/", rooms))
    assert named <= folders
    assert folders - named == {"columns", "dialects", "amqp_sql", "peers"}, "rooms that the drawing leaves out"
    assert all((package / f"{name}.py").is_file() for name in rooms.splitlines()[-1].split("what")[0].split())
    shown = [json.loads(text) for text in re.findall(r'\{[^}]*\}|(?<= )"\d+"(?= )', positions)]
    assert shown == [{"at": "18"}, {"after": "18"}, "18"]
    assert re.findall(r"starts with (\d+)", positions) == ["18", "19"]
    assert {"orders", "partitions", "record batch"} <= set(re.findall(r"orders|partitions|record batch", doors))
