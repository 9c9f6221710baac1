"""Holds what a peer has shown of itself while its connection was opened, and the dialect that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.client.log_client import PRODUCT
from spark_streams.errors import OptionError, RemoteProtocolError
from spark_streams.wire.amqp.dialects import DIALECTS, EVENT_HUBS, EVENT_STREAMS, RABBITMQ, Dialect, Seen, dialect_of
from spark_streams.wire.amqp.event_streams import CAPABILITY


@dataclass(frozen=True)
class Peer:
    """A peer whose connection is open.

    Args:
        address: ``host:port``, for messages.
        host: the name by which it was called.
        mechanisms: the SASL mechanisms that it offered.
        offered: the capabilities that its open offers.
        properties: its open's properties, ``product`` and ``version`` among them.
        named: the dialect that the user has named; None to recognise it.
        option: the option that gives the peer's address.
    """

    address: str
    host: str
    mechanisms: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    named: Dialect | None = None
    option: str = "url"

    @property
    def shown(self) -> Dialect | None:
        """The dialect that the peer itself shows; None where it shows none."""
        return dialect_of(Seen(self.offered, self.properties.get("product", ""), self.mechanisms, self.host))

    @property
    def recognised(self) -> Dialect | None:
        """The dialect that was named, or that the peer shows; None where it shows none."""
        return self.named or self.shown

    @property
    def dialect(self) -> Dialect:
        """The recognised dialect; else that of event streams, as sending needs no recognised dialect (ES-012)."""
        return self.recognised or EVENT_STREAMS

    @property
    def offers_event_streams(self) -> bool:
        """Whether it offers the capability of event streams (ES-010)."""
        return CAPABILITY in self.offered

    @property
    def is_reference_log(self) -> bool:
        """Whether it is a door of our own log."""
        return self.properties.get("product") == PRODUCT

    @property
    def has_only_logs(self) -> bool:
        """Whether all its addresses are logs, which keep events that are read: our own log, and Event Hubs."""
        return self.is_reference_log or self.shown is EVENT_HUBS

    def check_dialect(self) -> None:
        """Check that the peer's dialect was named or recognised, as no event can be read without it.

        Raises:
            OptionError: the peer shows another dialect than the named one.
            RemoteProtocolError: it shows none of the dialects.
        """
        self._check_named()
        if self.recognised is not None:
            return
        signs = "; ".join(f"'{each.name}' ({each.title}) by {each.sign}" for each in DIALECTS.values())
        raise RemoteProtocolError(
            f"{self.address}: is the peer an event log? Its dialect would show: {signs} (ES-010, ES-012). Seen were "
            f"the capabilities {list(self.offered)}, the product '{self.properties.get('product', '')}' and the SASL "
            f"mechanisms {list(self.mechanisms)}. Set option 'dialect' if it is one of them all the same"
        )

    def _check_named(self) -> None:
        """Check that the named dialect does not differ from the one that the peer shows.

        Raises:
            OptionError: the two differ.
        """
        named, shown = self.named, self.shown
        if named is None or shown is None or named.name == shown.name:
            return
        advice = f"leave it out, or set it to '{shown.name}'"
        if self.option != "url":
            advice = "give its address in option 'url', as amqp://host:port, with 'username' and 'password'"
        raise OptionError(
            "dialect" if self.option == "url" else self.option,
            f"it, or another option that only {named.title} has, chooses dialect '{named.name}', but the peer at "
            f"{self.address} is {shown.title}, as it shows {shown.sign}: {advice}",
        )

    def check_opened(self, vhost: str) -> None:
        """Check the dialect that was named for a RabbitMQ, and that the peer has virtual hosts if the url names one.

        Raises:
            OptionError: the peer has no virtual hosts, or is a RabbitMQ for which another dialect was named.
        """
        if self.shown is RABBITMQ:
            self._check_named()
        if vhost != "/" and not self.dialect.virtual_hosts:
            raise OptionError(
                "url",
                f"it names the virtual host '{vhost}', and the peer at {self.address} is no RabbitMQ: leave out what "
                "follows the host; the stream goes into option 'stream'",
            )
