"""Attaches the receivers of one client, and remembers which filters its peer does not accept.

A receiver needs a filter for the position where it begins; the peer may accept only one kind of it (A-21). It may also
refuse the pushed filters: then the client attaches without them, and checks the whole filter itself.

Spec: Event Stream Extensions §4.5 (consumer groups, epochs), §5.2 (filters).
"""

from __future__ import annotations

import logging
from typing import Final

from spark_streams.client.amqp.connections import Reached
from spark_streams.client.amqp.links import Binding, Link, StartRefused, attach_receiver
from spark_streams.client.amqp.pushdown import PushedFilter, is_about_filters, nothing_pushed
from spark_streams.errors import Refused, SparkStreamsError
from spark_streams.filters.tree import Expression
from spark_streams.wire.amqp.dialects.dialect import StartFilter

_log = logging.getLogger(__name__)
_NOTHING: Final = nothing_pushed(None)


class Receivers:
    """Attaches receivers."""

    def __init__(self) -> None:
        self.refused: set[Expression | None] = set()
        """The filters that the peer refused; the client does not push them again."""
        self._untaken: set[object] = set()
        """Descriptors of the start filters that the peer did not accept; the client tries them last from then on."""

    def attach(
        self,
        to: Reached,
        binding: Binding,
        starts: tuple[StartFilter, ...],
        pushed: PushedFilter = _NOTHING,
        *,
        reads: bool = False,
    ) -> Link:
        """Attach a receiver with the first of ``starts`` that the peer accepts.

        A refusal may concern any of the filters: then the client tries again without the pushed ones.

        Args:
            to: the connection to the peer, and the source address if it is not the dialect's for the binding.
            binding: what the link is bound to, with a partition.
            starts: filters for one position, the preferred one first.
            pushed: the filter of the events; its part that the client checks becomes the link's ``residual``.
            reads: as for ``attach_receiver``.

        Raises:
            StartRefused, Refused: the peer accepts none of ``starts``; the error is that of the first tried.
            RemoteProtocolError: the peer shows no dialect of event logs, or bound the link to another partition.
            NotFound, OwnershipLost, Refused, LinkRedirected: the peer refused the link.
            DeadlineExceeded: the peer did not answer in time.
        """
        connection = to.connection
        connection.peer.check_dialect()
        own = connection.dialect.source_address(binding.stream, binding.partition, binding.consumer_group)
        address = to.at or own
        first: SparkStreamsError | None = None
        for start in sorted(starts, key=lambda each: each.filter.descriptor in self._untaken):
            try:
                link = attach_receiver(connection, address, binding, start=start, also=pushed.filters, reads=reads)
            except (StartRefused, Refused) as fault:
                if isinstance(fault, Refused) and not is_about_filters(fault):
                    raise
                if isinstance(fault, Refused) and pushed.filters:
                    _log.warning("%s: reading goes on without asking the peer to filter", fault)
                    link = self.attach(to, binding, starts, nothing_pushed(pushed.whole), reads=reads)
                    self.refused.add(pushed.whole)
                    return link
                first = first or fault
                continue
            if first is not None:
                self._untaken = {each.filter.descriptor for each in starts} - {start.filter.descriptor}
            link.residual = pushed.residual if pushed.in_force(link.taken) else pushed.whole
            return link
        assert first is not None
        raise first
