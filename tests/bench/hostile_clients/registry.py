"""What bad clients do, by name. A file for each door says how.

An attack is a generator. What it does before its first ``yield`` makes it ready (streams to attack, bytes to send) and
is not measured; from then on each step is one round, and it never ends by itself. Where the door cuts it, OSError or
EOFError leaves it, and it is begun anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["ATTACKS", "Attack", "attack"]

Begin = Callable[[Mapping[str, str]], Iterator[None]]


@dataclass(frozen=True)
class Attack:
    """One of them.

    Args:
        name: the door's, and what is done there.
        begin: called with door to url.
        settings: of the log, TOML, where the default ones would end it early.
        tls: whether it is about TLS, which the doors then always speak.
    """

    name: str
    begin: Begin
    settings: str = ""
    tls: bool = False


ATTACKS: dict[str, Attack] = {}


def attack(name: str, settings: str = "", *, tls: bool = False) -> Callable[[Begin], Begin]:
    """Have a generator known under a name, such as ``rabbitmq-stream: a flood of Credit``."""

    def keep(begin: Begin) -> Begin:
        if name in ATTACKS:
            raise ValueError(f"there is an attack '{name}' already")
        ATTACKS[name] = Attack(name, begin, settings, tls)
        return begin

    return keep
