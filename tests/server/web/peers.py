"""Clients of every door, for tests of what the doors tell: each with a reader, a writer and a place that is kept."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from proton import Described, Terminus, symbol, ulong

from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig
from tests.real_rabbitmq.by_hand import FIRST, STORE_OFFSET, Peer, plain, text
from tests.server.amqp.raw_peer import EARLIEST, EPOCH, GROUP, PARTITION
from tests.server.amqp.raw_peer import Peer as AmqpPeer
from tests.server.long_timeouts import LONG_TIMEOUTS
from tests.server.web.conftest import Window

USERS = {"ann": "secret of ann", "bob": "secret of bob"}
TIMEOUT_S = 60
_SELECTOR = symbol("apache.org:selector-filter:string")


def doors(users: dict[str, str] = USERS) -> tuple[Any, ...]:
    """All doors, which let in these users."""
    given: dict[str, Any] = {"port": 0, "users": users, **LONG_TIMEOUTS}
    return AmqpConfig(**given, unassigned="wait"), RabbitConfig(**given), FeedConfig(**given), EventHubsConfig(**given)


def hub_url(window: Window) -> str:
    """Where the Event Hubs door listens, as an AMQP client is told it."""
    where = window.server.urls["event-hubs"].partition("Endpoint=")[2].partition(";")[0]
    return f"amqp://{urlsplit(where).netloc}"


class Peers:
    """Connections that a test opens, by user, and that end with it.

    Args:
        window: the log that they go to.
    """

    def __init__(self, window: Window, stack: ExitStack) -> None:
        self._window = window
        self._stack = stack

    def amqp(self, user: str = "ann", url: str | None = None, **options: Any) -> AmqpPeer:
        """A connection to the AMQP door, or to another url."""
        peer = AmqpPeer(url or self._window.server.urls["amqp"], username=user, password=USERS[user], **options)
        self._stack.callback(peer.close)
        return peer

    def rabbit(self, user: str = "ann") -> Peer:
        """A connection to the RabbitMQ door."""
        url = urlsplit(self._window.server.urls["rabbitmq-stream"])
        peer = Peer(f"{url.scheme}://{url.netloc}")
        peer.user, peer.password = user, USERS[user]
        self._stack.callback(peer.close)
        return peer.open()

    def feed(self, user: str = "ann") -> requests.Session:
        """A connection to the FeedAPI door, which lasts from the first request on."""
        session = requests.Session()
        session.auth = user, USERS[user]
        session.headers["User-Agent"] = "reader/7"
        self._stack.callback(session.close)
        return session

    # --- what they do

    def publish_by_feed(self, session: requests.Session, count: int, stream: str = "orders") -> None:
        """Store events by a request."""
        lines = b"".join(b'{"event": {"n": %d}}\n' % number for number in range(count))
        url = f"{self._window.server.urls['feedapi']}/{stream}"
        answer = session.post(url, lines, headers={"Content-Type": "application/x-ndjson"}, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text

    def send_by_amqp(self, count: int, stream: str = "orders", user: str = "ann") -> Any:
        """Store events by a link that stays, bound to partition 0."""
        sender = self.amqp(user).sender(stream, properties={PARTITION: symbol("0")}, name="invoices")
        sender.send_all([b"x" * 10] * count)
        return sender

    def read_by_amqp(self, taken: int, stream: str = "orders", user: str = "ann", epoch: int = 3) -> Any:
        """Take events as a member of group ``billing`` on partition 0."""
        properties = {GROUP: "billing", PARTITION: symbol("0"), EPOCH: ulong(epoch)}
        receiver = self.amqp(user, container="till").receiver(stream, properties=properties, filter=EARLIEST)
        receiver.take(taken)
        return receiver

    def read_group(self, stream: str, name: str, group: str = "g", user: str = "ann") -> Any:
        """A member of a group, on whichever partition is free."""
        return self.amqp(user).receiver(stream, properties={GROUP: group}, name=name)

    def wait_in_group(self, stream: str, name: str, group: str = "g", user: str = "ann") -> Any:
        """A member of a group that waits until a partition is free."""
        peer = self.amqp(user)
        waiting = peer.attach_receiver(stream, properties={GROUP: group}, name=name)
        peer.receiver(stream)  # the door has had the attach: it answers in order
        return waiting

    def leave_durable(self, taken: int, stream: str = "orders", user: str = "ann") -> None:
        """Take events of partition 0 by a durable link, and go."""
        peer = self.amqp(user, container="archive")
        options: dict[str, Any] = {"durability": Terminus.DELIVERIES, "expiry": Terminus.EXPIRE_NEVER}
        receiver = peer.receiver(stream, properties={PARTITION: symbol("0")}, filter=EARLIEST, name="year", **options)
        receiver.take(taken)
        peer.close()

    def read_hub(self, taken: int, hub: str = "orders", user: str = "ann") -> Any:
        """Take events of partition 0 of a hub, with an epoch."""
        peer = self.amqp(user, hub_url(self._window))
        start = {_SELECTOR: Described(_SELECTOR, "amqp.annotation.x-opt-offset > '-1'")}
        receiver = peer.receiver(
            f"{hub}/ConsumerGroups/$Default/Partitions/0",
            filter=start,
            properties={symbol("com.microsoft:epoch"): 5},
        )
        receiver.take(taken)
        return receiver

    def send_to_hub(self, count: int, hub: str = "orders", user: str = "ann") -> None:
        """Store events of partition 0 of a hub by a sender that stays, one after the other."""
        sender = self.amqp(user, hub_url(self._window)).sender(f"{hub}/Partitions/0")
        for _ in range(count):
            sender.send(b"z" * 10)

    def publish_by_rabbit(self, count: int, stream: str = "orders-0", user: str = "ann") -> Peer:
        """Store events by a publisher that stays."""
        peer = self.rabbit(user)
        assert peer.declare(1, stream, "shop") == 1
        peer.publish(1, [plain(number, b"y" * 10) for number in range(1, count + 1)])
        assert len(peer.confirmed(count)) == count
        return peer

    def read_by_rabbit(self, stored: int, stream: str = "orders-0", user: str = "ann") -> Peer:
        """Read everything by a subscription named ``mail``, which stores an offset."""
        peer = self.rabbit(user)
        assert peer.subscribe(1, stream, FIRST, 100, {"name": "mail"}) == 1
        peer.send(STORE_OFFSET, text("mail") + text(stream) + struct.pack(">Q", stored))
        peer.barrier(stream)
        return peer


@contextmanager
def connected(window: Window) -> Iterator[Peers]:
    """Connect clients to a log, and disconnect them at the end."""
    with ExitStack() as stack:
        yield Peers(window, stack)
