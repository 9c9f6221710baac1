"""A scripted Event Hubs namespace: a node that offers the service's SASL mechanisms and takes tokens over ``$cbs``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proton import Condition, Connection, Message, Transport

from spark_streams.wire.amqp.sasl import SaslServer
from tests.client.amqp.fake_node import FakeNode, Script, refuse

KEY = "geheim-key+/=="
RULE = "listen"


@dataclass(frozen=True)
class Put:
    """A token that a client handed over."""

    name: str
    kind: str
    token: str
    expires_ms: int | None


@dataclass
class Namespace(Script):
    """What the namespace does.

    Args:
        mechanisms: the SASL mechanisms that it offers.
        password: of any user, for PLAIN.
        answer: status and description for a token; None for no answer.
        cbs: called with each link to ``$cbs``; True means that it has answered the attach.
    """

    mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    password: str = KEY
    answer: Callable[[Put], tuple[int, str] | None] = lambda put: (202, "Accepted")
    cbs: Callable[[Any], bool] = lambda link: False
    users: list[str] = field(default_factory=list)


class FakeNamespace(FakeNode):
    """Serves a ``Namespace`` on a free loopback port until closed.

    Attributes:
        put: the tokens, in their order.
        signed_in: mechanism and user of each connection.
        connections: how many there were.
        cbs_links: the links to ``$cbs``.
    """

    def __init__(self, script: Namespace | None = None) -> None:
        self.put: list[Put] = []
        self.signed_in: list[str] = []
        self.connections = 0
        self.cbs_links: list[Any] = []
        self._told = threading.Condition()
        self._closing: list[tuple[Any, Condition]] = []
        self._granted: dict[int, set[str]] = {}
        """The thread of a connection to the hubs that it has tokens for."""
        super().__init__(script or Namespace())

    @property
    def namespace(self) -> Namespace:
        assert isinstance(self.script, Namespace)
        return self.script

    def await_tokens(self, count: int) -> None:
        """Wait until ``count`` tokens have come."""
        with self._told:
            assert self._told.wait_for(lambda: len(self.put) >= count, 60), self.put

    def close_links(self, links: list[Any], condition: Condition) -> None:
        """Have links closed with an error by the thread that serves them."""
        self._closing.extend((link, condition) for link in links)

    def _due(self) -> None:
        while self._closing:
            link, condition = self._closing.pop()
            link.condition = condition
            link.close()

    def _signed_in(self, connected: socket.socket, connection: Connection) -> Any:
        self.connections += 1
        sasl = SaslServer(("PLAIN", "ANONYMOUS"), self._is_right)
        sasl.mechanisms = self.namespace.mechanisms
        while not (sasl.done or sasl.failed):
            received = connected.recv(4096)
            if not received:
                raise ConnectionError("the client left")
            answer = sasl.receive(received)
            if sasl.done:
                self.signed_in.append(f"{sasl.mechanism} {sasl.identity}")
            connected.sendall(answer)
        if sasl.failed:
            connected.recv(4096)
            raise ConnectionError("the password is wrong")
        self._granted[threading.get_ident()] = {""} if sasl.mechanism == "PLAIN" else set()
        transport = Transport(Transport.SERVER)
        transport.bind(connection)
        if sasl.leftover:
            transport.push(sasl.leftover)
        return transport

    def _is_right(self, user: str, password: str) -> bool:
        self.namespace.users.append(user)
        return password == self.namespace.password

    def _attached(self, link: Any) -> None:
        address = (link.remote_source if link.is_sender else link.remote_target).address
        if address == "$cbs":
            self.cbs_links.append(link)
            if self.namespace.cbs(link):
                return
            link.source.copy(link.remote_source)
            link.target.copy(link.remote_target)
            link.open()
            if link.is_receiver:
                link.flow(10)
            return
        granted = self._granted[threading.get_ident()]
        if not any(f"/{address}".startswith(f"/{hub}") for hub in granted):
            refuse(link, "amqp:unauthorized-access", f"no token for '{address}'")
            return
        super()._attached(link)

    def _delivered(self, link: Any, delivery: Any) -> None:
        if link.is_sender or link.remote_target.address != "$cbs":
            super()._delivered(link, delivery)
            return
        if delivery.partial or not delivery.readable:
            return
        request = Message()
        request.decode(link.recv(delivery.pending))
        link.advance()
        delivery.update(delivery.ACCEPTED)
        delivery.settle()
        link.flow(1)
        said = request.properties
        put = Put(said["name"], said["type"], request.body, said.get("expiration"))
        assert said["operation"] == "put-token"
        answer = self.namespace.answer(put)
        if answer is not None:
            if answer[0] in (200, 202):
                hub = put.name.partition("//")[2].partition("/")[2]
                self._granted[threading.get_ident()].add(hub)
            self._reply(link.session.connection, request, *answer)
        with self._told:
            self.put.append(put)
            self._told.notify_all()

    def _reply(self, connection: Any, request: Message, status: int, description: str) -> None:
        reply = Message(
            correlation_id=request.id, properties={"status-code": status, "status-description": description}
        )
        link = connection.link_head(0)
        while link is not None:
            if link.is_sender and link.remote_target.address == request.reply_to and link.credit > 0:
                delivery = link.delivery(f"d{len(self.put)}")
                link.stream(reply.encode())
                link.advance()
                delivery.settle()
                return
            link = link.next(0)
        raise AssertionError(f"no link for {request.reply_to}")

    def _deliver(self, link: Any, sent: dict[str, int]) -> None:
        if link.remote_source.address != "$cbs":
            super()._deliver(link, sent)
