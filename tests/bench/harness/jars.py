"""The peers' jars: Kafka and Spark's Kafka connector out of Maven's central repository, the JVM connector for RabbitMQ.

They are kept in ``~/.cache/spark-streams/bench``. Nobody publishes the connector: it is built from its source, which
``RABBITMQ_CONNECTOR`` may name, a clone's folder or a url, and its figures are left out where that cannot be done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE = Path.home() / ".cache" / "spark-streams" / "bench"
KAFKA = ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.kafka:kafka-tools:4.1.0")
CONNECTOR = "https://github.com/lukaszsamson/spark-rabbitmq-streams-connector"
CONNECTOR_COMMIT = "fde1554be18047197e5c3636f38b2adc08889dad"
"""The one that was measured; it is for Spark 4.1."""
_IN_SPARK = ("hadoop-client", "scala-library", "slf4j", "lz4-java", "snappy-java", "jsr305", "spark-tags")
_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>jars</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><scope>runtime</scope>"
    "</dependency>"
)


def resolve(artifacts: Sequence[str]) -> list[Path]:
    """Return the jars of artifacts, ``group:name:version``, and of all that they depend on."""
    folder = CACHE / "+".join(artifact.partition(":")[2].replace(":", "-") for artifact in artifacts)
    if not (folder / "jars").exists():
        folder.mkdir(parents=True, exist_ok=True)
        named = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        (folder / "pom.xml").write_text(_POM.format(named))
        _maven(folder, "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'new'}")
        (folder / "new").rename(folder / "jars")
    return sorted((folder / "jars").glob("*.jar"))


def kafka_connector(spark: str) -> list[Path]:
    """Return what Spark's Kafka connector needs beside what Spark has."""
    found = resolve([f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}"])
    return [jar for jar in found if not jar.name.startswith(_IN_SPARK)]


def rabbitmq_connector() -> Path | None:
    """Return the jar of the JVM connector, built where it is not there yet; None, and a line why, if it cannot be."""
    kept = CACHE / f"rabbitmq-connector-{CONNECTOR_COMMIT[:8]}.jar"
    if kept.exists():
        return kept
    clone = CACHE / "rabbitmq-connector"
    try:
        if not clone.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            _run(["git", "clone", "--quiet", os.environ.get("RABBITMQ_CONNECTOR", CONNECTOR), str(clone)])
        _run(["git", "-C", str(clone), "checkout", "--quiet", CONNECTOR_COMMIT])
        _maven(clone, "package", "-pl", "spark41", "-am", "-DskipTests")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench: without the JVM connector for RabbitMQ, which cannot be built here: {error}", file=sys.stderr)
        return None
    built = clone / "spark41" / "target"
    (jar,) = (
        file
        for file in built.glob("*spark41-*.jar")
        if not file.stem.startswith("original") and not file.stem.endswith("unshaded")
    )
    jar.rename(kept)
    return kept


def _maven(folder: Path, *words: str) -> None:
    _run(["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *words])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=1_800)
