"""The peers of a run: a real Kafka, a real RabbitMQ, and the reference log, each only when a format needs it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.bench.harness.kafka import kafka

PARTITIONS = 2
"""Of each stream and topic: as many as Spark's cores here."""
MOST_PARTITIONS = 15_000
"""Of all streams of the log together."""
ROOT = Path(__file__).resolve().parents[3]
BROKER = ROOT / "tests" / "real_rabbitmq" / "broker.py"


class Peers:
    """Servers while the context is open.

    Args:
        needed: any of ``kafka``, ``rabbitmq``, ``log``.
    """

    def __init__(self, needed: set[str]) -> None:
        self.needed = needed
        self.urls: dict[str, str] = {}
        """Server to its address; the log has one for each door. RabbitMQ has none where it cannot be started."""
        self.pids: dict[str, list[int]] = {}
        self.rows: dict[str, int] = {}
        """Stream to how many rows it was filled with."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Peers:
        with contextlib.ExitStack() as stack:
            if "kafka" in self.needed:
                broker = stack.enter_context(kafka(PARTITIONS))
                self.urls["kafka"], self.pids["kafka"] = broker.servers, [broker.pid]
            if "rabbitmq" in self.needed:
                self._start_rabbitmq(stack)
            if "log" in self.needed:
                from spark_streams.testing import LogProcess

                settings = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log.toml"
                settings.write_text(f"[log]\nmax_partitions = {MOST_PARTITIONS}\n")
                log = stack.enter_context(LogProcess(arguments=["--config", str(settings)]))
                assert log.pid is not None
                self.urls |= {
                    door: url if door == "event-hubs" else url.replace("//", "//guest:guest@")  # it has guest's key
                    for door, url in log.urls.items()
                }
                self.pids["log"] = [log.pid]
            self._stack = stack.pop_all()
        return self

    def _start_rabbitmq(self, stack: contextlib.ExitStack) -> None:
        folder, url = os.environ.get("RABBITMQ_STREAM_FOLDER"), os.environ.get("RABBITMQ_STREAM_URL")
        if not (folder and url):
            started = subprocess.run([sys.executable, str(BROKER), "start"], stdout=subprocess.PIPE, check=False)
            if started.returncode:
                print("bench: without RabbitMQ, which cannot be started here", file=sys.stderr, flush=True)
                return
            said = json.loads(started.stdout)
            folder, url = said["folder"], said["url"]
            stack.callback(subprocess.run, [sys.executable, str(BROKER), "stop", folder], check=True)
        self.urls["rabbitmq"] = url
        self.pids["rabbitmq"] = json.loads((Path(folder) / "broker.json").read_text())["pids"][:1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def create(self, server: str, partitions: int = PARTITIONS) -> str:
        """Create a stream of a new name and so many partitions, and return the name."""
        name = f"bench-{secrets.token_hex(4)}"
        if server == "kafka":
            subprocess.run(
                _tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.urls["kafka"], "--create",
                      "--topic", name, "--partitions", str(partitions)),
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        elif server in ("rabbitmq", "log"):
            create_super_stream(self.rabbitmq_url(server), name, partitions)
        return name

    def rabbitmq_url(self, server: str) -> str:
        """Where a server speaks RabbitMQ's protocol."""
        return self.urls["rabbitmq" if server == "rabbitmq" else "rabbitmq-stream"]

    def endpoint(self) -> tuple[str, str, str]:
        """RabbitMQ's ``host:port``, user and password."""
        url = urlsplit(self.urls["rabbitmq"])
        return f"{url.hostname}:{url.port}", url.username or "guest", url.password or "guest"


def _tool(main: str, *words: str) -> list[str]:
    from tests.bench.harness.kafka import classpath

    return ["java", "-Xmx128m", "-XX:-UsePerfData", "-cp", classpath(), main, *words]


def create_super_stream(url: str, name: str, partitions: int) -> None:
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
    from spark_streams.wire.rabbitmq.stream_commands import CreateSuperStream, CreateSuperStreamAnswer

    keys = [str(number) for number in range(partitions)]
    with open_connection(parse_url(url, schemes=RABBITMQ_SCHEMES), timeout_ms=1_800_000) as connection:
        request = CreateSuperStream(name, [f"{name}-{key}" for key in keys], keys)
        connection.request(request, CreateSuperStreamAnswer, "create")
