"""A node of RabbitMQ as processes and files: its configuration, certificates and ports; its start and its end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
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
