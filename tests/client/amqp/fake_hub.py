"""A scripted hub of Event Hubs (H-3 to H-9): management, selector filters, compaction, no answer to drain."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proton import Array, Data, Endpoint, Link, Message, int32, symbol, timestamp

from tests.client.amqp.fake_namespace import FakeNamespace, Namespace
from tests.client.amqp.fake_node import Attach, refuse

HUB = "orders"
CREATED_MS = 1_700_000_000_000
_FILTER = re.compile(r"amqp\.annotation\.(x-opt-[a-z-]+) (>=|>) '(-?\d+|@latest)'")


@dataclass
class Partition:
    """Events of one partition: their numbers follow one another from ``first`` on, but for the compacted ``holes``."""

    first: int = 0
    bodies: list[bytes] = field(default_factory=list)
    holes: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        return self.first + len(self.bodies) - 1

    def retain(self, first: int) -> None:
        """Remove what lies before a number."""
        self.bodies, self.first = self.bodies[first - self.first :], first

    def time_ms(self, number: int) -> int:
        return 1_000 * number

    def encoded(self, number: int) -> bytes:
        """An event as the service delivers it."""
        annotations = {
            symbol("x-opt-sequence-number"): number,
            symbol("x-opt-offset"): str(number * 4_294_967_296),
            symbol("x-opt-enqueued-time"): timestamp(self.time_ms(number)),
            symbol("x-opt-partition-key"): f"k{number % 3}",
        }
        body = self.bodies[number - self.first]
        return bytes(Message(body=body, inferred=True, annotations=annotations).encode())

    def begins(self, expression: str) -> int | None:
        """The first number that a filter lets through, None for one that the service refuses."""
        found = _FILTER.fullmatch(expression)
        assert found is not None, expression
        key, sign, value = found.groups()
        if value == "@latest":
            return self.last + 1
        bound = int(value) + (sign == ">")
        if key == "x-opt-offset":
            assert bound == 0, "the client starts at offsets of the service only at the beginning"
            return self.first
        if key == "x-opt-enqueued-time":
            later = (n for n in range(self.first, self.last + 1) if self.time_ms(n) >= bound)
            return next(later, self.last + 1)
        return None if bound > self.last + 1 else max(bound, self.first)


class FakeHub(FakeNamespace):
    """Serves one hub on a free loopback port until closed.

    Args:
        partitions: of the hub.
        script: of the namespace.

    Attributes:
        created_ms: when the hub was created.
        reads: what ``$management`` was asked.
        denies: a status for every question to it; None to answer.
        held: whether receivers get nothing, as at a hub that is slow.
        on_look: called with the number of each question about a partition, from 1, before it is answered.
    """

    def __init__(self, partitions: dict[str, Partition], script: Namespace | None = None) -> None:
        self.partitions = partitions
        self.created_ms = CREATED_MS
        self.reads: list[dict[str, Any]] = []
        self.denies: int | None = None
        self.held = False
        self.looks = 0
        self.on_look: Callable[[int], object] = lambda look: None
        self._mine = threading.local()
        self._next: dict[str, int] = {}
        self.lock = threading.Lock()
        super().__init__(script or Namespace(capability=False))

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port}/;SharedAccessKeyName=listen;SharedAccessKey={self.namespace.password};"
            f"EntityPath={HUB};UseDevelopmentEmulator=true"
        )

    def _attached(self, link: Any) -> None:
        address = (link.remote_source if link.is_sender else link.remote_target).address or ""
        if address == "$management":
            link.source.copy(link.remote_source)
            link.target.copy(link.remote_target)
            link.open()
            if link.is_receiver:
                link.flow(10)
            return
        place = re.fullmatch(rf"{HUB}/ConsumerGroups/([^/]+)/Partitions/(\w+)", address)
        if not link.is_sender or place is None:
            super()._attached(link)
            return
        filters = link.remote_source.filter
        filters.rewind()
        found = dict(filters.get_object() or {}) if filters.next() else {}
        properties = {str(name): value for name, value in (link.remote_properties or {}).items()}
        self.attaches.append(Attach(address, True, properties, found))
        partition = self.partitions.get(place[2])
        if partition is None:
            refuse(link, "com.microsoft:argument-out-of-range", f"no partition '{place[2]}'")
            return
        if self.script.on_attach is not None and self.script.on_attach(link, len(self.attaches)):
            return
        (described,) = found.values()
        assert str(described.descriptor) == "apache.org:selector-filter:string"
        begins = partition.begins(described.value)
        if begins is None:
            asked = described.value.split("'")[1]
            words = f"The supplied sequence number '{asked}' is invalid. The last sequence number in the system is "
            refuse(link, "com.microsoft:argument-error", words + f"'{partition.last}'")
            return
        self._next[link.name] = begins
        link.source.address = address  # the filter is not echoed
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.open()

    def _deliver(self, link: Any, sent: dict[str, int]) -> None:
        if link.name not in self._next:
            if link.remote_source.address != "$management":
                super()._deliver(link, sent)
            return
        partition = self.partitions[link.remote_source.address.rsplit("/", 1)[1]]
        self._mine.__dict__.setdefault("links", {})[link.name] = link
        with self.lock:
            while link.credit > 0 and not self.held:
                number = max(self._next[link.name], partition.first)
                if number > partition.last:
                    break
                self._next[link.name] = number + 1
                if number in partition.holes:
                    continue
                delivery = link.delivery(f"d{number}")
                link.stream(partition.encoded(number))
                link.advance()
                if link.snd_settle_mode == Link.SND_SETTLED:
                    delivery.settle()

    def _due(self) -> None:
        """Deliver what has come since the links of this thread's connection got their credit."""
        super()._due()
        links = self._mine.__dict__.setdefault("links", {})
        for name, link in list(links.items()):
            if link.state & Endpoint.REMOTE_ACTIVE:
                self._deliver(link, {})
            else:
                del links[name]

    def _delivered(self, link: Any, delivery: Any) -> None:
        if link.is_sender or link.remote_target.address != "$management":
            super()._delivered(link, delivery)
            return
        if delivery.partial or not delivery.readable:
            return
        request = Message()
        request.decode(link.recv(delivery.pending))
        link.advance()
        delivery.settle()
        link.flow(1)
        self.reads.append(dict(request.properties))
        status, body = self._answer(request.properties)
        reply = Message(
            correlation_id=request.id,
            properties={"status-code": int32(status), "status-description": "words"},
            body=body,
        )
        answers = link.session.connection.link_head(0)
        while answers.remote_target.address != request.reply_to or not answers.is_sender:
            answers = answers.next(0)
        sent = answers.delivery(f"m{len(self.reads)}")
        answers.stream(reply.encode())
        answers.advance()
        sent.settle()

    def _answer(self, asked: dict[str, Any]) -> tuple[int, Any]:
        assert asked["operation"] == "READ"
        if self.denies is not None:
            return self.denies, None
        if asked["name"] != HUB:
            return 404, None
        if asked["type"] == "com.microsoft:eventhub":
            ids = Array(None, Data.STRING, *self.partitions)
            count = int32(len(self.partitions))
            created = timestamp(self.created_ms)
            return 200, {"name": HUB, "created_at": created, "partition_count": count, "partition_ids": ids}
        partition = self.partitions.get(asked["partition"])
        if partition is None:
            return 404, None
        self.looks += 1
        self.on_look(self.looks)
        empty = not partition.bodies
        return 200, {
            "name": HUB,
            "partition": asked["partition"],
            "begin_sequence_number": 0 if empty else partition.first,
            "last_enqueued_sequence_number": partition.first - 1 if empty else partition.last,
            "last_enqueued_offset": "-1",
            "last_enqueued_time_utc": timestamp(-62_135_596_800_000 if empty else partition.time_ms(partition.last)),
            "is_partition_empty": empty,
        }
