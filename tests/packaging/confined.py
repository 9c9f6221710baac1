"""Runs a command under what a unit of systemd takes away from a process, as far as that is seccomp's and prctl's work.

``python confined.py UNIT COMMAND…``: system calls (``SystemCallFilter``), sockets (``RestrictAddressFamilies``), memory
that is written and run (``MemoryDenyWriteExecute``), new privileges. No systemd has to run; libseccomp has to be there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NO_NEW_PRIVS: Final = 38
MDWE, REFUSE_EXEC_GAIN = 65, 1
ALLOW: Final = 0x7FFF0000
REFUSE: Final = 0x00050000 | errno.EPERM
SAME: Final = 4
"""libseccomp's SCMP_CMP_EQ."""
FAMILIES: Final = range(socket.AF_UNIX, 46)
"""All families of sockets that Linux has."""


class Compared(ctypes.Structure):
    """What libseccomp calls scmp_arg_cmp: an argument's place, the comparison, what with."""

    _fields_ = (
        ("place", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def settings(unit: Path) -> dict[str, list[str]]:
    """Return the settings of a unit: name to its values, one for each line."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.setdefault(name, []).append(value)
    return found


def calls(group: str) -> Iterator[str]:
    """Return the system calls of a group such as ``@system-service``, as systemd knows them."""
    listing = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    for word in listing.stdout.split("\n")[1:]:
        name = word.strip()
        if name.startswith("@"):
            yield from calls(name)
        elif name and not name.startswith("#"):
            yield name


def allowed(filters: list[str]) -> set[str]:
    """Return the system calls that lines of ``SystemCallFilter`` allow."""
    found: set[str] = set()
    for line in filters:
        named = {call for group in line.removeprefix("~").split() for call in calls(group)}
        found = found - named if line.startswith("~") else found | named
    # What every filter of systemd lets through: to start, to end, to wait.
    return found | set(calls("@default"))


def done(code: int, what: str) -> None:
    """Raise an error when a function of C has refused."""
    if code:
        raise OSError(f"{what}: {code}, {os.strerror(-code if code < -1 else ctypes.get_errno())}")


def confine(unit: Path) -> None:
    """Take away from this process, and from those that it starts, what the unit takes away."""
    given = settings(unit)
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    names = allowed(given["SystemCallFilter"])
    done(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    if given["MemoryDenyWriteExecute"] == ["yes"]:
        done(libc.prctl(MDWE, REFUSE_EXEC_GAIN, 0, 0, 0), "memory that is written and run")
    sockets = ctypes.c_void_p(seccomp.seccomp_init(ALLOW))
    opens = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in set(FAMILIES) - {getattr(socket, name) for name in given["RestrictAddressFamilies"][0].split()}:
        same = (Compared * 1)(Compared(0, SAME, family, 0))
        done(seccomp.seccomp_rule_add_array(sockets, REFUSE, opens, 1, same), f"family {family}")
    done(seccomp.seccomp_load(sockets), "sockets")
    system_calls = ctypes.c_void_p(seccomp.seccomp_init(REFUSE))
    for name in names:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # a call of this kind of machine
            done(seccomp.seccomp_rule_add(system_calls, ALLOW, number, 0), name)
    done(seccomp.seccomp_load(system_calls), "system calls")  # the last, as it refuses a further one


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
