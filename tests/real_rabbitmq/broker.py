"""A real RabbitMQ with its stream plugin for the tests: no containers, nothing of it outside a temporary folder.

    python tests/real_rabbitmq/broker.py start [--major 4|3] [--root FOLDER] [--nodes N]    prints JSON: url, folder, …
    python tests/real_rabbitmq/broker.py ctl FOLDER [rabbitmq-streams] ARGUMENT…    rabbitmqctl on that folder's broker
    python tests/real_rabbitmq/broker.py restart FOLDER                 after kill -9, on the same ports and data
    python tests/real_rabbitmq/broker.py stop FOLDER
    python tests/real_rabbitmq/broker.py run [--major 4|3] [--nodes N] -- COMMAND…          COMMAND beside a broker

``--nodes`` makes a cluster of so many. Its first node is the one that is told and printed, and names the folders of
all (``cluster``); ``ctl`` and ``restart`` are for the node of FOLDER, ``stop`` ends the cluster of it.

``run`` tells COMMAND about the broker in RABBITMQ_STREAM_URL and RABBITMQ_STREAM_FOLDER. TLS with certificates of an
authority that is made at the start is on another port (``tls_url``): ca.pem, client.pem and client.key for user guest
(SASL EXTERNAL) lie in FOLDER/tls.

RabbitMQ runs in a Debian that debian.py keeps in the cache folder, by ``chroot`` as user rabbitmq; or, with ``--root
/``, the machine's own rabbitmq-server as the user who calls. Every node has its own data, logs and name, every cluster
its own cookie and EPMD; they listen on free loopback ports only, and are stopped by their own process ids. ``run`` on a
machine that cannot start one says so in one line and runs the command without the variable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from debian import SUITES, CannotStart, root_file_system
from greeting import make_first_stream
from node import KEPT, PROGRAMS, Node, configure, end, inside_of, load, runs, save, start_mapper, start_nodes

SETTLED_S = 4
ATTEMPTS = 3
"""Another process may take a port between its choice and the broker's start."""


class PortTaken(CannotStart):
    """A port that was free when it was chosen is not any more: worth another attempt."""


def start(root: Path, count: int = 1) -> list[Node]:
    """Start RabbitMQ out of the file system ``root`` and return its nodes once each answers on its stream port.

    Args:
        root: that has rabbitmq-server.
        count: of nodes; several are a cluster.

    Raises:
        CannotStart: No rabbitmq-server in ``root``, or it ended or did not answer in time; its folder is left to read.
    """
    if not (root / PROGRAMS[1:] / "rabbitmq-server").exists():
        raise CannotStart(f"there is no rabbitmq-server in {root}")
    sweep(root)
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(PortTaken):
            return start_once(root, count)
    return start_once(root, count)


def sweep(root: Path) -> None:
    """Remove the folders of brokers that are not running any more."""
    for kept in (root / "tmp").glob("spark-streams-rabbitmq-*/" + KEPT):
        with contextlib.suppress(OSError, ValueError):
            if not any(runs(pid) for pid in json.loads(kept.read_text())["pids"]):
                shutil.rmtree(kept.parent)


def start_once(root: Path, count: int) -> list[Node]:
    """Do what ``start`` does, once, on ports that are free now."""
    nodes = configure(root, count)
    mapper = start_mapper(nodes[0])
    started: list[Node] = []
    try:
        started = start_nodes(nodes, mapper)
        make_first_stream(started[0].port)
        save(started[0])  # again: `restart` counts from here
    except BaseException as error:
        for pid in (*(node.pids[0] for node in started), mapper):
            end(pid, signal.SIGKILL)
        said = [file.read_text(errors="replace") for node in nodes for file in Path(node.folder).glob("node.out")]
        if any("eaddrinuse" in text for text in said):
            for node in nodes:
                shutil.rmtree(node.folder)
            raise PortTaken("another process took a port that was free") from error
        raise
    return started


def stop(node: Node) -> None:
    """End the processes of the node and of its cluster, politely first, and remove their folders."""
    pids = [node.pids[1]]
    for folder in node.cluster:
        with contextlib.suppress(OSError, ValueError):
            pids.insert(0, load(Path(folder)).pids[0])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    for pid in pids:
        end(pid, signal.SIGTERM)
    for folder in node.cluster:
        shutil.rmtree(folder, ignore_errors=True)


def restart(node: Node) -> Node:
    """Kill the node as a crash would, start it again on the same ports and data, and return what it is now.

    Streams may be unavailable (0x06) for a moment after it. A node that is killed within about a second of its first
    stream forgets its streams, of its own fault; ``start`` made a first one, and time passes here before the kill.
    """
    process, mapper = node.pids
    age_s = time.time() - (Path(node.folder) / KEPT).stat().st_mtime
    time.sleep(max(0.0, SETTLED_S - age_s))
    end(process, signal.SIGKILL)
    return start_nodes([node], mapper)[0]


def control(node: Node, *arguments: str) -> int:
    """Run rabbitmqctl, or the program ``rabbitmq-…`` that comes first, on the node and return its status."""
    named = bool(arguments) and arguments[0].startswith("rabbitmq-")
    program, rest = (arguments[0], arguments[1:]) if named else ("rabbitmqctl", arguments)
    command = inside_of(Path(node.root), [f"{PROGRAMS}/{program}", *rest])
    return subprocess.run(command, env=node.environment, check=False).returncode


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
                node, *_ = start(find_root(arguments), arguments.nodes)
                stack.callback(stopper(node))
                environment |= {"RABBITMQ_STREAM_URL": node.url, "RABBITMQ_STREAM_FOLDER": node.folder}
                print(f"spark-streams: the tests have a RabbitMQ {node.version}", file=sys.stderr, flush=True)
            except (CannotStart, OSError) as error:
                print(f"spark-streams: no tests on a real RabbitMQ: {error}", file=sys.stderr, flush=True)
        return subprocess.run(arguments.command, env=environment, check=False).returncode


def stopper(node: Node) -> Callable[[], object]:
    """Return what stops the node and its cluster; a process of its own does so too when this one ends in any way."""
    end_here, end_there = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        try:
            os.setsid()  # Ctrl-C is for the others
            os.close(end_there)
            os.read(end_here, 1)  # returns when nobody holds the other end any more
            stop(node)
        finally:
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
        action.add_argument("--nodes", type=int, default=1, help="of a cluster; the first is printed, and names all")
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
            print(json.dumps(asdict(start(find_root(arguments), arguments.nodes)[0])), flush=True)
    except (CannotStart, OSError) as error:
        print(f"spark-streams: no RabbitMQ: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
