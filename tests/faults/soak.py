"""A soak: random faults on pipelines through all three protocols, and in the end every event is there, once.

    python tests/faults/soak.py [--seconds N] [--seed N]          also: make soak [SECONDS=N] [SEED=N]

Each protocol has a stream that grows all the time and a streaming query that copies it, in the protocol, into another
one: read through one proxy and written through another, over TLS. Faults are those of tests/faults/scenarios.py, at
random; a query gets the next one when it has finished a micro-batch since the last. The seed is printed: with it the
faults are chosen the same again, though they meet other moments.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.doors import FORMATS, doors  # noqa: E402
from tests.faults.proxy import TcpProxy  # noqa: E402
from tests.faults.queries import Writing  # noqa: E402
from tests.faults.scenarios import GOES_ON  # noqa: E402
from tests.sessions import session_of_its_own  # noqa: E402

TIMEOUT_MS = 10_000
LASTS_S = 6.0
"""How long a fault that does not end by itself lasts."""
REPORT_S = 10.0


class Pipeline:
    """One protocol's copy, and what is done to it."""

    def __init__(self, format: str, copy: Writing, source: TcpProxy, chance: random.Random) -> None:
        self.format = format
        self.copy = copy
        self.faults = 0
        self._proxies = {"reading": source, "writing": copy.proxy}
        self._chance = chance
        self._hurt: TcpProxy | None = None
        self._until = 0.0
        self._batch = -1

    @property
    def batch(self) -> int:
        """Number of the last micro-batch that is finished."""
        progress = self.copy.query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    def step(self, now: float) -> str | None:
        """Begin or end a fault when it is time; return its name when one begins."""
        if (fault := self.copy.query.exception()) is not None:
            raise fault
        if self._hurt is not None:
            if now < self._until:
                return None
            self._hurt.heal()
            self._hurt, self._batch = None, self.batch
        if self.batch <= self._batch:
            return None
        where = self._chance.choice(list(self._proxies))
        scenario = self._chance.choice(GOES_ON)
        self._until = now + self._chance.uniform(2.0, LASTS_S)
        self._hurt = self._proxies[where]
        scenario.does(self._hurt, where == "writing")
        self.faults += 1
        return f"{where}: {scenario.name}"

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.heal()

    @property
    def struck(self) -> int:
        """How many connections were broken."""
        return sum(len(proxy.struck) for proxy in self._proxies.values())


def soak(spark: Any, folder: Path, seconds: float, seed: int) -> bool:
    """Run it; return whether everything came."""
    chance = random.Random(seed)
    with doors(folder, tls=True) as there:
        lines = []
        for format in FORMATS:
            source = there.proxy(format)
            name = format.split("-")[0]
            copy = Writing(spark, there, format, name, folder, TIMEOUT_MS, reading=format, through=source)
            copy.append(10)
            copy.wait()  # one after the other: each starts processes
            lines.append(Pipeline(format, copy, source, random.Random(chance.random())))
        begun = reported = time.monotonic()
        while (now := time.monotonic()) - begun < seconds:
            for line in lines:
                line.copy.append(chance.randrange(5, 60))
                if (fault := line.step(now)) is not None:
                    print(f"{now - begun:6.1f} s  {line.format:15}  {fault}", flush=True)
            if now - reported > REPORT_S:
                reported = now
                print(f"{now - begun:6.1f} s  " + "  ".join(_state(line) for line in lines), flush=True)
            time.sleep(chance.uniform(0.1, 0.5))
        print("no more faults: what is under way is waited for", flush=True)
        for line in lines:
            line.heal()
        whole = True
        for line in lines:
            line.copy.wait()
            line.copy.query.stop()
            try:
                line.copy.check()
            except AssertionError:
                whole = False
            stored = sum(map(len, there.events(line.copy.output).values()))
            said = "all there, in order" if whole else "NOT WHAT WAS APPENDED"
            print(f"{_state(line)}, {line.struck} broken connections, {stored} events stored: {said}", flush=True)
        return whole


def _state(line: Pipeline) -> str:
    return f"{line.format}: {line.copy.count} events, {line.batch + 1} micro-batches, {line.faults} faults"


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"{given.seconds:g} s of faults, seed {seed}", flush=True)

    with (
        session_of_its_own("local[2,4]", log_level="OFF") as spark,
        tempfile.TemporaryDirectory(prefix="spark-streams-soak-", ignore_cleanup_errors=True) as folder,
    ):
        return 0 if soak(spark, Path(folder), given.seconds, seed) else 1


if __name__ == "__main__":
    sys.exit(main())
