"""Links of the Event Hubs door, by a peer that says what no SDK says: addresses, filters, epochs, tokens, requests.

The contract is docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

import proton
import pytest
from proton import Described, symbol, ulong

from spark_streams.server import Permissions
from tests.server.amqp.raw_peer import Refused
from tests.server.event_hubs.conftest import HUB, WAIT_S, Namespace, sas

READ = f"{HUB}/ConsumerGroups/$Default/Partitions/0"
SELECTOR = "apache.org:selector-filter:string"
SAS_TYPE = "servicebus.windows.net:sastoken"


def selector(text: Any, descriptor: Any = None) -> dict[Any, Any]:
    return {symbol(SELECTOR): Described(symbol(SELECTOR) if descriptor is None else descriptor, text)}


@pytest.fixture
def peer(namespace: Namespace, make_peer: Callable[..., Any]) -> Any:
    """A peer that has signed in with SASL PLAIN, and a hub of one partition with events a, b, c."""
    namespace.create()
    made = make_peer(namespace.url)
    made.sender(HUB).send_all(["a", "b", "c"])
    return made


def refused(link: Any) -> Refused:
    """Return the error with which the door ends a link that was attached."""
    with pytest.raises(Refused) as caught:
        link.answered()
    return caught.value


def bodies(receiver: Any, count: int) -> list[Any]:
    return [each.message.body for each in receiver.take(count)]


# --- addresses, groups, positions


@pytest.mark.parametrize(
    "address",
    [READ, f"{HUB}/consumergroups/$default/partitions/0", f"/{READ}/", f"amqps://ns.servicebus.windows.net/{READ}"],
)
def test_the_fixed_words_of_an_address_have_no_case(peer: Any, address: str) -> None:
    assert bodies(peer.receiver(address), 3) == ["a", "b", "c"], "without a filter: all"


@pytest.mark.parametrize("descriptor", [symbol(SELECTOR), ulong(0x0000468C00000004), ulong(0x000001370000000A)])
def test_each_descriptor_of_a_selector_is_known(peer: Any, descriptor: Any) -> None:
    found = peer.receiver(READ, filter=selector("amqp.annotation.x-opt-sequence-number > '0'", descriptor))
    assert bodies(found, 2) == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("amqp.annotation.x-opt-sequence-number > '9'", "com.microsoft:argument-error"),
        ("amqp.annotation.x-opt-offset > '9'", "com.microsoft:argument-error"),
        ("amqp.annotation.x-opt-offset > 'nine'", "com.microsoft:argument-error"),
        ("amqp.annotation.x-opt-enqueued-time > 'nine'", "com.microsoft:argument-error"),
        ("amqp.annotation.x-opt-enqueued-time < '9'", "amqp:invalid-field"),
        ("color = 'red'", "amqp:invalid-field"),
        (7, "amqp:invalid-field"),
    ],
)
def test_a_position_that_is_none(peer: Any, text: Any, name: str) -> None:
    error = refused(peer.attach_receiver(READ, filter=selector(text)))
    assert error.condition == name
    if "x-opt-offset > '9'" in str(text):
        assert error.description == f"The supplied offset '9' is invalid. The last offset in the system is '{2:020d}'"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (HUB, "amqp:not-found"),
        (f"{HUB}/Partitions/0", "amqp:not-found"),
        ("nope/ConsumerGroups/$Default/Partitions/0", "amqp:not-found"),
        (f"{HUB}/ConsumerGroups/$Default/Partitions/7", "com.microsoft:argument-out-of-range"),
    ],
)
def test_what_cannot_be_read(peer: Any, address: str, name: str) -> None:
    error = refused(peer.attach_receiver(address))
    assert error.condition == name
    assert address.rpartition("/")[2] in error.description or "could not be found" in error.description


def test_groups_that_are_there(namespaces: Any, make_peer: Callable[..., Any]) -> None:
    namespace = namespaces(groups=frozenset({"Billing"}))
    namespace.create()
    peer = make_peer(namespace.url)
    for group in ("billing", "$Default"):
        peer.receiver(f"{HUB}/ConsumerGroups/{group}/Partitions/0")
    error = refused(peer.attach_receiver(f"{HUB}/ConsumerGroups/nope/Partitions/0"))
    assert error.condition == "amqp:not-found" and "nope" in error.description


def test_only_the_selector_that_is_in_force_is_echoed(peer: Any) -> None:
    chosen = selector("amqp.annotation.x-opt-sequence-number > '1'")
    receiver = peer.receiver(READ, filter={**chosen, symbol("other"): Described(symbol("other"), "x")})
    assert receiver.echoed == chosen
    error = refused(peer.attach_receiver(READ, filter={symbol(SELECTOR): "amqp.annotation.x-opt-offset > '@latest'"}))
    assert error.condition == "amqp:invalid-field" and "has to be described" in error.description


def test_a_hub_is_found_whatever_the_case_of_its_name(namespace: Namespace, peer: Any) -> None:
    assert bodies(peer.receiver(READ.replace(HUB, HUB.upper())), 3) == ["a", "b", "c"]
    namespace.create(hub=HUB.upper())
    peer.sender(HUB.upper()).send("d")
    assert bodies(peer.receiver(READ.replace(HUB, HUB.upper())), 1) == ["d"], "there is one of exactly that name now"
    assert namespace.ends() == {"0": 3}


def test_names_of_receivers_are_short_in_words_for_others(peer: Any) -> None:
    name = symbol("com.microsoft:receiver-name")
    for number in range(5):
        peer.receiver(READ, properties={name: f"{number}" + "x" * 30_000})
    error = refused(peer.attach_receiver(READ))
    assert error.condition == "amqp:resource-limit-exceeded" and 400 < len(error.description) < 1_000


@pytest.mark.parametrize("epoch", [proton.int32(3), proton.ulong(3), "3", -1])
def test_an_epoch_is_a_long(peer: Any, epoch: Any) -> None:
    error = refused(peer.attach_receiver(READ, properties={symbol("com.microsoft:epoch"): epoch}))
    assert error.condition == "amqp:invalid-field" and "expected a long from 0 on" in error.description


# --- sending


def test_what_cannot_be_sent_to(peer: Any) -> None:
    assert refused(peer.attach_sender("nope")).condition == "amqp:not-found"
    assert refused(peer.attach_sender(READ)).condition == "amqp:not-allowed"
    assert refused(peer.attach_sender(f"{HUB}/Partitions/7")).condition == "com.microsoft:argument-out-of-range"


def test_a_key_and_a_partition_contradict(namespace: Namespace, peer: Any) -> None:
    sender = peer.sender(f"{HUB}/Partitions/0")
    key = {symbol("x-opt-partition-key"): "k"}
    sender.send("d")
    with pytest.raises(Refused, match="cannot be sent to a partition") as caught:
        sender.send(proton.Message("e", annotations=key))
    assert caught.value.condition == "amqp:not-allowed"
    sender.send("f")
    assert namespace.ends() == {"0": 5}


def test_a_partition_that_is_split_is_no_partition_to_try_again(namespace: Namespace, peer: Any) -> None:
    to_one, to_all = peer.sender(f"{HUB}/Partitions/0"), peer.sender(HUB)
    namespace.server.call(lambda: namespace.log.split_partition(HUB, "0", into=2))
    with pytest.raises(Refused, match="split into partitions 1, 2") as caught:
        to_one.send("d")
    assert caught.value.condition == "amqp:not-allowed"
    to_all.send("e")
    assert sum(namespace.ends().values()) == 4


def test_the_largest_event_that_is_taken_is_given(namespace: Namespace, peer: Any) -> None:
    """Microsoft's client for Python takes as much as it may send, and the door's annotations beside it."""
    sender = peer.sender(HUB)
    size = sender.link.remote_max_message_size
    sender.send(proton.Message(b"x" * (size - 100), inferred=True))
    assert len(namespace.receive(4)[-1].body_as_str()) == size - 100


# --- tokens


def put(peer: Any, token: Any, kind: str = SAS_TYPE) -> tuple[int, str]:
    return asked(peer, "$cbs", token, operation="put-token", type=kind, name=f"sb://x/{HUB}")[:2]


def asked(peer: Any, address: str, body: Any, **properties: Any) -> tuple[int, str, Any]:
    """Return status, description and body of the reply to a request."""
    replies, requests = peer.receiver(address, credit=1), peer.sender(address)
    message = proton.Message(body, id="r-1", reply_to=replies.link.name, properties=properties)
    requests.send(message)
    (reply,) = replies.take(1)
    assert reply.message.correlation_id == "r-1"
    replies.detach()
    requests.detach()
    told = reply.message.properties
    return told["status-code"], told["status-description"], reply.message.body


@pytest.fixture
def unknown(namespace: Namespace, make_peer: Callable[..., Any]) -> Any:
    """A peer that has to put tokens, and a hub."""
    namespace.create()
    return make_peer(namespace.url, username=None, password=None, mechanisms="ANONYMOUS")


def test_without_a_token_only_cbs_may_be_used(namespace: Namespace, unknown: Any) -> None:
    for attach in (unknown.attach_receiver, unknown.attach_sender):
        error = refused(attach(READ if attach == unknown.attach_receiver else HUB))
        assert error.condition == "amqp:unauthorized-access"
    status, words = put(unknown, sas(f"sb://x/{HUB}", "guest", "guest"))
    assert (status, words) == (202, "Accepted")
    unknown.sender(HUB).send("a")
    assert bodies(unknown.receiver(READ), 1) == ["a"]
    assert refused(unknown.attach_sender(f"{HUB}2")).condition == "amqp:unauthorized-access", "a prefix is no path"


@pytest.mark.parametrize(
    ("token", "kind", "words"),
    [
        (lambda: sas("sb://x/orders", "guest", "wrong"), SAS_TYPE, "InvalidSignature"),
        (lambda: sas("sb://x/orders", "nobody", "guest"), SAS_TYPE, "InvalidSignature"),
        (lambda: sas("sb://x/orders", "guest", "guest", time.time() - 60), SAS_TYPE, "ExpiredToken"),
        (lambda: sas("sb://x/orders", "guest", "guest"), "jwt", "knows servicebus.windows.net:sastoken alone"),
        (lambda: "SharedAccessSignature of nothing", SAS_TYPE, ""),
    ],
)
def test_tokens_that_are_none(
    namespace: Namespace, unknown: Any, token: Callable[[], str], kind: str, words: str
) -> None:
    text = token()
    status, description = put(unknown, text, kind)
    assert status == 401 and words in description
    assert text.partition("sig=")[2].partition("&")[0] not in description or "sig=" not in text, "nothing of the token"
    assert refused(unknown.attach_sender(HUB)).condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("body", "operation"), [(None, "put-token"), (7, "put-token"), ("SharedAccessSignature", "get-token")]
)
def test_requests_to_cbs_that_are_none(unknown: Any, body: Any, operation: str) -> None:
    status, words, _ = asked(unknown, "$cbs", body, operation=operation, type=SAS_TYPE)
    assert status == 400 and "expected put-token" in words


def test_a_token_that_runs_out_ends_its_links_and_another_keeps_them(
    namespace: Namespace, make_peer: Callable[..., Any]
) -> None:
    namespace.create()

    def attached(expires_s: float) -> tuple[Any, Any]:
        peer = make_peer(namespace.url, username=None, password=None, mechanisms="ANONYMOUS")
        put(peer, sas(f"sb://x/{HUB}", "guest", "guest", expires_s))
        return peer, peer.receiver(READ)

    for seconds in (3, 30, 100):  # a machine may be so slow that a token has run out before it is used
        soon = time.time() + seconds
        with contextlib.suppress(Refused):
            (_, ends), (peer, stays) = attached(soon), attached(soon)
            break
    assert put(peer, sas(f"sb://x/{HUB}", "guest", "guest"))[0] == 202
    assert ends.wait_closed(WAIT_S) == "amqp:unauthorized-access"
    assert "ExpiredToken" in ends.link.remote_condition.description
    peer.sender(HUB).send("a")
    assert bodies(stays, 1) == ["a"]


def test_each_way_to_encode_a_signature(namespace: Namespace, unknown: Any) -> None:
    """In lower case as C# does, blanks as JavaScript does, and without a scheme as scripts for PowerShell do."""
    until = int(time.time()) + 3_600
    namespace.create(hub="a b")
    for uri, hub in (
        (f"sb%3a%2f%2fx%2f{HUB}", HUB),
        ("sb%3A%2F%2Fx%2Fa%20b", "a b"),
        (f"ns.servicebus.windows.net%2f{HUB}", HUB),
    ):
        peer = namespace.peer(username=None, password=None, mechanisms="ANONYMOUS")
        raw = hmac.new(b"guest", f"{uri}\n{until}".encode(), hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(raw).decode())
        token = f"SharedAccessSignature sr={uri}&sig={signature}&se={until}&skn=guest"
        assert put(peer, token)[0] == 202, uri
        peer.sender(hub).send("a")


@pytest.mark.parametrize(
    "token",
    [
        lambda: sas(f"sb://x/{HUB}", "guest", "guest", 10**400),
        lambda: f"SharedAccessSignature sr=x&sig=x&se={'9' * 5_000}&skn=guest",
        lambda: "SharedAccessSignature sr=x&sig=x&se=-5&skn=guest",
    ],
)
def test_odd_expiries_cost_no_connection(namespace: Namespace, unknown: Any, token: Callable[[], str]) -> None:
    status, words = put(unknown, token())
    assert status == 401 and "'se' that is no number" in words
    assert put(unknown, sas(f"sb://x/{HUB}", "guest", "guest"))[0] == 202


def test_an_odd_uri_covers_nothing_else(namespace: Namespace, unknown: Any) -> None:
    for uri in ("sb://[x/orders", f"sb://x/{HUB}?", f"sb://x/{HUB}%23eu"):
        put(unknown, sas(uri, "guest", "guest"))
    for hub in (f"{HUB}2", f"{HUB}#eu", f"{HUB}?eu"):
        assert refused(unknown.attach_sender(hub)).condition == "amqp:unauthorized-access"


def test_each_rule_whose_token_covers_a_path_counts_and_goes_with_its_token(
    namespaces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = namespaces(
        users={"writer": "w", "reader": "r"}, permissions={"reader": Permissions(write=""), "writer": Permissions()}
    )
    namespace.create()
    peer = namespace.peer(username=None, password=None, mechanisms="ANONYMOUS")
    soon = time.time() + 100
    assert put(peer, sas("sb://localhost", "reader", "r"))[0] == 202
    assert "may not write" in refused(peer.attach_sender(HUB)).description
    assert put(peer, sas(f"sb://x/{HUB}", "writer", "w", soon))[0] == 202
    sender, receiver = peer.sender(HUB), peer.receiver(READ)
    sender.send("a")
    (connection,) = namespace.server.server.door("event-hubs").connections
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda now=time.time: now() + 200)
        namespace.server.call(lambda: connection.guarded(connection._check_tokens))
    assert sender.wait_closed(WAIT_S) == "amqp:unauthorized-access"
    assert bodies(receiver, 1) == ["a"], "the reader's token holds"


# --- $management


def test_questions_that_are_none(peer: Any) -> None:
    for properties, status in (
        ({"operation": "WRITE", "type": "com.microsoft:eventhub", "name": HUB}, 400),
        ({"operation": "READ", "type": "com.microsoft:topic", "name": HUB}, 400),
        ({"operation": "READ", "type": "com.microsoft:eventhub", "name": "nope"}, 404),
        ({"operation": "READ", "type": "com.microsoft:eventhub"}, 404),
        ({"operation": "READ", "type": "com.microsoft:partition", "name": HUB, "partition": "7"}, 400),
    ):
        assert asked(peer, "$management", None, **properties)[0] == status, properties


def test_a_question_with_its_own_token(namespace: Namespace, unknown: Any) -> None:
    question = {"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB}
    assert asked(unknown, "$management", None, **question)[0] == 401
    token = sas(f"sb://x/{HUB}/$management", "guest", "guest")
    status, _, told = asked(unknown, "$management", None, **question, security_token=token)
    assert (status, told["name"], told["partition_count"]) == (200, HUB, 1)
