"""Draw the pictures of states in docs/how-it-works.md anew from the code's tables; `make docs` runs it.

A picture stands between two comments of the page, `<!-- states: NAME -->` and `<!-- end of states -->`. It has an arrow
for each two states that inputs lead between, and on it those inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parent / "how-it-works.md"
PICTURES = (
    ("RabbitMQ handshake", "spark_streams.wire.rabbitmq.connection_commands:TRANSITIONS"),
    ("AMQP half of an endpoint", "spark_streams.wire.amqp.engine.endpoints:TRANSITIONS"),
)
"""The name of each picture in the page, and its table: a module and a name in it."""

Table = Mapping[tuple[Enum, Enum], Enum]


def table_of(place: str) -> Table:
    """Return the table that stands at ``module:name``."""
    module, _, name = place.partition(":")
    table: Table = getattr(import_module(module), name)
    return table


def picture(table: Table) -> str:
    """Return a table as a mermaid diagram: its first state is the first one of the picture, too.

    Args:
        table: (state, input) to the next state; values of states are names, values of inputs any text without a colon.
    """
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, received), following in table.items():
        arrows.setdefault((state.value, following.value), []).append(received.value)
    left, reached = {state for state, _ in arrows}, dict.fromkeys(following for _, following in arrows)
    lines = ["stateDiagram-v2", f"  [*] --> {next(iter(arrows))[0]}"]
    lines += [f"  {state} --> {following}: {' / '.join(inputs)}" for (state, following), inputs in arrows.items()]
    lines += [f"  {state} --> [*]" for state in reached if state not in left]
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the text of the page with each picture as the code has it.

    Raises:
        ValueError: the page has no place for a picture, or two of them, or one for a picture that there is not.
    """
    names = re.findall(r"^<!-- states: (.*) -->$", page, re.MULTILINE)
    if sorted(names) != sorted(name for name, _ in PICTURES):
        raise ValueError(f"docs/{PAGE.name} has places for the pictures {names}, expected each of {PICTURES} once")
    for name, place in PICTURES:
        start, end = f"<!-- states: {name} -->", "<!-- end of states -->"
        block = f"{start}\n\n```mermaid\n{picture(table_of(place))}\n```\n\n{end}"
        page = re.sub(re.escape(start) + ".*?" + re.escape(end), lambda _, block=block: block, page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
