"""A measure: what it does with a format in one round, and how rounds of all formats alternate."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.harness import cpu
from tests.bench.harness.figures import Figures, table
from tests.bench.harness.formats import FORMATS, Format
from tests.bench.harness.peers import Peers
from tests.bench.harness.targets import Target, lines

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "bench-peers"


class Run:
    """What a measure has at hand: peers, Spark, options, and a folder for checkpoints."""

    def __init__(self, options: argparse.Namespace, peers: Peers, jars: Sequence[Path], folder: str) -> None:
        self.options, self.peers, self.jars = options, peers, jars
        self.settings: dict[str, str] = dict(options.conf)
        self._folder = folder
        self._spark: Any = None
        self.streams: dict[tuple[str, str], str] = {}
        """Streams that a measure keeps between rounds."""

    @property
    def spark(self) -> Any:
        """The one Spark of this run, started when it is first asked for."""
        if self._spark is None:
            from tests.bench.harness.session import session

            self._spark = session(self.jars, self.settings)
        return self._spark

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def restart(self) -> None:
        """Start Spark anew in the same JVM, which stays warm, and without any of the Python processes it had."""
        self.close()
        while cpu.below_spark():
            time.sleep(0.05)
        for server in cpu.servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)
        _ = self.spark

    def folder(self) -> str:
        """Return a new folder, for a checkpoint or a spool."""
        return tempfile.mkdtemp(dir=self._folder)

    @contextlib.contextmanager
    def cpu(self, form: Format) -> Iterator[dict[str, float]]:
        """Fill a dict, when the context ends, with the CPU seconds of JVM, Python, and the format's server."""
        pids = self.peers.pids.get(form.server, [])
        seen: dict[str, float] = {}
        before = cpu.of_peer(pids)
        with cpu.SparkWatch() as watch:
            yield seen
        seen.update(watch.used, server=cpu.of_peer(pids) - before)


@dataclass(frozen=True)
class Measure:
    """One measure of the bench."""

    name: str
    formats: tuple[str, ...]
    run: Callable[[Run, Format], dict[str, float]]
    """What one round of a format saw, by name with unit."""
    prepare: Callable[[Run, Format], None] = field(default=lambda run, form: None)
    """Before all rounds: fills what is read, and lets everything run once."""
    streaming: bool = False
    """Whether formats are streaming sources here."""
    targets: tuple[Target, ...] = ()
    """What is printed under its table; of other measures too, where they ran before it."""

    def among(self, wanted: Sequence[str]) -> list[str]:
        """Return those of the wanted formats that it measures on this Spark."""
        version = release(spark_version())
        able = [n for n in self.formats if not self.streaming or release(FORMATS[n].streams_since) <= version]
        return [name for name in able if name in wanted]


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all measures have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--formats", type=words, help="some of: " + ", ".join(FORMATS))
    options.add_argument("--rows", type=int, default=2_000_000, help="of what is read or written in a round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=8.0, help="of events in a round of the latency")
    options.add_argument("--partitions", type=numbers, default=[100, 1_000], help="sizes of streams of many")
    options.add_argument("--conf", type=setting, action="append", default=[], metavar="KEY=VALUE", help="for Spark")
    options.add_argument("--json", type=Path, default=RESULTS, help="folder of the results, a file a measure")
    return options


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return name, value


def main(measure: Measure) -> None:
    """Run one measure by itself."""
    run_all([measure], parser(sys.modules["__main__"].__doc__ or measure.name).parse_args())


def run_all(measures: Sequence[Measure], options: argparse.Namespace) -> None:
    """Run measures, each with all its formats in alternation and one Spark; write and print what was seen."""
    from tests.bench.harness import jars

    wanted = options.formats or list(dict.fromkeys(name for measure in measures for name in measure.formats))
    paths: list[Path] = []
    if "kafka" in wanted:
        paths += jars.kafka_connector(spark_version())
    if "rabbitmq-jvm" in wanted:
        connector = jars.rabbitmq_connector() if spark_version().startswith("4.1.") else None
        paths += [connector] if connector else []
        wanted = [name for name in wanted if connector or name != "rabbitmq-jvm"]
    needed = {FORMATS[name].server for measure in measures for name in measure.among(wanted)} - {""}
    options.json.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        peers = stack.enter_context(Peers(needed))
        folder = tempfile.mkdtemp(prefix="spark-streams-bench-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        run = Run(options, peers, paths, folder)
        stack.callback(run.close)
        seen = Figures()
        wanted = [name for name in wanted if FORMATS[name].server in peers.pids or not FORMATS[name].server]
        for measure in measures:
            names = measure.among(wanted)
            figures = alternate(run, measure, [FORMATS[name] for name in names])
            (options.json / f"{measure.name.replace(' ', '-')}.json").write_text(figures.to_json())
            seen.take(figures)
            print(table(figures, names), lines(measure.targets, seen), "", sep="\n", flush=True)


def alternate(run: Run, measure: Measure, formats: list[Format]) -> Figures:
    """Run the rounds of a measure, formats reversed in every other one. A format that fails is left out."""
    figures = Figures(about=about(run.options))
    for form in list(formats):
        with leaving_out(form, formats):
            measure.prepare(run, form)
    for number in range(run.options.rounds):
        for form in list(reversed(formats) if number % 2 else formats):
            with leaving_out(form, formats):
                seen = measure.run(run, form)
                figures.add(measure.name, form.name, seen)
                said = ", ".join(f"{name} {value:.3g}" for name, value in seen.items())
                print(f"{measure.name} {number + 1}: {form.name}: {said}", file=sys.stderr, flush=True)
    return figures


@contextlib.contextmanager
def leaving_out(form: Format, formats: list[Format]) -> Iterator[None]:
    try:
        yield
    except Exception:
        traceback.print_exc()
        print(f"bench: {form.name} failed and is left out", file=sys.stderr, flush=True)
        formats.remove(form)


def spark_version() -> str:
    import pyspark

    return str(pyspark.__version__)


def release(version: str) -> tuple[int, ...]:
    """Return major and minor of a version, to compare."""
    return tuple(int(part) for part in version.split(".")[:2])


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a run was: when, of what, on what kind of machine, with which settings."""
    revision = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "revision": revision,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "spark": spark_version(),
        "rows": options.rows,
        "rounds": options.rounds,
        "conf": dict(options.conf),
    }
