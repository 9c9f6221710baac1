"""Clients that are not in Python: a program does with one what lines of JSON tell it, and answers each with a line.

A request is one line, such as ``{"do": "producer", "as": "p"}``; the answer is ``{"value": …}`` or ``{"error": …}``.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest


class Refused(Exception):
    """What the client raised, in its own words."""


class Driver:
    """A client's program, running.

    Args:
        command: that starts it.
        errors: the file that has what it writes to stderr.
    """

    def __init__(self, command: list[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, encoding="utf-8"
            )

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have it do something; what is None is left out.

        Raises:
            Refused: the client raised something.
        """
        request = {name: value for name, value in arguments.items() if value is not None}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the program ended at {do}: {self._errors.read_text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer.get("value")

    def stop(self) -> None:
        """End it."""
        self._process.communicate(timeout=240)
