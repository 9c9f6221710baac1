"""A real RabbitMQ with its stream plugin for the tests: no containers, nothing of it outside a temporary folder.

    python tests/real_rabbitmq/broker.py start [--major 4|3] [--root FOLDER]    prints one JSON line: url, folder, …
    python tests/real_rabbitmq/broker.py ctl FOLDER [rabbitmq-streams] ARGUMENT…    rabbitmqctl on that folder's broker
    python tests/real_rabbitmq/broker.py restart FOLDER                 after kill -9, on the same ports and data
    python tests/real_rabbitmq/broker.py stop FOLDER
    python tests/real_rabbitmq/broker.py run [--major 4|3] -- COMMAND…          COMMAND beside a broker

``run`` tells COMMAND about the broker in RABBITMQ_STREAM_URL and RABBITMQ_STREAM_FOLDER. TLS with certificates of an
authority that is made at the start is on another port (``tls_url``): ca.pem, client.pem and client.key for user guest
(SASL EXTERNAL) lie in FOLDER/tls.

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from debian import SUITES, CannotStart, root_file_system
from greeting import make_first_stream
from node import (
    CONFIGURATION,
    PLUGINS,
    PROGRAMS,
    end,
    free_ports,
    inside_of,
    make_certificates,
    runs,
    spawn,
    start_node,
)

SETTLED_S = 4
ATTEMPTS = 3
"""Another process may take a port between its choice and the broker's start."""


class PortTaken(CannotStart):
    """A port that was free when it was chosen is not any more: worth another attempt."""


@dataclass(frozen=True)
class Broker:
    """A running broker, as ``start`` prints it and ``broker.json`` in its folder keeps it."""

    url: str
    tls_url: str
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
    sweep(root)
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(PortTaken):
            return start_once(root)
    return start_once(root)


def sweep(root: Path) -> None:
    """Remove the folders of brokers that are not running any more."""
    for kept in (root / "tmp").glob("spark-streams-rabbitmq-*/broker.json"):
        with contextlib.suppress(OSError, ValueError):
            if not any(runs(pid) for pid in json.loads(kept.read_text())["pids"]):
                shutil.rmtree(kept.parent)


def start_once(root: Path) -> Broker:
    """Do what ``start`` does, once, on ports that are free now."""
    folder = Path(tempfile.mkdtemp(prefix="spark-streams-rabbitmq-", dir=root / "tmp"))
    stream, tls, amqp, distribution, epmd = free_ports(5)
    inside = "/" / folder.relative_to(root)
    (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(stream=stream, tls=tls, amqp=amqp, folder=inside))
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
    make_certificates(root, inside / "tls", environment)
    mapper = spawn(root, ["epmd", "-port", str(epmd), "-address", "127.0.0.1"], environment, folder / "epmd.out")
    try:
        node, version = start_node(root, environment, stream, folder)
        make_first_stream(stream)
    except BaseException as error:
        end(mapper.pid, signal.SIGKILL)
        if "eaddrinuse" in (folder / "node.out").read_text(errors="replace"):
            shutil.rmtree(folder)
            raise PortTaken("another process took a port that was free") from error
        raise
    url = f"rabbitmq-stream://guest:guest@127.0.0.1:{stream}"
    tls_url = f"rabbitmq-stream+tls://guest:guest@127.0.0.1:{tls}"
    broker = Broker(url, tls_url, version, str(folder), str(root), (node.pid, mapper.pid), environment)
    save(broker)
    return broker


def save(broker: Broker) -> None:
    """Keep what ``load`` returns."""
    (Path(broker.folder) / "broker.json").write_text(json.dumps(asdict(broker)))


def load(folder: Path) -> Broker:
    """Return the broker that runs in ``folder``."""
    kept = json.loads((folder / "broker.json").read_text())
    return Broker(**{**kept, "pids": tuple(kept["pids"])})


def stop(broker: Broker) -> None:
    """End the broker's processes, politely first, and remove its folder."""
    for pid in broker.pids:
        end(pid, signal.SIGTERM)
    shutil.rmtree(broker.folder, ignore_errors=True)


def restart(broker: Broker) -> Broker:
    """Kill the broker's node as a crash would, start it again on the same ports and data, and return what it is now.

    Streams may be unavailable (0x06) for a moment after it. A node that is killed within about a second of its first
    stream forgets its streams, of its own fault; ``start`` made a first one, and time passes here before the kill.
    """
    node, mapper = broker.pids
    age_s = time.time() - (Path(broker.folder) / "broker.json").stat().st_mtime
    time.sleep(max(0.0, SETTLED_S - age_s))
    end(node, signal.SIGKILL)
    port = int(broker.url.rsplit(":", 1)[1])
    again, version = start_node(Path(broker.root), broker.environment, port, Path(broker.folder))
    restarted = replace(broker, version=version, pids=(again.pid, mapper))
    save(restarted)
    return restarted


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
    environment = dict(os.environ)
    with contextlib.ExitStack() as stack:
        if "RABBITMQ_STREAM_URL" not in environment:
            try:
                broker = start(find_root(arguments))
                stack.callback(stopper(broker))
                environment |= {"RABBITMQ_STREAM_URL": broker.url, "RABBITMQ_STREAM_FOLDER": broker.folder}
                print(f"spark-streams: the tests have a RabbitMQ {broker.version}", file=sys.stderr, flush=True)
            except (CannotStart, OSError) as error:
                print(f"spark-streams: no tests on a real RabbitMQ: {error}", file=sys.stderr, flush=True)
        return subprocess.run(arguments.command, env=environment, check=False).returncode


def stopper(broker: Broker) -> Callable[[], object]:
    """Return what stops the broker, which a process of its own also does when this one ends in any way."""
    end_here, end_there = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.setsid()  # Ctrl-C is for the others
        os.close(end_there)
        os.read(end_here, 1)  # returns when nobody holds the other end any more
        stop(load(Path(broker.folder)))  # read now: a test may have restarted it
        os._exit(0)
    os.close(end_here)

    def stop_now() -> None:
        os.close(end_there)
        os.waitpid(watcher, 0)

    return stop_now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("start", "run"):
        action = actions.add_parser(name)
        action.add_argument("--major", choices=SUITES, default="4")
        action.add_argument("--root", help="a file system that has rabbitmq-server, instead of the cache's")
        if name == "run":
            action.add_argument("command", nargs="+")
    for name in ("stop", "restart"):
        actions.add_parser(name).add_argument("folder", type=Path)
    action = actions.add_parser("ctl")
    action.add_argument("folder", type=Path)
    action.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"  # of chroot and debootstrap
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `run` stops its broker
    try:
        if arguments.action == "run":
            return run(arguments)
        if arguments.action == "ctl":
            return control(load(arguments.folder), *arguments.arguments)
        if arguments.action == "stop":
            stop(load(arguments.folder))
        elif arguments.action == "restart":
            print(json.dumps(asdict(restart(load(arguments.folder)))), flush=True)
        else:
            print(json.dumps(asdict(start(find_root(arguments)))), flush=True)
    except (CannotStart, OSError) as error:
        print(f"spark-streams: no RabbitMQ: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
