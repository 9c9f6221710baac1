"""What the pages name is there: files, tests, classes, messages, options, and the bundle for Databricks."""

from __future__ import annotations

import functools
import re
import shlex

import click
import pytest
import yaml

from docs.option_tables import PAGES
from spark_streams.cli import main
from spark_streams.wire.rabbitmq.frames import ResponseCode, code_name
from tests.docs.pages import ERRORS, ROOT, code_spans, tables
from tests.docs.syntax import parsed, pieces_of, sources, texts_in

DOCS = ROOT / "docs"

MESSAGES = (
    *("Before anything is read", "Values of options", "The address and the credentials", "Columns", "Connecting"),
    *("While it reads", "While it writes", "Serving the log", "On the command line"),
)
KAFKA = {
    *("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets"),
    *("startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "kafka.group.id"),
    *("includeHeaders", "topic"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
}
"""What the guide of Spark 4's Kafka connector lists, in its tables for reading and for writing."""


@functools.cache
def said() -> str:
    """All that the code can say, with the codes of RabbitMQ and of HTTP as it writes them."""
    own = [piece for source in sources().values() for text in texts_in(parsed(source)) for piece in pieces_of(text)]
    return "\n".join([*own, *map(code_name, ResponseCode), *(f"status {n}" for n in (401, 403, 413, 507))])


def missing(messages: list[str], texts: str) -> list[str]:
    """Pieces of messages that are in no text."""
    pieces = [piece.strip(" '?") for message in messages for piece in message.split("…")]
    return [piece for piece in pieces if piece not in texts]


@pytest.mark.parametrize("heading", MESSAGES)
def test_each_message_is_in_the_code(heading: str) -> None:
    (rows,) = tables("docs/troubleshooting.md", heading)
    messages = [span for row in rows for span in code_spans(row[0])]
    assert len(messages) >= 4
    assert missing(messages, said()) == []


def test_a_message_that_is_gone_is_noticed() -> None:
    texts = said()
    assert missing(["has no such option; did you think of '…'?"], texts) == ["has no such option; did you think of"]
    assert "Everything that a reader needs to know" not in texts, "docstrings are no messages"


def test_each_error_is_explained() -> None:
    (rows,) = tables("docs/troubleshooting.md", "Which error")
    groups = {"SparkStreamsError", "ProtocolError", "TransportError", "PeerError", "LogError"}
    assert {span for row in rows for span in code_spans(row[0])} == ERRORS - groups


def test_the_guarantees_name_code_and_tests_that_are_there() -> None:
    text = (DOCS / "delivery.md").read_text()
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|") and ".py" in line]
    assert len(rows) >= 20
    for _, code, shown in rows:
        for file in code_spans(code):
            assert (ROOT / file).is_file(), file
        names = code_spans(shown)
        assert names
        for name in names:
            file, _, test = name.partition("::")
            tests = re.findall(r"^ *def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE)
            assert tests and (not test or test in tests), name


@pytest.mark.parametrize("page", ["extending.md", "how-it-works.md", "databricks.md", "from-kafka.md", "delivery.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    named = {span for span in code_spans(prose) if re.match(r"(spark_streams|sources|sinks|tests|docs|conf)/", span)}
    for name in named:
        there = ROOT / re.sub(r"<\w+>.*", "", name.partition("::")[0])
        assert there.exists(), name


def test_classes_and_functions_that_the_extending_page_names_are_there() -> None:
    code = "\n".join((*sources().values(), (ROOT / "tests" / "spark" / "fake_client.py").read_text()))
    prose = re.sub(r"^```.*?^```$", "", (DOCS / "extending.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    foreign = {"DataSource", "DefaultSource"}
    classes = {span for span in code_spans(prose) if re.fullmatch(r"([A-Z][a-z]+)+", span)} - foreign
    assert {"LogClient", "RangeRead", "Outlet", "Format", "LogServer"} <= classes
    assert {name for name in classes if not re.search(rf"^class {name}\b", code, re.MULTILINE)} == set()
    (seam,) = tables("docs/extending.md", "The seam")
    methods = {span for row in seam for span in code_spans(row[0])}
    protocol = (ROOT / "spark_streams/client/log_client.py").read_text().partition("class LogClient")[2]
    public = re.findall(r"    def ([a-z]\w+)\(", protocol.partition("\nclass ")[0])
    assert methods == set(public)


def test_every_option_of_the_kafka_source_has_its_row() -> None:
    (rows,) = tables("docs/from-kafka.md", "Options")
    listed = {span for row in rows for span in code_spans(row[0])}
    of_clients = {name for name in listed if re.match(r"kafka\.(sasl|ssl|security)\.", name)}
    assert listed - of_clients == KAFKA
    known = {name for page in PAGES for name in page.names} | {"tls.caFile"}
    for row in rows:
        here = set(code_spans(row[1])) - {"amqp-events", "rabbitmq-stream", "feedapi"}
        assert here <= known, row
        if row[1].startswith("the same"):
            assert set(code_spans(row[0])) <= known, row


def test_the_log_means_one_thing() -> None:
    other = re.compile(
        r"\b(driver|executor|worker|server|peer|broker|program|Spark|Python)'?s'? (own )?logs?\b(?! lines?)", re.I
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    found = {page.name: other.search(re.sub(r"`[^`]*`", "", page.read_text())) for page in pages}
    assert {page: match[0] for page, match in found.items() if match} == {}
    assert "What a program says of itself are *log lines*" in (ROOT / "docs" / "glossary.md").read_text()
    assert other.search("look at the driver's log") and not other.search("the driver's log lines")


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    for page in sorted(DOCS.glob("*.md")):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_the_bundle_has_fields_that_there_are() -> None:
    """Those that it uses, as the JSON schema of `databricks bundle` names them and their types (2026)."""
    libraries = [{"whl": str}, {"pypi": {"package": str}}]
    notebook = {"notebook_path": str}
    task = {"task_key": str, "job_cluster_key": str, "notebook_task": notebook, "libraries": libraries}
    cluster = {"spark_version": str, "node_type_id": str, "num_workers": int, "data_security_mode": str}
    job = {"name": str, "tasks": [task], "job_clusters": [{"job_cluster_key": str, "new_cluster": cluster}]}
    shape = {
        "bundle": {"name": str},
        "sync": {"paths": [str], "exclude": [str, str, str]},
        "variables": {"runtime": {"description": str}, "node_type": {"description": str}},
        "artifacts": {"wheel": {"type": str, "path": str, "build": str}},
        "resources": {"jobs": {"tour": job}},
        "targets": {"dev": {"mode": str, "default": bool}},
    }

    def shape_of(node: object) -> object:
        if isinstance(node, dict):
            return {name: shape_of(value) for name, value in node.items()}
        return [shape_of(value) for value in node] if isinstance(node, list) else type(node)

    bundle = yaml.safe_load((ROOT / "conf" / "databricks.yml").read_text())
    assert shape_of(bundle) == shape
    assert bundle["artifacts"]["wheel"]["type"] == "whl"
    assert bundle["targets"]["dev"]["mode"] in ("development", "production")
    (cluster_of_job,) = bundle["resources"]["jobs"]["tour"]["job_clusters"]
    assert cluster_of_job["new_cluster"]["data_security_mode"] == "SINGLE_USER"


def test_the_bundle_names_what_is_there() -> None:
    file = ROOT / "conf" / "databricks.yml"
    bundle = yaml.safe_load(file.read_text())
    assert bundle["bundle"]["name"] == "spark-streams"
    (wheel,) = bundle["artifacts"].values()
    assert (file.parent / wheel["path"] / "pyproject.toml").resolve() == ROOT / "pyproject.toml"
    built = "pip wheel --no-deps --wheel-dir dist"
    assert wheel["build"] == f"python3 -m {built} .", "as docs/databricks.md says"
    assert f"`{built} .`" in (ROOT / "docs" / "databricks.md").read_text()
    assert [(file.parent / path).resolve() for path in bundle["sync"]["paths"]] == [ROOT]
    (job,) = bundle["resources"]["jobs"].values()
    clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
    for task in job["tasks"]:
        assert (file.parent / task["notebook_task"]["notebook_path"]).resolve().is_file()
        assert task["job_cluster_key"] in clusters
        assert {"whl": "../dist/*.whl"} in task["libraries"]
    used = set(re.findall(r"\$\{var\.(\w+)\}", file.read_text()))
    assert used == bundle["variables"].keys()
    assert set(re.findall(r"--var (\w+)=", file.read_text())) == used


def test_the_secrets_are_those_of_the_notebooks() -> None:
    (rows,) = tables("docs/databricks.md", "Secrets")
    notebooks = "".join(file.read_text() for file in (ROOT / "notebooks").glob("*.ipynb"))
    assert {span for row in rows for span in code_spans(row[0])} == set(
        re.findall(r'secret\(\\"([\w-]+)\\"', notebooks)
    )
    assert "/Volumes/main/default/spark_streams" in notebooks


def commands() -> list[tuple[str, str]]:
    """Page and command, for each that a page shows in a line of its own or within a sentence."""
    found = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text().replace("\\\n", " ")
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        lines = [re.sub(r"\s+", " ", span) for span in code_spans(prose)] + text.splitlines()
        found += [(page.name, line) for line in lines if re.match(r"(spark-streams|make) [a-z-]", line)]
    return found


def test_the_commands_and_their_options_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = commands()
    assert len(shown) > 25
    for page, line in shown:
        first, *words = shlex.split(re.sub(r"[…\[\]]", " ", line.partition(" #")[0].replace("'", '"')))
        if first == "make":
            assert words[0] in targets, f"{page}: {line}"
            continue
        command: click.Command = main
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, f"{page}: {line}"
            command = found
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        used = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
        assert used <= known, f"{page}: {line}: {used - known}"
