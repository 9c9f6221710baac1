"""The server of a reference log: its doors, on one asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from spark_streams.log import ReferenceLog
from spark_streams.server.admission import Sockets
from spark_streams.server.counters import logger
from spark_streams.server.door import Door, DoorShut
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.doors import DoorArguments, doors_of
from spark_streams.server.exposure import may_listen

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LogServer:
    """Serves a log.

    Args:
        log: the log; it stays open when the server stops.
        configs: settings of doors of this package; None leaves a door shut.
        doors: keyword arguments: further settings, such as ``amqp``, ``rabbit`` and ``feed``, and ``doors``, such as a
            user's own.

    Attributes:
        doors: the doors that ``start`` opens, in this order.
        urls: door name to the URL where it listens, without credentials; filled by ``start``.

    Raises:
        TypeError: a keyword argument has an unknown name.
        ValueError: two doors have one name.
    """

    def __init__(self, log: ReferenceLog, *configs: DoorConfig | None, **doors: Unpack[DoorArguments]) -> None:
        self.log = log
        self.doors = doors_of(configs, doors)
        self.urls: dict[str, str] = {}
        self._sockets = Sockets()

    def door(self, name: str) -> Any:
        """Return the door with a name: a ``Door`` of the class that speaks its protocol.

        Raises:
            KeyError: there is no door of this name.
        """
        return {door.name: door for door in self.doors}[name]

    async def start(self) -> None:
        """Open the doors.

        Raises:
            DoorExposed: a door would listen beyond loopback and let in strangers, and is not ``insecure``.
            DoorShut: a port is taken, a host's name cannot be resolved, or a TLS file cannot be read.

        After an error no door listens.
        """
        for door in self.doors:
            if hasattr(door, "observe"):
                door.observe(self.doors)
            try:
                may_listen(door.name, door.config)
            except OSError as fault:
                raise DoorShut(door.name, fault) from fault
        try:
            for door in self.doors:
                await self._open(door)
        except BaseException:
            with contextlib.suppress(Exception):  # ``stop`` logs it, and it must not hide why the start failed
                await self.stop()
            raise

    async def _open(self, door: Door) -> None:
        try:
            await door.open(self.log, self._sockets)
        except OSError as fault:
            raise DoorShut(door.name, fault) from fault
        self.urls[door.name] = door.url

    async def stop(self) -> None:
        """Close all doors at the same time: send each peer a close frame, and write durable state.

        A door that cannot be closed in good order does not keep the others from closing. Its error is logged, and the
        first error is raised when all doors have ended.
        """
        outcomes = await asyncio.gather(*(door.close() for door in self.doors), return_exceptions=True)
        self.urls.clear()
        faults = [(door.name, fault) for door, fault in zip(self.doors, outcomes, strict=True) if fault is not None]
        for name, fault in faults:
            logger.error("the door %s could not be closed in good order", name, exc_info=fault)
        for _, fault in faults:
            raise fault

    def renegotiate(self, stream: str, group: str) -> int:
        """Gracefully close all receivers of a consumer group, so that its partitions are distributed again.

        Returns:
            How many links were closed, at doors that have consumer groups.

        Raises:
            UnknownStream: there is no such stream.

        Spec: Event Stream Extensions §4.5.1 (ES-107, ES-207). Call it on the server's loop.
        """
        return sum(door.renegotiate(stream, group) for door in self.doors if hasattr(door, "renegotiate"))
