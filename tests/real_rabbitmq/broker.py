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
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from debian import SUITES, CannotStart, root_file_system
from greeting import make_first_stream, peer_version

PROGRAMS = "/usr/lib/rabbitmq/bin"
PLUGINS = ("rabbitmq_stream", "rabbitmq_auth_mechanism_ssl")
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
SETTLED_S = 4
ATTEMPTS = 3
"""Another process may take a port between its choice and the broker's start."""


CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
stream.listeners.tcp.1 = 127.0.0.1:{stream}
stream.listeners.ssl.1 = 127.0.0.1:{tls}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream}
stream.advertised_tls_host = 127.0.0.1
stream.advertised_tls_port = {tls}
ssl_options.cacertfile = {folder}/tls/ca.pem
ssl_options.certfile = {folder}/tls/server.pem
ssl_options.keyfile = {folder}/tls/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
cluster_name = spark-streams
vm_memory_high_watermark.absolute = 1GiB
vm_memory_calculation_strategy = allocated
disk_free_limit.absolute = 50MB
log.file.level = info
"""


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


def start_node(root: Path, environment: dict[str, str], port: int, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the Erlang node and return it, and its version, once it answers; end it when it does not."""
    node = spawn(root, [f"{PROGRAMS}/rabbitmq-server"], environment, folder / "node.out")
    try:
        return node, wait_for_answer(port, node)
    except BaseException as error:
        end(node.pid, signal.SIGKILL)
        if isinstance(error, TimeoutError):
            raise CannotStart(f"RabbitMQ did not start ({error}), see {folder}") from None
        raise


def make_certificates(root: Path, folder: Path, environment: dict[str, str]) -> None:
    """Make an authority, and what it signs for the broker and for a client whose user is guest."""
    script = f"""
        set -e; mkdir {folder}; cd {folder}
        new="openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
        $new -subj /CN=spark-streams-tests -keyout ca.key -out ca.pem
        signed="$new -CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE"
        $signed -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout server.key -out server.pem
        $signed -subj /CN=guest -keyout client.key -out client.pem
    """
    command = inside_of(root, ["sh", "-c", script])
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise CannotStart(f"openssl made no certificates: {made.stderr.strip().splitlines()[-1:]}")


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
    """Return ``count`` loopback ports that nobody listens on now.

    Where there are such, the system gives them to nobody who asks for any: they stay free while the broker is down.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, first_given if first_given > 20_000 else 60_000)
    found: list[int] = []
    for port in random.SystemRandom().sample(ports, len(ports)):
        with contextlib.suppress(OSError), socket.socket() as each:
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise CannotStart(f"{count} free ports were expected, there are {len(found)}")


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


def end(pid: int, how: signal.Signals) -> None:
    """Signal the process ``pid`` and wait until it and the session it leads are gone, by SIGKILL if it takes long."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
        while runs(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Tell whether there is such a process that has not ended; one that its parent has not waited for yet has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


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
