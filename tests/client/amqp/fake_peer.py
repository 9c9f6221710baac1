"""A small AMQP container made of proton's MessagingHandler, with faults to order: the peer of the client's tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import proton
from proton import Described, Link, Message, symbol, timestamp, ulong
from proton.handlers import MessagingHandler
from proton.reactor import Container

OFFSET = symbol("event-streams-offset")
TIMESTAMP = symbol("event-streams-timestamp")
SOURCE = symbol("event-streams-source-partition")
PARTITION = symbol("event-streams-partition")


@dataclass
class Script:
    """What the peer has and does. Offsets are compared as text, as the specification says."""

    events: list[tuple[str, bytes]] = field(default_factory=list)
    partition: str = "0"
    source_partition: str | None = "0"
    capability: bool = True
    full_sql: bool = False
    echo: bool = True
    echo_names: frozenset[str] | None = None
    refuse_filters: tuple[str, str] | None = None
    echo_changed: bool = False
    ignore_filter: bool = False
    excludes_start: bool = False
    takes: frozenset[int] = frozenset({512, 513})
    refuses_others: tuple[str, str] | None = None
    bind: bool = True
    settled: bool = True
    answers_info: bool = True
    info_extra: dict[str, Any] = field(default_factory=dict)
    partition_extra: dict[str, Any] = field(default_factory=dict)
    earliest: str | None = None
    latest: str | None = None
    answers_drain: bool = True
    refuse: tuple[str, str, dict[Any, Any]] | None = None
    refuse_once: bool = False
    detach_after: tuple[int, tuple[str, str, dict[Any, Any]] | None] | None = None
    detach_closed: bool = True
    deny_outcome: Callable[[int], Any] | None = None
    sender_credit: int = 100
    max_message_size: int = 0
    idle_timeout_ms: int = 0
    outcomes_after_s: float = 0.0
    closes_after: int | None = None
    closes_with: tuple[str, str] | None = None
    closes_behind: int | None = None


class FakePeer(MessagingHandler):
    """Runs a ``Script`` on a free loopback port in a thread; a context manager."""

    def __init__(self, script: Script) -> None:
        super().__init__(auto_accept=False, auto_settle=False, prefetch=0)
        self.script = script
        self.received: list[bytes] = []
        self.outcomes: list[Any] = []
        self.detached: list[Any] = []
        self.attached: list[dict[str, Any]] = []
        self.desired: list[Any] = []
        self.drains = 0
        self.fault: BaseException | None = None
        self._position: dict[str, int] = {}
        self._refused: set[str] = set()
        self._undrained: list[Any] = []
        self._sent = 0
        self._unsettled: list[tuple[float, Any]] = []
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakePeer:
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        try:
            Container(self).run()
        except BaseException as fault:
            self.fault = fault
            self._ready.set()

    # --- proton's events

    def on_start(self, event: Any) -> None:
        self.acceptor = event.container.listen("127.0.0.1:0")
        self.port = self.acceptor._selectable._delegate.getsockname()[1]
        event.container.schedule(0.02, self)
        self._ready.set()

    def on_timer_task(self, event: Any) -> None:
        if self._stop.is_set():
            self.acceptor.close()
            event.container.stop()
        else:
            event.container.schedule(0.02, self)
            while self._unsettled and self._unsettled[0][0] <= time.monotonic():
                delivery = self._unsettled.pop(0)[1]
                delivery.update(proton.Delivery.ACCEPTED)
                delivery.settle()
            while self.script.answers_drain and self._undrained:
                self._undrained.pop().drained()

    def on_connection_bound(self, event: Any) -> None:
        if self.script.idle_timeout_ms:
            event.transport.idle_timeout = self.script.idle_timeout_ms / 1_000

    def on_connection_opening(self, event: Any) -> None:
        self.desired.append([str(c) for c in event.connection.remote_desired_capabilities or ()])
        if self.script.capability:
            full_sql = [symbol("AMQP_FILTEX_SQL_V1_0")] if self.script.full_sql else []
            event.connection.offered_capabilities = [symbol("AMQP_EVENT_STREAMS_V1_0"), *full_sql]

    def on_link_opening(self, event: Any) -> None:
        script, link = self.script, event.link
        asked = link.remote_properties or {}
        address = link.remote_source.address if link.is_sender else link.remote_target.address
        filters = (_filter_of(link) or {}) if link.is_sender else {}
        self.attached.append(
            {
                "address": address,
                "properties": dict(asked),
                "sender": link.is_sender,
                "filters": {str(name): described.value for name, described in filters.items()},
            }
        )
        if link.is_sender:
            link.source.address = address
            link.target.copy(link.remote_target)
            link.snd_settle_mode = Link.SND_SETTLED if script.settled else Link.SND_UNSETTLED
        else:
            link.target.address = address
            link.source.copy(link.remote_source)
            if script.max_message_size:
                link.max_message_size = script.max_message_size
        refuse = script.refuse
        untaken = [
            f for f in filters.values() if int(f.descriptor) in (512, 513) and int(f.descriptor) not in script.takes
        ]
        if untaken and script.refuses_others is not None:
            refuse = (*script.refuses_others, {})
        if script.refuse_filters is not None and len(filters) > 1:
            refuse = (*script.refuse_filters, {})
        if refuse is not None and address is not None and not address.endswith("$info"):
            link.source.type = link.target.type = proton.Terminus.UNSPECIFIED
            link.condition = proton.Condition(*refuse)
            if script.refuse_once:
                script.refuse = None
            self._refused.add(link.name)
            return
        if script.bind and PARTITION in asked:
            link.properties = {PARTITION: symbol(script.partition)}
        if link.is_sender and script.echo:
            self._echo(link)
        if not link.is_sender:
            link.open()
            link.flow(script.sender_credit)

    def on_link_local_open(self, event: Any) -> None:
        if event.link.name in self._refused:
            event.link.close()

    def _echo(self, link: Any) -> None:
        wanted = _filter_of(link)
        if wanted is None:
            return
        names = self.script.echo_names
        wanted = {k: v for k, v in wanted.items() if names is None or str(k) in names}
        wanted = {k: v for k, v in wanted.items() if int(v.descriptor) in self.script.takes | {0x120}}
        if self.script.echo_changed:
            wanted = {k: Described(v.descriptor, {OFFSET: symbol("@latest")}) for k, v in wanted.items()}
        link.source.filter.put_dict(wanted)

    def on_sendable(self, event: Any) -> None:
        self._send(event.link)

    def on_link_flow(self, event: Any) -> None:
        link = event.link
        if link.is_sender and link.state & proton.Endpoint.LOCAL_ACTIVE:
            self._send(link)
            if link.drain_mode:
                self.drains += 1
                if self.script.answers_drain:
                    link.drained()
                else:
                    self._undrained.append(link)

    def on_message(self, event: Any) -> None:
        self._decide(event)
        if len(self.received) == self.script.closes_after:
            closes_with = self.script.closes_with
            event.connection.condition = None if closes_with is None else proton.Condition(*closes_with)
            event.connection.close()

    def _decide(self, event: Any) -> None:
        self.received.append(bytes(event.message.body))  # the body is a view of proton's memory
        deny = self.script.deny_outcome
        verdict = deny(len(self.received) - 1) if deny is not None else None
        if isinstance(verdict, proton.Condition):
            event.delivery.local.condition = verdict
            event.delivery.update(proton.Delivery.REJECTED)
        elif verdict == "hold":
            return
        elif self.script.outcomes_after_s:
            self._unsettled.append((time.monotonic() + self.script.outcomes_after_s, event.delivery))
            return
        else:
            event.delivery.update(verdict if verdict is not None else proton.Delivery.ACCEPTED)
        event.delivery.settle()
        event.receiver.flow(1)

    def on_rejected(self, event: Any) -> None:
        self.outcomes.append(("rejected", event.delivery.remote.condition))

    def on_accepted(self, event: Any) -> None:
        self.outcomes.append(("accepted", None))

    def on_link_closing(self, event: Any) -> None:
        self.detached.append(event.link.remote_condition)

    def on_link_error(self, event: Any) -> None:
        self.detached.append(event.link.remote_condition)

    # --- what it serves

    def _send(self, link: Any) -> None:
        script = self.script
        address = link.source.address or ""
        if address.endswith("/$info"):
            if script.answers_info and link.credit and link.name not in self._position:
                self._position[link.name] = 1
                self._deliver(link, Message(body=self._info(), inferred=False))
            return
        position, last = self._position.setdefault(link.name, 0), self._sent + (script.closes_behind or 0)
        matches = (lambda offset: True) if script.ignore_filter else _matcher(_filter_of(link), script)
        while link.credit > 0 and position < len(script.events):
            offset, body = script.events[position]
            position += 1
            if not matches(offset):
                continue
            self._position[link.name] = position
            if script.detach_after is not None and self._sent >= script.detach_after[0]:
                condition = script.detach_after[1]
                self._position[link.name] = len(script.events)
                script.detach_after = None
                link.condition = proton.Condition(*condition) if condition is not None else None
                if script.detach_closed:
                    link.close()
                else:
                    link._update_cond()  # proton's Link.detach sends no condition, its close does
                    link.detach()
                return
            self._sent += 1
            annotations: dict[Any, Any] = {OFFSET: symbol(offset), TIMESTAMP: timestamp(1_000)}
            if script.source_partition is not None:
                annotations[SOURCE] = symbol(script.source_partition)
            self._deliver(link, Message(body=body, instructions=annotations, inferred=True))
            if self._sent == last:
                link.connection.condition = proton.Condition("amqp:connection:forced", "for maintenance")
                link.connection.close()
                return
        self._position[link.name] = position

    def _deliver(self, link: Any, message: Message) -> None:
        delivery = link.delivery(link.delivery_tag())
        link.stream(message.encode())
        link.advance()
        if self.script.settled:
            delivery.settle()

    def _info(self) -> dict[Any, Any]:
        script = self.script
        earliest = script.earliest if script.earliest is not None else script.events[0][0] if script.events else None
        latest = script.latest if script.latest is not None else script.events[-1][0] if script.events else None
        entry: dict[Any, Any] = {
            "partition": symbol(script.partition),
            "earliest-offset": None if earliest is None else symbol(earliest),
            "latest-offset": None if latest is None else symbol(latest),
            **script.partition_extra,
        }
        return {"partitions": [entry], **script.info_extra}


def _filter_of(link: Any) -> Any:
    wanted = link.remote_source.filter
    wanted.rewind()
    return wanted.get_object() if wanted.next() is not None else None


def _matcher(wanted: Any, script: Script) -> Callable[[str], bool]:
    described = wanted[symbol("start")] if wanted else None
    if described is None or int(described.descriptor) not in script.takes:
        return lambda offset: False
    if described.descriptor == ulong(513):
        field, comparison, literal = described.value.split(" ", 2)
        if field == f"d.{TIMESTAMP}":
            return lambda offset: comparison == ">=" and int(literal) <= 1_000
        after = "" if literal == "'@earliest'" else literal[1:-1].replace("''", "'")
        inclusive = comparison == ">=" and not script.excludes_start
        return lambda offset: offset > after or (offset == after and inclusive)
    if TIMESTAMP in described.value:
        return lambda offset: described.value[TIMESTAMP] < 1_000
    after = described.value[OFFSET]
    return lambda offset: after == "@earliest" or offset > after
