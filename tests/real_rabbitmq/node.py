"""A node of RabbitMQ as processes and files: its configuration, certificates and ports; its start and its end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from debian import CannotStart
from greeting import peer_version

PROGRAMS = "/usr/lib/rabbitmq/bin"
PLUGINS = ("rabbitmq_stream", "rabbitmq_auth_mechanism_ssl")
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30

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


CLUSTER = """\
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.target_cluster_size_hint = {count}
"""
KEPT = "broker.json"
"""The file in a node's folder that says what it is."""


@dataclass(frozen=True)
class Node:
    """A node of RabbitMQ, as ``start`` prints it and ``broker.json`` in its folder keeps it.

    Args:
        folder: its own.
        root: the file system that it runs in.
        cluster: the folders of all nodes, its own among them.
        environment: of its processes.
        pids: of the node, and of the mapper that tells its cluster where it is; none before it runs.
        version: of RabbitMQ.
    """

    url: str
    tls_url: str
    folder: str
    root: str
    cluster: tuple[str, ...]
    environment: dict[str, str]
    pids: tuple[int, ...] = ()
    version: str = ""

    @property
    def port(self) -> int:
        """Where it speaks the streams protocol."""
        return int(self.url.rpartition(":")[2])


def save(node: Node) -> None:
    """Keep what ``load`` returns."""
    (Path(node.folder) / KEPT).write_text(json.dumps(asdict(node)))


def load(folder: Path) -> Node:
    """Return the node that runs in ``folder``."""
    kept = json.loads((folder / KEPT).read_text())
    return Node(**{**kept, "pids": tuple(kept["pids"]), "cluster": tuple(kept["cluster"])})


def configure(root: Path, count: int) -> list[Node]:
    """Make the folders of a node, or of the nodes of a cluster, with what each is told."""
    mapper, *ports = free_ports(1 + 4 * count)
    names = [f"spark-streams-{secrets.token_hex(4)}@localhost" for _ in range(count)]
    folders = [Path(tempfile.mkdtemp(prefix="spark-streams-rabbitmq-", dir=root / "tmp")) for _ in names]
    cookie = secrets.token_hex(16)
    cluster = CLUSTER.format(count=count) if count > 1 else ""
    for number, name in enumerate(names if count > 1 else [], 1):
        cluster += f"cluster_formation.classic_config.nodes.{number} = {name}\n"
    nodes = []
    for name, folder in zip(names, folders, strict=True):
        stream, tls, amqp, distribution, *ports = ports
        inside = "/" / folder.relative_to(root)
        settings = CONFIGURATION.format(stream=stream, tls=tls, amqp=amqp, folder=inside)
        (folder / "rabbitmq.conf").write_text(settings + cluster)
        (folder / "enabled_plugins").write_text(f"[{','.join(PLUGINS)}].\n")
        (folder / "rabbitmq-env.conf").write_text("")
        (folder / ".erlang.cookie").write_text(cookie)
        (folder / ".erlang.cookie").chmod(0o400)
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(inside),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_CONF_ENV_FILE": f"{inside}/rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{inside}/data",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_PID_FILE": f"{inside}/pid",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            " -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # RabbitMQ's script becomes the Erlang process instead of waiting for it
        }
        if root != Path("/"):
            subprocess.run(["chroot", str(root), "chown", "-R", "rabbitmq:rabbitmq", str(inside)], check=True)
        make_certificates(root, inside / "tls", environment)
        url = f"rabbitmq-stream://guest:guest@127.0.0.1:{stream}"
        tls_url = f"rabbitmq-stream+tls://guest:guest@127.0.0.1:{tls}"
        nodes.append(Node(url, tls_url, str(folder), str(root), tuple(map(str, folders)), environment))
    return nodes


def start_mapper(node: Node) -> int:
    """Start what tells the nodes of a cluster where the others are; return its process id."""
    command = ["epmd", "-port", node.environment["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
    return spawn(Path(node.root), command, node.environment, Path(node.folder) / "epmd.out").pid


def start_nodes(nodes: list[Node], mapper: int) -> list[Node]:
    """Start nodes that do not run, and return what they are once each answers; end them when one does not."""
    with contextlib.ExitStack() as unless_all:
        running = []
        for node in nodes:
            command = [f"{PROGRAMS}/rabbitmq-server"]
            running.append(spawn(Path(node.root), command, node.environment, Path(node.folder) / "node.out"))
            unless_all.callback(end, running[-1].pid, signal.SIGKILL)
            save(replace(node, pids=(running[-1].pid, mapper)))
        started = []
        for node, process in zip(nodes, running, strict=True):
            try:
                version = wait_for_answer(node.port, process)
            except TimeoutError as error:
                raise CannotStart(f"RabbitMQ did not start ({error}), see {node.folder}") from None
            started.append(replace(node, version=version, pids=(process.pid, mapper)))
        for node in started:
            save(node)
        unless_all.pop_all()
    return started


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
