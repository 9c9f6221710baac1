"""One bad client beside good ones: how long those wait for an answer, and what the log's process takes of memory.

    python tests/bench/hostile.py [--only NAME] [--seconds N] [--tls] [--list]          also: make bench-hostile

For each attack of ``hostile_clients`` a log with all doors is started, by ``log serve`` with default settings, but
where a limit would end the attack before it does harm. At each door somebody writes a row and reads it back, every
``EVERY_MS``: first alone, then beside the attack. What counts is how long each of the two answers takes. The log, the
attack and each of the good clients are processes of their own. A good client that is disconnected, or is sent what it
should not be, is shown as such.

Who writes only after the last answer has come asks least when he waits longest. So an answer that took longer than
``EVERY_MS`` counts as all those that would have been asked for meanwhile (as HdrHistogram corrects it): p99 is what
somebody waits who comes at any time.

Memory is the peak of the log's process, from its start on (VmHWM, of Linux). Bounds are those of ADR 33.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.hostile_clients import amqp, event_hubs, feed, rabbitmq, tls, web  # noqa: E402, F401
from tests.bench.hostile_clients.registry import ATTACKS, Attack  # noqa: E402
from tests.certificate_authority import Authority  # noqa: E402
from tests.door_urls import plain_url  # noqa: E402

DOORS = ("amqp", "rabbitmq-stream", "feedapi", "event-hubs")
EVERY_MS = 25.0
"""Often enough for a 99th percentile, and seldom enough that the good ones leave the machine to log and attack."""
MOST_TIMES = 20.0
"""As long as without the attack, at most."""
MOST_MS = 100.0
"""And so long, at most: the 99th percentile."""
MOST_MB = 400.0
LARGE_BYTES = 64 << 10
"""The size of every fourth row that a good client writes; the doors deal with large ones elsewhere than with others."""
GUARD_S = 600.0
"""Against hanging; what an attack makes ready may take long."""


# --- the processes


def speak_tls() -> None:
    """Have all connections that good and bad clients make by ``socket.create_connection`` speak TLS."""
    connect, context = socket.create_connection, ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])

    def secured(address: tuple[str, int], *words: Any, **named: Any) -> ssl.SSLSocket:
        return context.wrap_socket(connect(address, *words, **named), server_hostname=address[0])

    socket.create_connection = secured


def be_good(door: str, url: str) -> None:
    """Write and read, for the seconds that each line of stdin names; print how long each answer took, as JSON."""
    from tests.server.hostile.doors import comes_in

    beside = comes_in(door, plain_url(url), f"good-{door}")
    beside.step()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        took: list[float] = []
        fault = ""
        begun = time.perf_counter()
        end = begun + float(line)
        try:
            while begun < end:
                row = beside.write_next(LARGE_BYTES if beside.rows % 4 == 3 else 0)
                written = time.perf_counter()
                took.append((written - begun) * 1_000)
                beside.read_back(row)
                now = time.perf_counter()
                took.append((now - written) * 1_000)
                begun = max(begun + EVERY_MS / 1_000, now)
                time.sleep(begun - now)
        except Exception as error:
            took.append((time.perf_counter() - begun) * 1_000)
            fault = f"{type(error).__name__}: {error}"
        print(json.dumps({"ms": took, "fault": fault}), flush=True)
        if fault:
            return


def attack(name: str, urls: dict[str, str]) -> None:
    """Make an attack ready, print so, attack from the next line of stdin on; print rounds after each."""
    made = ATTACKS[name]
    rounds = cut = 0
    coming = made.begin(urls)
    next(coming)
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    while True:
        try:
            next(coming)
            rounds += 1
        except (OSError, EOFError) as fault:
            # The door has cut it. It comes again, as somebody would who means ill.
            cut += 1
            print(json.dumps({"rounds": rounds, "cut": cut, "why": str(fault)[:200]}), flush=True)
            time.sleep(0.05)
            with contextlib.suppress(OSError, EOFError):
                coming = made.begin(urls)
                next(coming)
            continue
        print(json.dumps({"rounds": rounds, "cut": cut, "why": ""}), flush=True)


class Void(Exception):
    """Nothing could be measured."""


class Child:
    """This program once more, in a role; a context manager. With an authority it speaks TLS."""

    def __init__(self, authority: Path | None, *arguments: str) -> None:
        trusted = {"SSL_CERT_FILE": str(authority), "REQUESTS_CA_BUNDLE": str(authority)} if authority else {}
        command = [sys.executable, __file__, *(["--tls"] if authority else []), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, **trusted}
        )
        self._rest = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def tell(self, words: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(words.encode() + b"\n")

    def hear(self, what: str, wait_s: float = GUARD_S) -> Any:
        """Return what its next line says.

        Raises:
            Void: it says nothing, or has ended.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], wait_s)[0]:
                raise Void(f"{what}: nothing was said for {wait_s:.0f} s")
            piece = self._process.stdout.read(1 << 20)
            if not piece:
                raise Void(f"{what}: it has ended, see above")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def heard(self) -> list[Any]:
        """Return what all the lines say that it has said by now."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], 0)[0] and (piece := self._process.stdout.read(1 << 20)):
            self._rest += piece
        lines, _, self._rest = self._rest.rpartition(b"\n")
        return [json.loads(line) for line in lines.splitlines()]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


# --- measuring


@dataclass(frozen=True)
class Waits:
    """How long somebody waits who comes at any time, in ms."""

    p50: float
    p99: float
    longest: float
    steps: int
    fault: str

    @classmethod
    def of(cls, said: dict[str, Any]) -> Waits:
        every = sorted(each for took in said["ms"] for each in corrected(took))
        return cls(at(every, 0.5), at(every, 0.99), every[-1], len(said["ms"]), said["fault"])


def corrected(took: float) -> Iterator[float]:
    """What an answer counts as: itself, and those that would have been asked for meanwhile."""
    while took > 0:
        yield took
        took -= EVERY_MS


def at(ordered: list[float], share: float) -> float:
    """The nearest-rank percentile."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure(good: dict[str, Child], seconds: float) -> dict[str, Waits]:
    """Have the good clients go on for so long."""
    for child in good.values():
        child.tell(str(seconds))
    return {door: Waits.of(child.hear(f"the good client at {door}")) for door, child in good.items()}


def peak_mb(pid: int) -> float:
    """The most memory that a process had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the system does not say how much memory a process had")


HEAD = (
    f"{'attack':<55} {'good client at':<16} {'quiet p50':>9} {'p99':>7} {'beside p50':>10} {'p99':>8} {'longest':>8} "
    f"{'x p50':>6} {'x p99':>6} {'MB':>5} {'rounds':>6}"
)


def run(made: Attack, seconds: float, *, secured: bool) -> bool:
    """Measure one attack, over TLS or not, and print what was seen; return whether all is within the bounds.

    Raises:
        Void: nothing could be measured.
    """
    from spark_streams.testing import LogProcess

    arguments = [word for door in DOORS for word in ("--stream", f"good-{door}")]
    with contextlib.ExitStack() as children:
        folder = Path(children.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(folder, "authority") if secured or made.tls else None
        trusted = authority and authority.file
        if authority:
            certificate, key = authority.issue("server")
            arguments += ["--tls-cert", certificate, "--tls-key", key]
        if made.settings:
            (folder / "log.toml").write_text(made.settings)
            arguments += ["--config", str(folder / "log.toml")]
        log = children.enter_context(LogProcess(arguments=arguments))
        assert log.pid is not None
        good = {door: children.enter_context(Child(trusted, "--good", door, log.urls[door])) for door in DOORS}
        for door, child in good.items():
            child.hear(f"the good client at {door}")
        quiet = measure(good, max(1.0, seconds / 2))
        bad = children.enter_context(Child(trusted, "--attack", made.name, json.dumps(log.urls)))
        bad.hear(made.name)
        # What was made ready may have kept the good ones waiting too; that is not what is measured here.
        bad.tell("go")
        beside = measure(good, seconds)
        said = bad.heard()
        ended = not bad.alive
        memory = peak_mb(log.pid)
        log.kill()  # what it still has to do for the attack is of no interest
    rounds, cut, why = (said[-1]["rounds"], said[-1]["cut"], said[-1]["why"]) if said else (0, 0, "")
    within = not ended
    for number, door in enumerate(DOORS):
        before, now = quiet[door], beside[door]
        times = now.p50 / before.p50, now.p99 / before.p99
        fine = max(times) <= MOST_TIMES and now.p99 <= MOST_MS and memory < MOST_MB and not (before.fault or now.fault)
        within &= fine
        failed = before.fault or now.fault
        print(
            f"{made.name if not number else '':<55} {door:<16} {before.p50:>9.1f} {before.p99:>7.1f} {now.p50:>10.1f} "
            f"{now.p99:>8.1f} {now.longest:>8.1f} {times[0]:>6.1f} {times[1]:>6.1f} {memory:>5.0f} {rounds:>6} "
            f" {'within' if fine else 'BEYOND'}{failed and f', it failed: {failed}'}",
            flush=True,
        )
    if ended:
        print(f"    the attack itself ended, which makes this void: {why}", flush=True)
    elif cut:
        print(f"    the door cut it {cut} times{why and f': {why}'}", flush=True)
    elif not rounds:
        print(f"    its first round was not over after {seconds:g} s", flush=True)
    return within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="attacks whose names hold this")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack; without it half as long")
    parser.add_argument("--tls", action="store_true", help="everybody speaks TLS; without it those of TLS do")
    parser.add_argument("--list", action="store_true", help="print the attacks' names")
    parser.add_argument("--good", nargs=2, metavar=("DOOR", "URL"), help=argparse.SUPPRESS)
    parser.add_argument("--attack", nargs=2, metavar=("NAME", "URLS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tls and (given.good or given.attack):
        speak_tls()
    if given.good:
        be_good(*given.good)
        return 0
    if given.attack:
        attack(given.attack[0], json.loads(given.attack[1]))
        return 0
    chosen = [made for name, made in sorted(ATTACKS.items()) if (given.only or "") in name]
    if not chosen:
        raise SystemExit(f"no attack's name holds '{given.only}': expected one of\n  " + "\n  ".join(sorted(ATTACKS)))
    if given.list:
        print("\n".join(made.name for made in chosen))
        return 0
    print(
        f"Times in ms. Bounds: {MOST_TIMES:g} times quiet, p99 of {MOST_MS:g} ms, {MOST_MB:g} MB.\n{HEAD}", flush=True
    )
    return 0 if all([run(made, given.seconds, secured=given.tls) for made in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
