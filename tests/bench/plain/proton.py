"""``plain-proton``: proton's ``MessagingHandler``, as a consumer of all partitions and as a producer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from tests.bench.plain.source import Batches, Plain, Row

WINDOW = 1_000
OFFSET = "event-streams-offset"


class PlainProton(Plain):
    """Options: ``url`` of the log's AMQP door, ``stream``, and for reading ``rows``, all that the stream has."""

    @classmethod
    def name(cls) -> str:
        return "plain-proton"

    def read(self, partition: int) -> Iterator[Row]:
        from proton import Described, symbol, ulong
        from proton.handlers import MessagingHandler
        from proton.reactor import AtMostOnce, Container, Filter

        options, rows = self.options, Batches(int(self.options["rows"]))

        class Consumer(MessagingHandler):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(prefetch=WINDOW)

            def on_start(self, event: Any) -> None:
                connection = event.container.connect(options["url"], allow_insecure_mechs=True)
                everything = {symbol(OFFSET): symbol("@earliest")}
                start = Filter({symbol("start"): Described(ulong(512), everything)})
                event.container.create_receiver(connection, options["stream"], options=[start, AtMostOnce()])

            def on_message(self, event: Any) -> None:
                said = event.message.instructions or {}
                if rows.add((bytes(event.message.body), str(said.get(OFFSET)))):
                    event.connection.close()

        return rows.of(Container(Consumer()).run)

    def write(self, bodies: Iterator[bytes]) -> None:
        from proton import Message
        from proton.handlers import MessagingHandler
        from proton.reactor import Container

        options = self.options

        class Producer(MessagingHandler):  # type: ignore[misc]
            sent = accepted = 0
            all_sent = False

            def on_start(self, event: Any) -> None:
                connection = event.container.connect(options["url"], allow_insecure_mechs=True)
                event.container.create_sender(connection, options["stream"])

            def on_sendable(self, event: Any) -> None:
                credit = event.sender.credit
                some = [] if self.all_sent else list(islice(bodies, credit))
                for body in some:
                    event.sender.send(Message(body=body, inferred=True))
                self.sent += len(some)
                self.all_sent = self.all_sent or len(some) < credit
                self.close_at_end(event)

            def on_accepted(self, event: Any) -> None:
                self.accepted += 1
                self.close_at_end(event)

            def close_at_end(self, event: Any) -> None:
                if self.all_sent and self.accepted == self.sent:
                    event.connection.close()

        Container(Producer()).run()
