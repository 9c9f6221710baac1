"""The streams and the folder of the guides, and their programs as they stand."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.testing import LogStream, StreamFactory
from tests.docs.pages import blocks

INDEX = "docs/guides/README.md"


@dataclass
class Guides:
    """The guides' streams on the run's log, which have names of their own there, and a folder."""

    streams: dict[str, LogStream]
    folder: Path
    spark: Any

    def here(self, text: str) -> str:
        """Return a block or a command with the addresses, streams and folders of the test."""
        urls = self.streams["orders"].process.urls
        text = text.replace("amqp://guest:guest@localhost:5672", urls["amqp"].replace("//", "//guest:guest@"))
        rabbit = urls["rabbitmq-stream"].replace("//", "//guest:guest@")
        text = text.replace("rabbitmq-stream://guest:guest@localhost:5552", rabbit)
        text = re.sub(r'(?<=[( ]stream=")[\w-]+(?=")', lambda found: self.streams[found[0]].name, text)
        text = re.sub(r'(?<="stream": ")[\w-]+(?=")', lambda found: self.streams[found[0]].name, text)
        return re.sub(r'"(?=(checkpoints|tables)/)', f'"{self.folder}/', text)

    @classmethod
    def of(cls, spark: Any, log: StreamFactory, folder: Path) -> Guides:
        """Create the streams that the guides' first page serves, with the events that it writes."""
        serve, append = blocks(INDEX, "bash")
        assert serve.split()[:3] == ["spark-streams", "log", "serve"]
        named = re.findall(r"--stream ([\w-]+):?(\d*)", serve)
        found = cls({name: log.create(name, int(partitions or 1)) for name, partitions in named}, folder, spark)
        for line in append.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            url, name = words[2:4]
            assert [program, *words[:2]] == ["spark-streams", "log", "append"]
            words[2:4] = [found.here(url), found.streams[name].name]
            done = CliRunner().invoke(main, words, catch_exceptions=False)
            assert done.exit_code == 0, done.output
        return found

    def run_program(self, program: str, names: dict[str, Any]) -> None:
        """Run a program, or a part of one, with the names that it finds and those that it leaves."""
        exec(compile(self.here(program), "guide", "exec"), names)

    def run(self, page: str, **names: Any) -> dict[str, Any]:
        """Run a page's programs one after the other; returns their names."""
        for program in blocks(f"docs/guides/{page}.md", "python"):
            self.run_program(program, names)
        return names

    def table(self, name: str, *columns: str) -> list[Any]:
        """Return the rows of a table of files, in order, with some of its columns."""
        frame = self.spark.read.parquet(str(self.folder / "tables" / name)).selectExpr(*columns or ("*",))
        return sorted((tuple(row) for row in frame.collect()), key=str)
