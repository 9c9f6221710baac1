"""Where doors listen, for peers that know nothing of connection strings."""

from __future__ import annotations


def plain_url(url: str) -> str:
    """Return a door's url; of a connection string of Event Hubs the endpoint, as AMQP."""
    return url.partition(";")[0].replace("Endpoint=sb://", "amqp://").rstrip("/")
