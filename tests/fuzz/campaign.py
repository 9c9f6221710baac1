"""Cases for a door, made from a seed and a number, and how they are played.

    python -m tests.fuzz.campaign --door amqp --seed 1 --seconds 600       from the first case on
    python -m tests.fuzz.campaign --door amqp --seed 1 --case 1234         that one alone

A failure names door, seed and case. Cases are played ``TOGETHER`` at a time. When something is wrong afterwards, each
is played alone in a new process, so that the case that is named is the one that does it; where none does it alone, the
whole group is named.
"""

from __future__ import annotations

import argparse
import random
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tests.door_urls import plain_url
from tests.fuzz import amqp_cases, event_hubs_cases, feed_cases, rabbit_cases
from tests.fuzz.door_process import Died, DoorProcess
from tests.fuzz.mutation import chunked, damaged, rearranged
from tests.fuzz.witness import check_witness, check_written

DOORS: dict[str, tuple[str, ModuleType]] = {
    "amqp": ("amqp", amqp_cases),
    "rabbit": ("rabbitmq-stream", rabbit_cases),
    "feed": ("feedapi", feed_cases),
    "event-hubs": ("event-hubs", event_hubs_cases),
}
TOGETHER = 32
QUIET_S = {"amqp": 0.02, "rabbit": 0.02, "feed": 0.05, "event-hubs": 0.02}
"""How long a door may say nothing before a case goes on; a slow machine gets less deep, and fails nothing."""
END_S = 60.0
"""How long a connection may stay after its peer has said that nothing more comes."""
MOST_BYTES = 1 << 30
"""What the process may take at most, with ``TOGETHER`` connections on one door."""


class Failure(AssertionError):
    """A case did what no case may do."""


def recorded(door: str) -> list[list[bytes]]:
    """Return conversations of real clients."""
    text = (Path(__file__).parent / "recorded" / f"{door}.hex").read_text()
    return [[bytes.fromhex(line) for line in talk.split()] for talk in text.split("\n\n")]


def case(door: str, seed: int, number: int) -> list[bytes]:
    """Return what a case sends, piece by piece; the same for the same arguments."""
    chance = random.Random(f"{door}/{seed}/{number}")
    kinds = DOORS[door][1]
    talks = recorded(door)
    kind = chance.randrange(100)
    if kind < 4:
        frames = [chance.randbytes(chance.choice((1, 8, 100, 3_000)))]
    elif kind < 10:
        talk = chance.choice([*talks, kinds.opening()])
        frames = [*talk[: chance.randrange(len(talk) + 1)], chance.randbytes(chance.choice((1, 8, 100, 3_000)))]
    elif kind < 55:
        frames = kinds.grammar(chance)
    else:
        frames = list(chance.choice(talks))
    if kind >= 45:
        others = [frame for talk in talks for frame in talk]
        # Mostly behind the sign-in, so that the damage meets every state.
        first = 0 if chance.random() < 0.12 else min(kinds.SIGNED_IN, len(frames) - 1)
        for _ in range(chance.choice((1, 1, 2, 4))):
            if chance.random() < 0.3:
                frames[first:] = rearranged(chance, frames[first:], others)
            elif first < len(frames):
                at = chance.randrange(first, len(frames))
                changed = damaged(chance, frames[at], kinds.NESTED)
                frames[at] = kinds.sized(changed) if chance.random() < 0.9 else changed
    return chunked(chance, frames)


@dataclass
class Played:
    """One case on its way."""

    number: int
    pieces: list[bytes]
    socket: socket.socket
    said: bytearray = field(default_factory=bytearray)
    sent: int = 0
    ended: bool = False
    reset: bool = False
    half: bool = False
    last: float = 0.0


class Player:
    """Plays cases on one door.

    Args:
        door: of ``DOORS``.
        process: that has it.
    """

    def __init__(self, door: str, process: DoorProcess) -> None:
        self._door = door
        url = urlsplit(plain_url(process.urls[DOORS[door][0]]))
        self._address = (url.hostname or "127.0.0.1", url.port or 0)

    def play(self, cases: Sequence[tuple[int, list[bytes]]]) -> str | None:
        """Play cases beside each other; return what was wrong with what the door said, or None."""
        with selectors.DefaultSelector() as waiting:
            every = []
            for number, pieces in cases:
                each = Played(number, list(pieces), socket.create_connection(self._address, timeout=END_S))
                each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.socket.setblocking(False)
                each.last = time.monotonic()
                waiting.register(each.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, each)
                every.append(each)
            try:
                return self._play(waiting, every)
            finally:
                for each in every:
                    each.socket.close()

    def _play(self, waiting: selectors.BaseSelector, every: list[Played]) -> str | None:
        while left := [each for each in every if not each.ended]:
            for key, events in waiting.select(0.005):
                self._move(key.data, events)
            now = time.monotonic()
            for each in left:
                if each.ended:
                    waiting.unregister(each.socket)
                    wrong = DOORS[self._door][1].illegal(bytes(each.said), each.reset)
                    if wrong:
                        return f"case {each.number}: the door's answer is no protocol: {wrong}"
                elif not each.pieces and not each.half and now - each.last > QUIET_S[self._door]:
                    each.half, each.last = True, now
                    with suppress(OSError):
                        each.socket.shutdown(socket.SHUT_WR)
                elif now - each.last > END_S:
                    return f"case {each.number}: the connection does not end, {END_S} s after its peer's end"
                if not each.pieces and not each.ended:
                    waiting.modify(each.socket, selectors.EVENT_READ, each)
        return None

    def _move(self, each: Played, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                piece = each.socket.recv(1 << 18)
                if not piece:
                    each.ended = True
                    return
                each.said += piece
                each.last = time.monotonic()
            if events & selectors.EVENT_WRITE and each.pieces:
                sent = each.socket.send(each.pieces[0])
                each.pieces[0] = each.pieces[0][sent:]
                if not each.pieces[0]:
                    del each.pieces[0]
                each.last = time.monotonic()
        except BlockingIOError:
            return
        except OSError:
            each.ended = each.reset = True


def check(process: DoorProcess) -> str | None:
    """Return what is wrong with the process, or None."""
    deadline = time.monotonic() + END_S
    while process.ask("connections"):
        if time.monotonic() > deadline:
            return f"{process.ask('connections')} connections are still there, {END_S} s after their ends"
        time.sleep(0.002)
    state: dict[str, Any] = process.ask("check")
    if state["found"]:
        return "the doors logged:\n" + "\n".join(state["found"][:3])
    if state["peak_bytes"] > MOST_BYTES:
        return f"the process took {state['peak_bytes'] >> 20} MiB, expected at most {MOST_BYTES >> 20}"
    return None


def play_group(
    door: str, process: DoorProcess, cases: Sequence[tuple[int, list[bytes]]], *, thorough: bool
) -> str | None:
    """Play cases beside each other, and look at everything; return what is wrong, or None."""
    try:
        wrong = Player(door, process).play(cases) or check(process) or check_witness(process.urls)
        if not wrong and thorough:
            process.ask("renew")
            wrong = check_written(process.urls, process.ask("counts")) or check(process)
            process.ask("shrink")
        return wrong
    except Died as died:
        return str(died)


class Campaign:
    """Cases one after the other, from the first number on.

    Args:
        door: of ``DOORS``.
        seed: of all of them, and of the doors' settings.
        folder: for the process's files.
    """

    def __init__(self, door: str, seed: int, folder: Path) -> None:
        self._door = door
        self._seed = seed
        self._folder = folder
        self._processes = 0

    def _process(self) -> DoorProcess:
        self._processes += 1
        folder = self._folder / f"process-{self._processes}"
        folder.mkdir(parents=True)
        return DoorProcess(folder, self._seed % 4)

    def run(self, first: int, stop: int, *, seconds: float | None = None) -> int:
        """Play cases ``first`` to ``stop`` (exclusive), or as many as there is time for; return how many.

        Raises:
            Failure: one did what it may not.
        """
        number = first
        with self._process() as process:
            until = None if seconds is None else time.monotonic() + seconds
            while number < stop and (until is None or time.monotonic() < until):
                group = range(number, min(number + TOGETHER, stop))
                number = group.stop
                last = number == stop or (number - first) // TOGETHER % 8 == 0
                wrong = play_group(self._door, process, self._cases(group), thorough=last)
                if wrong:
                    raise Failure(self._named(group, wrong))
        return number - first

    def _cases(self, numbers: Sequence[int]) -> list[tuple[int, list[bytes]]]:
        return [(number, case(self._door, self._seed, number)) for number in numbers]

    def alone(self, number: int) -> str | None:
        """Play one case in a process of its own; return what is wrong, or None."""
        with self._process() as process:
            return play_group(self._door, process, self._cases([number]), thorough=True)

    def _named(self, group: range, wrong: str) -> str:
        replay = f"python -m tests.fuzz.campaign --door {self._door} --seed {self._seed}"
        for number in group:
            alone = self.alone(number)
            if alone:
                return f"door {self._door}, seed {self._seed}, case {number} ({replay} --case {number}): {alone}"
        together = f"cases {group.start} to {group.stop - 1} together, or with what came before"
        return f"door {self._door}, seed {self._seed}, {together} ({replay}): {wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description="Fuzz the doors of the log.")
    parser.add_argument("--door", choices=list(DOORS), action="append", help="which; all, when none is named")
    parser.add_argument("--seed", type=int, default=None, help="of the cases; a random one without it")
    parser.add_argument("--seconds", type=float, default=600, help="for all doors together")
    parser.add_argument("--case", type=int, default=None, help="play one case alone")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    said = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if said.seed is None else said.seed
    print(f"seed {seed}", flush=True)
    doors = said.door or list(DOORS)
    failed = 0
    for door in doors:
        with tempfile.TemporaryDirectory(prefix="spark-streams-fuzz-", ignore_cleanup_errors=True) as folder:
            campaign = Campaign(door, seed, Path(folder))
            try:
                if said.case is not None:
                    wrong = campaign.alone(said.case)
                    if wrong:
                        raise Failure(f"door {door}, seed {seed}, case {said.case}: {wrong}")
                    print(f"{door}: case {said.case} is well", flush=True)
                else:
                    played = campaign.run(said.first, sys.maxsize, seconds=said.seconds / len(doors))
                    print(f"{door}: {played} cases are well", flush=True)
            except Failure as failure:
                failed = 1
                print(failure, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
