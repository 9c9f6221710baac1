"""Somebody who means well at a door that speaks TLS."""

from __future__ import annotations

import ssl
import struct
from typing import Any
from urllib.parse import urlsplit

import requests

from tests.server.amqp.raw_peer import Peer
from tests.server.hostile.doors import DEADLINE_S, Raw, introduction


def round_trip(door: str, url: str, authority: Any) -> None:
    """Introduce oneself, and be answered."""
    context: ssl.SSLContext = authority.context()
    if door in ("amqp", "event-hubs"):
        peer = Peer(url, tls=context)
        peer.sender("calm").send(b"over TLS", timeout_s=DEADLINE_S)
        peer.close()
    elif door == "feedapi":
        answer = requests.get(f"{url}/calm", verify=str(authority.file), timeout=DEADLINE_S)
        assert answer.status_code == 200
    else:
        raw = Raw(url)
        secured = context.wrap_socket(raw.socket, server_hostname=urlsplit(url).hostname)
        secured.sendall(introduction())
        head = secured.recv(8)
        assert struct.unpack(">IHH", head)[1:] == (0x8011, 1)
        secured.close()
