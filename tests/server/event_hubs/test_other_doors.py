"""One log behind all doors: what Microsoft's client sends the others give, and the other way round; and who may in.

The contract is docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import proton
import pyarrow as pa
import pytest
from azure.eventhub import EventData
from proton import Link

from spark_streams.client import RabbitClient, RabbitPublishing, RangeRead, TaskPublisher, encode_columns
from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
from spark_streams.position import EARLIEST
from tests.certificate_authority import Authority
from tests.server.amqp.raw_links import Receiver
from tests.server.amqp.raw_peer import Ended, Refused
from tests.server.event_hubs.conftest import HUB, Namespace

READ = f"{HUB}/ConsumerGroups/$Default/Partitions/0"


def test_rabbitmqs_door_gives_what_the_sdk_sent_and_takes_what_it_reads(namespace: Namespace) -> None:
    namespace.create(partitions=2)
    for partition in ("0", "1"):
        event = EventData(f"in {partition}")
        event.properties = {"color": "red"}
        namespace.send(event, partition_id=partition)
    namespace.send("keyed", partition_key="k1")
    endpoint = parse_url(namespace.server.rabbit_url, schemes=RABBITMQ_SCHEMES)
    found: dict[str, list[dict[str, Any]]] = {}
    with RabbitClient(endpoint, super_stream=True) as client:
        for stream, bounds in client.describe(HUB).partitions.items():
            assert bounds.latest is not None
            columns = ("offset", "value", "key", "application_properties")
            read = RangeRead(HUB, stream, EARLIEST, bounds.latest, columns)
            found[stream] = [row for batch in client.fetch(read) for row in batch.to_pylist()]
    first = [rows[0] for rows in found.values()]
    assert [row["value"] for row in first] == [b"in 0", b"in 1"]
    assert all(dict(row["application_properties"]) == {"color": "red"} for row in first)
    (keyed,) = [row for rows in found.values() for row in rows if row["value"] == b"keyed"]
    assert keyed["key"] == "k1"

    publisher = TaskPublisher(endpoint, RabbitPublishing(), None)
    columns = {"value": pa.array([b"by rabbit"], pa.binary()), "key": pa.array(["k2"])}
    publisher.send(encode_columns(columns), f"{HUB}-1", None, str)
    publisher.flush()
    publisher.close()
    last = namespace.receive(namespace.ends()["1"], "1")[-1]
    assert (last.body_as_str(), last.partition_key) == ("by rabbit", b"k2")


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        (Link.SND_UNSETTLED, Link.RCV_FIRST),  # Microsoft's for Python
        (Link.SND_MIXED, Link.RCV_FIRST),  # for JavaScript
        (Link.SND_UNSETTLED, Link.RCV_SECOND),  # for Java
        (Link.SND_SETTLED, Link.RCV_FIRST),  # for .NET
    ],
)
def test_each_clients_way_to_settle(
    namespace: Namespace, make_peer: Callable[..., Any], sender: int, receiver: int
) -> None:
    """Settlement means nothing: no client's way to do it, or not to, stops what follows, and nothing comes again."""
    namespace.create()
    namespace.send(*map(str, range(300)), partition_id="0")
    peer = make_peer(namespace.url)
    link = peer.session.receiver("settling")
    link.source.address = READ
    link.snd_settle_mode, link.rcv_settle_mode = sender, receiver
    link.open()
    receiving = Receiver(peer, link)
    receiving.answered()
    assert link.remote_snd_settle_mode in (sender, Link.SND_UNSETTLED)
    seen: list[bytes] = []
    for settled in (True, False, True):
        seen += [bytes(event.message.body) for event in receiving.take(100, settle=settled)]
    assert seen == [b"%d" % number for number in range(300)]


def test_tls_and_a_certificate_as_the_rule(namespaces: Any, make_peer: Callable[..., Any], tmp_path: Path) -> None:
    ca = Authority(tmp_path, "authority")
    certificate, key = ca.issue("server")
    namespace = namespaces(
        tls_cert=certificate, tls_key=key, tls_client_ca=str(ca.file), users={"ann": "a", "bob": "b"}
    )
    namespace.create()
    assert "UseDevelopmentEmulator" not in namespace.connection_string
    url = namespace.url.replace("amqp://", "amqps://").replace("127.0.0.1", "localhost")
    by_certificate = make_peer(url, username=None, mechanisms="EXTERNAL", tls=ca.context(ca.issue("ann")))
    by_certificate.sender(HUB).send("by certificate")
    by_key = make_peer(url, username="bob", password="b", tls=ca.context())
    (event,) = by_key.receiver(READ).take(1)
    assert event.message.body == "by certificate"
    with pytest.raises(Ended):
        make_peer(url, username="bob", password="wrong", tls=ca.context())


def test_a_link_whose_name_comes_again_is_another_one(namespace: Namespace, make_peer: Callable[..., Any]) -> None:
    """The log keeps nothing of links: each begins where its filter says."""
    namespace.create()
    namespace.send("a", "b", partition_id="0")
    for _ in range(2):
        peer = make_peer(namespace.url, container="the same")
        receiver = peer.receiver(READ, name="the same", durability=proton.Terminus.DELIVERIES)
        assert [bytes(event.message.body) for event in receiver.take(2)] == [b"a", b"b"]
        receiver.detach()
    with pytest.raises(Refused, match="could not be found"):
        peer.receiver("nope/ConsumerGroups/$Default/Partitions/0", name="the same")
