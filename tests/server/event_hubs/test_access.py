"""What a token covers: every form that Microsoft's clients sign, and nothing that is not understood."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from itertools import product
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pytest

from spark_streams.server import EventHubsConfig
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.server.event_hubs.access import Access, WrongToken
from spark_streams.server.event_hubs.addresses import read_address
from spark_streams.server.event_hubs.door import HubNode
from spark_streams.wire.amqp.cbs import SIGNATURE_TYPE
from tests.server.event_hubs.conftest import sas

HUB = "Orders"
DEEP = f"{HUB}/ConsumerGroups/$Default/Partitions/0"
# What each client put to this door's $cbs for hub "Orders", as it stood in the token, and the address that it then
# attached to, or asked about. "localhost" was the host, and 5673 the port of the connection string.
SIGNED = [
    # azure-eventhub 5.15.1 (Python): producer, properties; consumer
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders", HUB),
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders", f"{HUB}/Partitions/0"),
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders%2Fconsumergroups%2F%24Default", DEEP),
    # @azure/event-hubs 6.0.4 (JavaScript)
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders", HUB),
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders%2FPartitions%2F0", f"{HUB}/Partitions/0"),
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders%2F%24management", f"{HUB}/$management"),
    ("sb%3A%2F%2Flocalhost%3A5673%2FOrders%2FConsumerGroups%2F%24Default%2FPartitions%2F0", DEEP),
    # azeventhubs v1.3.2 (Go)
    ("amqp%3a%2f%2flocalhost%3a5673%2forders", HUB),
    ("amqp%3a%2f%2flocalhost%3a5673%2forders%2fpartitions%2f0", f"{HUB}/Partitions/0"),
    ("amqp%3a%2f%2flocalhost%3a5673%2forders%2f%24management", f"{HUB}/$management"),
    ("amqp%3a%2f%2flocalhost%3a5673%2forders%2fconsumergroups%2f%24default%2fpartitions%2f0", DEEP),
    # com.azure:azure-messaging-eventhubs 5.20.3 (Java)
    ("amqp%3A%2F%2Flocalhost%2FOrders", HUB),
    ("amqp%3A%2F%2Flocalhost%2FOrders%2FPartitions%2F0", f"{HUB}/Partitions/0"),
    ("amqp%3A%2F%2Flocalhost%2FOrders%2FConsumerGroups%2F%24Default%2FPartitions%2F0", DEEP),
    # Azure.Messaging.EventHubs (.NET), read in EventHubConnection.BuildAudienceResource at 013d2ead, not recorded
    ("amqps%3a%2f%2fns.servicebus.windows.net%2forders", DEEP),
    ("wss%3a%2f%2fns.servicebus.windows.net%2forders", HUB),
    # Scripts: a host without a scheme; the whole namespace; what a device may have
    ("ns.servicebus.windows.net%2forders", DEEP),
    ("sb%3A%2F%2Fns.servicebus.windows.net%2F", DEEP),
    ("https%3a%2f%2f127.0.0.1", HUB),
    ("sb%3A%2F%2F%5B%3A%3A1%5D%3A5673", HUB),
    ("sb%3A%2F%2Flog%2FOrders", f"{HUB}/Publishers/device-7"),
    ("sb%3A%2F%2Flog%2FOrders%2FPublishers%2Fdevice-7", f"{HUB}/Publishers/device-7"),
]
NOT_UNDERSTOOD = [
    *("Orders", "/Orders", "Orders/Partitions/0", "sb://Orders", "sb://Orders/", "sb://Orders:5673", "sb:Orders"),
    *("urn:Orders", "urn:ns.x:Orders", "sb:///Orders", "sb%3A%2F%2Flocalhost%2FOrders", "sb://localhost%2FOrders"),
    *(
        "orders.v9",
        "sb://orders.v9",
        "sb://orders.v9/",
        "sb://orders.v9:5673",
        "orders.v9/eu",
        "orders.v9/Partitions/0",
    ),
    *(
        "sb://ns.x//",
        "sb://localhost//",
        "sb://localhost//Orders",
        "localhost//",
        "ns.servicebus.windows.net//",
        "[::2]",
    ),
    *("sb://log.", "10.0.0.7", "sb://[log.x]", "sb://[localhost.x]/", "sb://127.0.0.1.x/", "servicebus.windows.net"),
    *(
        "sb://x.servicebus.windows.net.evil.example",
        "sb://x.servicebus.evil.example",
        "sb://127.0.0.1%25x",
        "sb://[::1%25x]/",
        "log",
        "sb://log/",
    ),
    *("sb://user@localhost/Orders", "sb://localhost?/Orders", "Orders/eu", "", " ", "sb://", "*", "sb://*"),
]


def access(*streams: str, host: str = "127.0.0.1") -> Access:
    """The access of a peer that puts tokens, at a log of these streams whose door has this host."""
    there = {name: SimpleNamespace(name=name) for name in streams}
    log = SimpleNamespace(find=there.get, streams=lambda: list(there.values()), changes=1)
    node: Any = SimpleNamespace(log=log, _changes=-1)
    config = EventHubsConfig(host=host, port=0, users={"rule": "key"})
    return Access(config, lambda hub: HubNode.find(node, hub), "127.0.0.1", None)


def raw_sas(encoded: str) -> str:
    until = int(time.time()) + 3_600
    signature = base64.b64encode(hmac.new(b"key", f"{encoded}\n{until}".encode(), hashlib.sha256).digest())
    return f"SharedAccessSignature sr={encoded}&sig={quote_plus(signature)}&se={until}&skn=rule"


def opens(of: Access, address: str) -> bool:
    try:
        return set(of.users(read_address(address))) == {"rule"}
    except LinkRefused:
        return False


@pytest.mark.parametrize(("encoded", "address"), SIGNED)
def test_every_form_that_clients_sign_opens_its_hub_and_no_other(encoded: str, address: str) -> None:
    of = access(HUB, "Orders2")
    of.put(raw_sas(encoded), SIGNATURE_TYPE)
    assert opens(of, address) and of.signed_in
    assert opens(of, "Orders2") == (HUB.lower() not in encoded.lower()), (
        "the whole namespace only where no hub is named"
    )


@pytest.mark.parametrize("uri", NOT_UNDERSTOOD)
def test_what_is_not_understood_grants_nothing(uri: str) -> None:
    of = access(HUB, "Partitions", "eu", "0", host="log")
    with pytest.raises(WrongToken):
        of.put(raw_sas(quote_plus(uri)), SIGNATURE_TYPE)
    assert not of.signed_in
    assert not any(opens(of, hub) for hub in (HUB, "Partitions", "eu", "0", f"{HUB}/Partitions/0"))


@pytest.mark.parametrize(
    "uri",
    [
        *("localhost", "sb://LocalHost.:5673/", "https://127.1.2.3", "[0:0::1]", "sb://[::ffff:127.0.0.1]:5673/"),
        *(
            "log.example.com",
            "amqps://Log.Example.com",
            "sb://log.example.com./",
            "sb://ns.servicebus.chinacloudapi.cn",
        ),
    ],
)
def test_the_doors_own_hosts_and_azures_are_the_whole_namespace(uri: str) -> None:
    of = access(HUB, host="log.example.com")
    of.put(sas(uri, "rule", "key"), SIGNATURE_TYPE)
    assert opens(of, HUB) and opens(of, DEEP)


def test_a_hub_where_the_host_belongs_grants_nothing() -> None:
    of = access("orders.eu", "secrets", host="orders.eu")
    of.put(sas("sb://orders.eu/", "rule", "key"), SIGNATURE_TYPE)
    assert not opens(of, "secrets") and not opens(of, "orders.eu")


def test_a_use_costs_the_same_whatever_tokens_and_streams_there_are() -> None:
    found: list[str] = []
    listed: list[int] = []
    there = {name: SimpleNamespace(name=name) for name in (f"stream-{number}" for number in range(300))}
    log = SimpleNamespace(find=there.get, streams=lambda: listed.append(1) or list(there.values()), changes=1)
    node: Any = SimpleNamespace(log=log, _changes=-1)

    def find(hub: str) -> Any:
        found.append(hub)
        return HubNode.find(node, hub)

    of = Access(EventHubsConfig(port=0, users={"rule": "key"}), find, "127.0.0.1", None)
    spelled = ["".join(letters) for letters in product(*zip("stream", "STREAM", strict=True))]
    for uri in (f"sb://h/{name}-{number}" for name in spelled for number in range(15)):
        of.put(sas(uri, "rule", "key"), SIGNATURE_TYPE)
    for number in range(64):
        of.put(sas(f"sb://127.0.0.{number}", "rule", "key"), SIGNATURE_TYPE)
    found.clear()
    for number in range(15):
        assert opens(of, f"Stream-{number}/Partitions/0") and opens(of, f"stream-{number}")
    assert len(found) <= 30 * 4 and len(listed) == 1
    there["STREAM-0"] = SimpleNamespace(name="STREAM-0")
    log.changes += 1
    assert HubNode.find(node, "Stream-0") is None and HubNode.find(node, "Stream-1") is there["stream-1"]
    assert len(listed) == 2


def test_of_one_hub_the_last_token_counts_however_its_name_is_spelled() -> None:
    of, until = access(HUB), time.time() + 100
    for name in ("Orders", "ORDERS", "orders"):
        of.put(sas(f"sb://h/{name}", "rule", "key", until), SIGNATURE_TYPE)
    of.put(sas("sb://h/ORDERS", "rule", "key"), SIGNATURE_TYPE)
    assert of.expires_s is not None and of.expires_s > until + 1_000


def test_a_token_of_a_hub_covers_no_stream_whose_name_begins_alike() -> None:
    of = access("orders", "Orders", "orders/deep", "orders2")
    of.put(sas("sb://localhost/orders", "rule", "key"), SIGNATURE_TYPE)
    covered = ("orders", "orders/Partitions/0", "orders/ConsumerGroups/g/Partitions/0", "orders/Publishers/p")
    assert all(opens(of, address) for address in covered)
    assert not any(opens(of, address) for address in ("Orders", "orders/deep", "orders2", "ORDERS"))
    of.put(sas("sb://localhost/Orders", "rule", "key"), SIGNATURE_TYPE)
    assert opens(of, "Orders") and opens(of, "orders"), "each of them has a token of its own"
    of.put(sas("sb://localhost/orders/deep", "rule", "key"), SIGNATURE_TYPE)
    assert opens(of, "orders/deep/Partitions/0")


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("orders/Partitions/0", "orders"),
        ("orders/Partitions/0", "orders/Partitions/1"),
        ("orders/Partitions/1", "orders/Partitions/11"),
        ("orders/ConsumerGroups/a", "orders/ConsumerGroups/b/Partitions/0"),
        ("orders/Publishers/a", "orders"),
        ("orders/$management", "orders"),
        ("orders/Partitions", "orders/Partitions/0"),
        ("a/b://c/orders", "orders"),
    ],
)
def test_a_token_of_a_part_covers_no_other_part(uri: str, address: str) -> None:
    of = access("orders")
    of.put(sas(f"sb://localhost/{uri}", "rule", "key"), SIGNATURE_TYPE)
    assert not opens(of, address)


def test_the_token_of_a_question_covers_its_hub_alone() -> None:
    of = access(HUB, "Orders2")
    for encoded, address in SIGNED:
        if address in (HUB, f"{HUB}/$management") and HUB.lower() in encoded.lower():
            assert list(of.managers(HUB, raw_sas(encoded))) == ["rule"], unquote_plus(encoded)
            with pytest.raises(LinkRefused):
                of.managers("Orders2", raw_sas(encoded))
