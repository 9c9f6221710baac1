"""A real RabbitMQ with its stream plugin for the tests: no containers, nothing of it outside a temporary folder.

    python tests/rabbitmq/broker.py start [--major 4|3] [--root FOLDER]    prints one JSON line: url, version, folder, …
    python tests/rabbitmq/broker.py ctl FOLDER [rabbitmq-streams] ARGUMENT…    rabbitmqctl on the broker of that folder
    python tests/rabbitmq/broker.py stop FOLDER
    python tests/rabbitmq/broker.py run [--major 4|3] -- COMMAND…          COMMAND with RABBITMQ_STREAM_URL set

RabbitMQ runs in a Debian that debian.py keeps in the cache folder, by ``chroot`` as user rabbitmq; or, with
``--root /``, the machine's own rabbitmq-server as the user who calls. Every broker has its own data, logs, node name,
cookie and EPMD, listens on free loopback ports only, and is stopped by its own process ids. ``run`` on a machine that
cannot start one says so in one line and runs the command without the variable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from debian import SUITES, CannotStart, root_file_system

PROGRAMS = "/usr/lib/rabbitmq/bin"
PLUGINS = ("rabbitmq_stream", "rabbitmq_auth_mechanism_ssl")
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
ATTEMPTS = 3
"""Another process may take a port between its choice and the broker's start."""


class PortTaken(CannotStart):
    """A port that was free when it was chosen is not any more: worth another attempt."""


@dataclass(frozen=True)
class Broker:
    """A running broker, as ``start`` prints it and ``broker.json`` in its folder keeps it."""

    url: str
    version: str
    folder: str
    root: str
    pids: tuple[int, ...]
    environment: dict[str, str]


def start(root: Path) -> Broker:
    """Start RabbitMQ out of the file system ``root`` and return it once it answers on its stream port.

    Raises:
        CannotStart: No rabbitmq-server in ``root``, or it ended or did not answer in time; its folder is left to read.
    """
    if not (root / PROGRAMS[1:] / "rabbitmq-server").exists():
        raise CannotStart(f"there is no rabbitmq-server in {root}")
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(PortTaken):
            return start_once(root)
    return start_once(root)


def start_once(root: Path) -> Broker:
    """Do what ``start`` does, once, on ports that are free now."""
    parent = root / "tmp"
    folder = Path(tempfile.mkdtemp(prefix="spark-streams-rabbitmq-", dir=parent))
    stream, amqp, distribution, epmd = free_ports(4)
    inside = "/" / folder.relative_to(root)
    (folder / "rabbitmq.conf").write_text(
        f"""\
listeners.tcp.1 = 127.0.0.1:{amqp}
stream.listeners.tcp.1 = 127.0.0.1:{stream}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream}
cluster_name = spark-streams
vm_memory_high_watermark.absolute = 1GiB
vm_memory_calculation_strategy = allocated
disk_free_limit.absolute = 50MB
log.file.level = info
"""
    )
    (folder / "enabled_plugins").write_text(f"[{','.join(PLUGINS)}].\n")
    (folder / "rabbitmq-env.conf").write_text("")
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(inside),
        "RABBITMQ_NODENAME": f"spark-streams-{secrets.token_hex(4)}@localhost",
        "RABBITMQ_CONF_ENV_FILE": f"{inside}/rabbitmq-env.conf",
        "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
        "RABBITMQ_MNESIA_BASE": f"{inside}/data",
        "RABBITMQ_LOG_BASE": f"{inside}/log",
        "RABBITMQ_PID_FILE": f"{inside}/pid",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
        " -kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RUNNING_UNDER_SYSTEMD": "true",  # RabbitMQ's script becomes the Erlang process instead of waiting for it
    }
    if root != Path("/"):
        subprocess.run(["chroot", str(root), "chown", "-R", "rabbitmq:rabbitmq", str(inside)], check=True)
    mapper = spawn(root, ["epmd", "-port", str(epmd), "-address", "127.0.0.1"], environment, folder / "epmd.out")
    node = spawn(root, [f"{PROGRAMS}/rabbitmq-server"], environment, folder / "node.out")
    try:
        version = wait_for_answer(stream, node)
    except BaseException as error:
        end(node.pid, signal.SIGKILL)
        end(mapper.pid, signal.SIGKILL)
        if "eaddrinuse" in (folder / "node.out").read_text(errors="replace"):
            shutil.rmtree(folder)
            raise PortTaken("another process took a port that was free") from None
        if isinstance(error, TimeoutError):
            raise CannotStart(f"RabbitMQ did not start ({error}), see {folder}") from None
        raise
    url = f"rabbitmq-stream://guest:guest@127.0.0.1:{stream}"
    broker = Broker(url, version, str(folder), str(root), (node.pid, mapper.pid), environment)
    (folder / "broker.json").write_text(json.dumps(asdict(broker)))
    return broker


def spawn(root: Path, command: list[str], environment: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    """Start a process of its own session, in ``root`` as user rabbitmq, or as it is when ``root`` is ``/``."""
    with output.open("wb") as file:
        return subprocess.Popen(
            inside_of(root, command),
            env=environment,
            cwd=environment["HOME"] if root == Path("/") else "/",
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def inside_of(root: Path, command: list[str]) -> list[str]:
    """Return the command that runs ``command`` in the file system ``root``."""
    if root == Path("/"):
        return command
    return ["chroot", "--userspec=rabbitmq:rabbitmq", str(root), *command]


def free_ports(count: int) -> list[int]:
    """Return ``count`` loopback ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for_answer(port: int, node: subprocess.Popen[bytes]) -> str:
    """Return the version that the broker's PeerProperties answer tells; TimeoutError when there will be none."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if node.poll() is not None:
            raise TimeoutError(f"it ended with status {node.returncode}")
        with contextlib.suppress(OSError, EOFError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
            return peer_version(peer)
        time.sleep(0.2)
    raise TimeoutError(f"no answer in {START_TIMEOUT_S} s")


def peer_version(peer: socket.socket) -> str:
    """Ask for the peer's properties (command 0x0011) and return the one called ``version``."""
    peer.sendall(struct.pack(">IHHII", 12, 0x0011, 1, 1, 0))
    with peer.makefile("rb") as answers:
        head = answers.read(4)
        body = answers.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""
    texts, at = [], 14  # key, version, correlation id, code, count of properties
    while at < len(body):
        (length,) = struct.unpack_from(">H", body, at)
        texts.append(body[at + 2 : at + 2 + length].decode())
        at += 2 + length
    properties = dict(zip(texts[::2], texts[1::2], strict=True))
    if "version" not in properties:
        raise EOFError("not a stream listener yet")
    return properties["version"]


def load(folder: Path) -> Broker:
    """Return the broker that runs in ``folder``."""
    kept = json.loads((folder / "broker.json").read_text())
    return Broker(**{**kept, "pids": tuple(kept["pids"])})


def stop(broker: Broker) -> None:
    """End the broker's processes, politely first, and remove its folder."""
    for pid in broker.pids:
        end(pid, signal.SIGTERM)
    shutil.rmtree(broker.folder, ignore_errors=True)


def end(pid: int, how: signal.Signals) -> None:
    """Signal the process ``pid`` and wait until it and the session it leads are gone, by SIGKILL if it takes long."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):  # it is another process's child after `start`
                os.waitpid(pid, os.WNOHANG)
            os.kill(pid, 0)
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def control(broker: Broker, *arguments: str) -> int:
    """Run rabbitmqctl, or the program ``rabbitmq-…`` that comes first, on the broker and return its status."""
    named = bool(arguments) and arguments[0].startswith("rabbitmq-")
    program, rest = (arguments[0], arguments[1:]) if named else ("rabbitmqctl", arguments)
    command = inside_of(Path(broker.root), [f"{PROGRAMS}/{program}", *rest])
    return subprocess.run(command, env=broker.environment, check=False).returncode


def find_root(arguments: argparse.Namespace) -> Path:
    """Return the file system to start from: the one asked for, the cache's, or the machine's own."""
    if arguments.root is not None:
        return Path(arguments.root).resolve()
    try:
        return root_file_system(arguments.major)
    except CannotStart:
        if (Path(PROGRAMS) / "rabbitmq-server").exists():
            return Path("/")
        raise


def run(arguments: argparse.Namespace) -> int:
    """Run a command beside a broker; without one, when none can be started here."""
    environment, broker = dict(os.environ), None
    if "RABBITMQ_STREAM_URL" not in environment:
        try:
            broker = start(find_root(arguments))
            environment["RABBITMQ_STREAM_URL"] = broker.url
            print(f"spark-streams: tests run against RabbitMQ {broker.version}", file=sys.stderr)
        except CannotStart as error:
            print(f"spark-streams: no tests on a real RabbitMQ: {error}", file=sys.stderr)
    try:
        return subprocess.run(arguments.command, env=environment, check=False).returncode
    finally:
        if broker is not None:
            stop(broker)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("start", "run"):
        action = actions.add_parser(name)
        action.add_argument("--major", choices=SUITES, default="4")
        action.add_argument("--root", help="a file system that has rabbitmq-server, instead of the cache's")
        if name == "run":
            action.add_argument("command", nargs="+")
    actions.add_parser("stop").add_argument("folder", type=Path)
    action = actions.add_parser("ctl")
    action.add_argument("folder", type=Path)
    action.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.action == "run":
        return run(arguments)
    if arguments.action == "ctl":
        return control(load(arguments.folder), *arguments.arguments)
    if arguments.action == "stop":
        stop(load(arguments.folder))
        return 0
    try:
        print(json.dumps(asdict(start(find_root(arguments)))), flush=True)
    except CannotStart as error:
        print(f"spark-streams: no RabbitMQ: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
