"""A scripted RabbitMQ whose queues lose what a receiver accepts, or lets it settle (Q-5, Q-17)."""

from __future__ import annotations

from typing import Any

from proton import Condition, Delivery, Event, Link, Message, symbol, timestamp, ulong

from spark_streams.wire.amqp.dialects.rabbitmq import START
from tests.client.amqp.fake_node import FakeNode, Script, refuse


def message(number: int, offset: int | None) -> bytes:
    """Return an encoded message of a queue; with an offset, of a stream whose broker tells times."""
    annotations = {symbol("x-routing-key"): "q"}
    if offset is not None:
        annotations |= {symbol("x-stream-offset"): offset}
        annotations |= {symbol("x-opt-rabbitmq-received-time"): timestamp(1_000 * offset)}
    return bytes(Message(body=b"m%d" % number, inferred=True, annotations=annotations).encode())


class FakeRabbit(FakeNode):
    """Serves ``/queues/q`` on a free loopback port until closed.

    Args:
        queue: the messages of the queue.
        version: of the broker.
        answer: the status and the body by which ``/management`` answers; None where it refuses the link.
        settles: whether it settles what it sends, whatever the client asks for.
        is_stream: whether it keeps what is accepted.
        not_shown: the number of a message of the stream that it cannot show; None for none. No other one matches SQL.
        ends: what it ends there, ``session`` or ``connection``.

    Attributes:
        sent: how many messages it has sent.
        asked: how often ``/management`` was asked.
    """

    def __init__(
        self,
        queue: list[bytes],
        *,
        version: str = "4.3.6",
        answer: tuple[str, Any] | None = None,
        settles: bool = False,
        is_stream: bool = False,
        not_shown: int | None = None,
        ends: str = "session",
    ) -> None:
        self.queue = list(queue)
        self.version, self.answer, self.settles, self.is_stream = version, answer, settles, is_stream
        self.not_shown, self.ends = not_shown, ends
        self.sent = self.asked = 0
        self._under_way: dict[Any, bytes] = {}
        super().__init__(Script(capability=False))

    def _react(self, happened: Any, connection: Any, sent: dict[str, int]) -> None:
        if happened.type == Event.CONNECTION_REMOTE_OPEN:
            connection.properties = {symbol("product"): "RabbitMQ", symbol("version"): self.version}
        super()._react(happened, connection, sent)

    def _attached(self, link: Any) -> None:
        address = (link.remote_source if link.is_sender else link.remote_target).address
        if address == "/management" and self.answer is None:
            refuse(link, "amqp:unauthorized-access", "not you")
            return
        super()._attached(link)
        if self.settles:
            link.snd_settle_mode = Link.SND_SETTLED

    def _deliver(self, link: Any, sent: dict[str, int]) -> None:
        if link.remote_source.address == "/management":
            return
        at = sent.setdefault(link.name, self._first(link))
        filtered = "sql-filter" in self._filters[link.name]
        reached = len(self.queue) if filtered and link.credit else at + link.credit
        if self.not_shown is not None and at <= self.not_shown < reached:
            ended = link.session if self.ends == "session" else link.session.connection
            ended.condition = Condition("amqp:internal-error", "{badmatch,[{some,erlang}]}")
            ended.close()
            return
        at = reached if filtered else at
        while link.credit > 0 and at < len(self.queue):
            taken = self.queue[at] if self.is_stream else self.queue.pop(0)
            at += self.is_stream
            self.sent += 1
            delivery = link.delivery(f"d{self.sent}")
            link.stream(taken)
            link.advance()
            if link.snd_settle_mode == Link.SND_SETTLED:
                delivery.settle()
            elif not self.is_stream:
                self._under_way[delivery.tag] = taken
        sent[link.name] = at
        if link.drain_mode:
            link.drained()

    def _first(self, link: Any) -> int:
        start = self._filters[link.name][START]
        return int(start.value) if self.is_stream and isinstance(start.value, ulong) else 0

    def _delivered(self, link: Any, delivery: Any) -> None:
        if link.is_sender:
            kept = self._under_way.pop(delivery.tag, None)
            if kept is not None and delivery.remote_state == Delivery.RELEASED:
                self.queue.insert(0, kept)
            super()._delivered(link, delivery)
            return
        request = Message()
        request.decode(link.recv(delivery.pending))
        link.advance()
        delivery.settle()
        self.asked += 1
        assert self.answer is not None
        answers = link.session.connection.link_head(0)
        while answers.name != link.name or not answers.is_sender:
            answers = answers.next(0)
        reply = answers.delivery(f"a{self.asked}")
        answers.stream(Message(correlation_id=request.id, subject=self.answer[0], body=self.answer[1]).encode())
        answers.advance()
        reply.settle()
