"""The base class of attached links, and the interfaces of the node and the connection that links use."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.consumer_groups import Groups
from spark_streams.server.amqp.durable_termini import Termini
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.server.amqp.link_states import LinkInput
from spark_streams.server.amqp.placement import Placement
from spark_streams.server.amqp.receive_buffer import ReceiveBuffer
from spark_streams.server.amqp.transfer_block import BlockReader
from spark_streams.server.appender import Appender
from spark_streams.server.partition_readers import PartitionReaders
from spark_streams.server.turns import Worker


class LinkResources:
    """The objects that all links of a node share.

    Args:
        log: the served log.
        config: the door's settings.
        loop: the server's.

    Attributes:
        config: the door's settings.
        readers: the readers of the partitions that consumers read.
        termini: positions of durable links.
        groups: consumer groups.
        placement: which partitions are served here.
        receive_buffer: the buffer in which producers' messages are assembled.
        appender: appends these messages.
        worker: the worker thread, which reads large messages.
    """

    def __init__(self, log: ReferenceLog, config: AmqpConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self.config = config
        self.readers = PartitionReaders(loop, BlockReader)
        self.termini = Termini(log, loop, config.max_durable_links)
        self.groups = Groups(log, config.reset_epoch, config.max_groups)
        self.placement = Placement(config)
        self.receive_buffer = ReceiveBuffer(config.max_message_bytes)
        self.appender = Appender(loop, off_loop=log.config.fsync == "always")
        self.worker = Worker("spark-streams-amqp")

    def is_there(self, stream: str, incarnation: str) -> bool:
        """Return whether a stream is still the one that a link was attached to."""
        try:
            return self._log.stream(stream).incarnation == incarnation
        except UnknownStream:
            return False

    def close(self) -> None:
        """Finish work that has begun, and write durable state."""
        self.worker.close()
        self.appender.close()
        self.termini.close()


class LinkHost(Protocol):
    """The interface of a connection that links and their node use.

    Attributes:
        user: the peer's user.
        container: the peer's container-id.
        write_paused: whether the socket accepts no more bytes.
    """

    user: str
    container: str
    write_paused: bool

    @property
    def link_count(self) -> int:
        """How many links the connection has, refused ones not counted."""

    @property
    def full(self) -> bool:
        """Whether links must accept no more messages."""

    def serve(self, attached: AttachedLink, link_input: LinkInput) -> None:
        """Serve a link from now on; ``ACCEPT``, or ``NO_PARTITION`` for an attach that waits."""

    def refuse(self, link: Any, refusal: LinkRefused) -> None:
        """Refuse the attach of a ``proton.Link``."""

    def close_link(self, link: Any, refusal: LinkRefused | None) -> None:
        """Close an attached ``proton.Link``, with an error or without."""

    def wake(self, link: AttachedLink | None = None) -> None:
        """Queue a turn of this connection, and serve a link in it."""

    def blocked(self, link: AttachedLink) -> None:
        """Serve a link again when bytes have been written."""

    def unfinished(self, more_bytes: int) -> None:
        """Count bytes of messages of which only some frames have come."""

    def storing(self, more_bytes: int) -> None:
        """Count bytes of messages that are being stored."""

    def guarded(self, function: Callable[[], None]) -> None:
        """Call a function of this connection from outside of it: an exception ends this connection only."""


class AttachedLink(abc.ABC):
    """Serves one link.

    Args:
        connection: its connection.
        link: the ``proton.Link``, opened on both sides.
        log_stream: the log; None for a link without a log.

    Attributes:
        stream: the name of the log; empty for a link without a log.
        incarnation: the log's incarnation.
        ended: whether it has released what it held, and serves no more.
        on_end: functions that are called when it ends.
    """

    def __init__(self, connection: LinkHost, link: Any, log_stream: Stream | None) -> None:
        self.connection = connection
        self.link = link
        self.stream = "" if log_stream is None else log_stream.name
        self.incarnation = "" if log_stream is None else log_stream.incarnation
        self.ended = False
        self.on_end: list[Callable[[], None]] = []

    @abc.abstractmethod
    def serve(self) -> bool:
        """Do a bounded part of the work that is due; return whether there is more to do at once."""

    def updated(self, delivery: Any) -> None:  # noqa: B027  only consumers have outgoing deliveries to follow
        """Handle a new state that the peer gave an outgoing delivery (a C pointer)."""

    def follow(self) -> None:  # noqa: B027  only agnostic consumers care
        """Handle a possible change of the log's partitions."""

    def take_input(self) -> None:  # noqa: B027  only producers have input
        """Take all messages that have come in, because the link is about to end."""

    def end(self, *, closed: bool) -> None:
        """Release what the link holds; nothing is sent after this.

        Args:
            closed: whether the peer closed the link, and with it the terminus; False: the link was detached or lost.
        """
        if not self.ended:
            self.ended = True
            self._released(closed=closed)
            for done in self.on_end:
                done()

    @abc.abstractmethod
    def _released(self, *, closed: bool) -> None:
        """Release what the link holds."""

    def fail(self, refusal: LinkRefused) -> None:
        """Close the link with an error."""
        self._close(refusal)

    def close(self) -> None:
        """Close the link without an error."""
        self._close(None)

    def _close(self, refusal: LinkRefused | None) -> None:
        if not self.ended:
            self.end(closed=False)
            self.connection.close_link(self.link, refusal)
            self.connection.wake()
