"""A real Kafka for the bench: one KRaft node on free loopback ports, in a folder that goes with it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.harness.jars import KAFKA, resolve

_START_S = 120
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Kafka:
    """A running Kafka: where it is, and its process."""

    def __init__(self, servers: str, process: subprocess.Popen[bytes]) -> None:
        self.servers = servers
        self.pid = process.pid


def classpath() -> str:
    return os.pathsep.join(str(jar) for jar in resolve(KAFKA))


@contextlib.contextmanager
def kafka(partitions: int) -> Iterator[Kafka]:
    """Run Kafka while the context is open; a topic that is written to first is made with so many partitions."""
    java = ["java", "-Xmx768m", "-XX:-UsePerfData", "-cp", classpath()]
    with tempfile.TemporaryDirectory(prefix="spark-streams-kafka-", ignore_cleanup_errors=True) as folder:
        port, controller = _free_ports(2)
        settings = Path(folder) / "server.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=folder, partitions=partitions))
        identity = "AAAAAAAAQACAAAAAAAAAAQ"  # any 16 bytes
        with (Path(folder) / "kafka.log").open("wb") as words:
            said = {"stdout": words, "stderr": subprocess.STDOUT}
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)], check=True, **said
            )
            process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], **said)
        try:
            _wait(port, process, Path(folder) / "kafka.log")
            yield Kafka(f"127.0.0.1:{port}", process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"Kafka did not start; it said:\n{log.read_text(errors='replace')[-2_000:]}")
