"""The fuzzed process, as those who fuzz it see it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ANSWER_S = 120.0


class Died(AssertionError):
    """The process ended, or does not answer."""


class DoorProcess:
    """``serving.py`` while the context is open.

    Args:
        folder: where the log and what the process says on stderr are.
        variant: which settings it has, 0 to 3.
    """

    def __init__(self, folder: Path, variant: int = 0) -> None:
        self._words = folder / "stderr.txt"
        root = Path(__file__).resolve().parents[2]
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.serving", str(folder / "log"), str(variant)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"},
            )
        self.urls: dict[str, Any] = self.ask("urls")

    def ask(self, question: str) -> Any:
        """Ask something.

        Raises:
            Died: there is no answer any more.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(question.encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise Died(self._last_words()) from None
        line = b""
        deadline = time.monotonic() + ANSWER_S
        while not line.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Died(f"no answer to '{question}' within {ANSWER_S} s: the doors' loop hangs")
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                raise Died(self._last_words())
            line += piece
        return json.loads(line)

    def _last_words(self) -> str:
        code = self._process.wait()
        return f"the process of the doors ended with code {code}:\n{self._words.read_text(errors='replace')[-6_000:]}"

    def __enter__(self) -> DoorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(120)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
