"""Fixtures of the FeedAPI door's conformance tests: a served log, and what a plain HTTP client sees of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests

from tests.server.long_timeouts import HOUR_MS, LONG_TIMEOUTS

TIMEOUT_S = 30


@dataclass
class Page:
    """A response of a fetch."""

    answer: requests.Response

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its lines, split at newlines only; the last one ends with one."""
        assert self.answer.status_code == 200, self.answer.text
        content = self.answer.content
        assert content.endswith(b"\n")
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    @property
    def events(self) -> list[Any]:
        return [line.get("event", line.get("data")) for line in self.lines if "cursor" not in line]

    @property
    def cursors(self) -> list[str]:
        return [line["cursor"] for line in self.lines if "cursor" in line]

    @property
    def cursor(self) -> str:
        """The cursor that the last line holds."""
        return str(self.lines[-1]["cursor"])


class Door:
    """A door, and feeds behind it."""

    def __init__(self, server: Any, log: Any, config: Any) -> None:
        self.server = server
        self.log = log
        self.config = config
        self.session = requests.Session()

    @property
    def url(self) -> str:
        return str(self.server.feed_url)

    def create(self, name: str = "orders", partitions: int = 1, **config: Any) -> str:
        from spark_streams.log import StreamConfig

        self.log.create_stream(name, partitions, StreamConfig(**config) if config else None)
        return name

    def append(
        self,
        values: Sequence[bytes],
        *,
        name: str = "orders",
        partition: int = 0,
        keys: Sequence[str | None] | None = None,
        **columns: Any,
    ) -> None:
        """Append messages straight to a partition of the log."""
        from spark_streams.wire.amqp.columns.encode import encode_columns

        given: dict[str, Any] = {"value": pa.array(values, pa.binary()), **columns}
        if keys is not None:
            given["key"] = pa.array(keys, pa.string())
        self.log.stream(name).partitions[str(partition)].append(encode_columns(given))

    def numbers(self, first: int, stop: int, **where: Any) -> None:
        """Append ``{"n": first}`` and so on."""
        self.append([b'{"n":%d}' % n for n in range(first, stop)], **where)

    def get(self, path: str = "orders", **query: Any) -> requests.Response:
        headers = query.pop("headers_", None)
        pairs = {name.replace("__", "-"): value for name, value in query.items()}
        return self.session.get(f"{self.url}/{path}", params=pairs, headers=headers, timeout=TIMEOUT_S)

    def discover(self, name: str = "orders") -> Any:
        answer = self.get(name)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, partition: int | str = 0, cursor: str = "_first", name: str = "orders", **query: Any) -> Page:
        """Fetch in version 2a, or, where the door serves that, 2b."""
        if self.config.dialect == "v2b":
            token = self.discover(name)["token"]
            return Page(
                self.get(f"{name}/events", **{"token": token, "partition": partition, "cursor": cursor, **query})
            )
        return Page(self.get(name, **{"partition": partition, "cursor": cursor, **query}))

    def read(self, partition: int | str = 0, cursor: str = "_first", name: str = "orders", **query: Any) -> list[Any]:
        """Read to the end."""
        events: list[Any] = []
        while True:
            page = self.page(partition, cursor, name, **query)
            if page.cursor == cursor:
                assert page.events == []
                return events
            events += page.events
            cursor = page.cursor

    def post(self, body: bytes, name: str = "orders", *, kind: str = "application/x-ndjson", **headers: str) -> Any:
        given = {"Content-Type": kind, **{key.replace("_", "-"): value for key, value in headers.items()}}
        return self.session.post(f"{self.url}/{name}", data=body, headers=given, timeout=TIMEOUT_S)

    def put(self, path: str, **query: Any) -> requests.Response:
        return self.session.put(f"{self.url}/{path}", params=query, timeout=TIMEOUT_S)

    def split(self, partition: int, name: str = "orders", **query: Any) -> requests.Response:
        return self.session.post(f"{self.url}/{name}/partitions/{partition}/split", params=query, timeout=TIMEOUT_S)

    def close(self) -> None:
        self.session.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Callable[..., Door]]:
    """A function that starts a door with the FeedConfig fields given; the other doors beside it when asked for."""
    from spark_streams.log import LogConfig, ReferenceLog
    from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread

    with contextlib.ExitStack() as stack:

        def start(
            *, others: bool = False, log_config: Any = None, clock: Any = None, folder: str = "log", **config: Any
        ) -> Door:
            extra = {} if clock is None else {"clock": clock}
            log = stack.enter_context(ReferenceLog(tmp_path / folder, log_config or LogConfig(), **extra))
            beside = (AmqpConfig(port=0), RabbitConfig(port=0)) if others else (None, None)
            settings = FeedConfig(port=0, **{**LONG_TIMEOUTS, "idle_timeout_ms": HOUR_MS, **config})
            server = stack.enter_context(ServerThread(log, *beside, settings))
            door = Door(server, log, settings)
            stack.callback(door.close)
            return door

        yield start


@pytest.fixture
def door(doors: Callable[..., Door]) -> Door:
    """A door with the default configuration, and long time-outs (tests/server/long_timeouts.py)."""
    return doors()


@pytest.fixture(params=["v2a", "v2b"])
def either(request: pytest.FixtureRequest, doors: Callable[..., Door]) -> Door:
    """A door of each version 2."""
    return doors(dialect=request.param)
