"""Tokens and the messages that carry them, against what Microsoft's own client makes of the same values."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from proton import Message, symbol

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.amqp.cbs import (
    JWT_TYPE,
    SIGNATURE_TYPE,
    Token,
    audience,
    decode_reply,
    encode_put_token,
)
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.management import encode_reply
from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from spark_streams.wire.amqp.values import Described, ULong

# azure-eventhub 5.15.1, azure.eventhub._pyamqp.utils.generate_sas_token of the same four values.
SIGNED = [
    (
        ("sb://ns.servicebus.windows.net/orders", "RootManageSharedAccessKey",
         "c2VjcmV0LWtleS1vZi10aGlydHktdHdvLWJ5dGVzISE=", 1790000000),
        "SharedAccessSignature sr=sb%3A%2F%2Fns.servicebus.windows.net%2Forders"
        "&sig=%2BzJsGCRL%2BKwZchQGu4ukKVoTu5wJ4RswGc5A2Agmb7Q%3D&se=1790000000&skn=RootManageSharedAccessKey",
    ),
    (
        ("sb://ns/", "a", "b", 1),
        "SharedAccessSignature sr=sb%3A%2F%2Fns%2F&sig=5IZ0YcGl5gAKYDA6ztBc2mLiR1lE%2FTHj6mDvu4Nst%2FM%3D&se=1&skn=a",
    ),
]  # fmt: skip
ODD = (
    ("sb://localhost/h%C3%A9 b/ConsumerGroups/$Default/Partitions/0", "rule & söhne", "k+/=ey~", 4102444800),
    "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fh%25C3%25A9+b%2FConsumerGroups%2F%24Default%2FPartitions%2F0"
    "&sig=EXrUsyOJYJj0ObqcVJn41djfdSEyZlV%2FHL%2BAVgxS9iY%3D&se=4102444800&skn=rule%2B%2526%2Bs%25C3%25B6hne",
)
"""It encodes the rule's name twice; the signature does not cover it."""


@pytest.mark.parametrize(("values", "text"), SIGNED)
def test_signatures_are_those_of_the_services_own_client(values: tuple[str, str, str, int], text: str) -> None:
    assert SharedAccessSignature.signed(*values).text == text
    assert Token.signed(*values) == Token(text, SIGNATURE_TYPE, values[3]) == Token.read(text)
    assert SharedAccessSignature.parsed(text).is_signed_by(values[2])
    assert not SharedAccessSignature.parsed(text).is_signed_by(values[2] + "=")


def test_a_signature_of_odd_names() -> None:
    values, text = ODD
    ours = SharedAccessSignature.signed(*values)
    assert ours.text.rpartition("&skn=")[0] == text.rpartition("&skn=")[0]
    assert SharedAccessSignature.parsed(ours.text) == ours
    assert SharedAccessSignature.parsed(text).is_signed_by(values[2])


@pytest.mark.parametrize(
    "text",
    [f"SharedAccessSignature {each}" for each in ("", "sr=a&sig=geheim&se=soon&skn=r", "sig=geheim")],
)
def test_no_signature(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="expected 'SharedAccessSignature sr=…") as caught:
        Token.read(text)
    assert "geheim" not in str(caught.value)


def jwt(**claims: object) -> str:
    """Return an unsigned token with the claims."""
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    encoded = (base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
    return ".".join((*encoded, "c2ln"))


def test_the_expiry_of_a_jwt_is_its_claim() -> None:
    assert Token.read(jwt(exp=1790000000, aud="https://eventhubs.azure.net")) == Token(
        jwt(exp=1790000000, aud="https://eventhubs.azure.net"), JWT_TYPE, 1790000000
    )
    assert Token.read(jwt(exp=12.75)).expires_s == 12


@pytest.mark.parametrize(
    "text",
    [
        *("opaque", "a.b.c", "a.ÿ.c", "a.W10.c", "a." + base64.b64encode(b"[[" * 50_000).decode() + ".c"),
        *(jwt(), *(jwt(exp=each) for each in ("soon", True, -1, 1e300, float("nan"), float("inf")))),
    ],
    ids=str.__len__,
)
def test_a_token_that_does_not_say_its_expiry(text: str) -> None:
    assert Token.read(text) == Token(text, JWT_TYPE, None)


def test_no_repr_shows_a_token() -> None:
    assert "geheim" not in repr(Token("geheim", JWT_TYPE)) + str(Token("geheim", JWT_TYPE))


def test_a_request_as_proton_reads_it() -> None:
    message = Message()
    message.decode(encode_put_token(Token("text", SIGNATURE_TYPE, 1790000000), "sb://ns/hub", "request 1", "reply"))
    assert (message.id, message.reply_to, message.body) == ("request 1", "reply", "text")
    assert message.properties == {
        "operation": "put-token",
        "type": "servicebus.windows.net:sastoken",
        "name": "sb://ns/hub",
        "expiration": 1790000000000,
    }
    assert type(message.properties["expiration"]).__name__ == "timestamp"
    assert not message.inferred


def test_a_request_without_expiry_does_not_name_one() -> None:
    message = Message()
    message.decode(encode_put_token(Token("text", JWT_TYPE), audience("ns"), "1", "reply"))
    assert message.properties == {"operation": "put-token", "type": "jwt", "name": "sb://ns/"}


@pytest.mark.parametrize(
    "said",
    [
        {"status-code": 202, "status-description": "Accepted"},
        {"statusCode": 202, "statusDescription": "Accepted"},
        {"status_code": 202, "status_description": "Accepted", "error-condition": symbol("x")},
    ],
)
def test_a_reply_of_proton(said: dict[Any, Any]) -> None:
    reply = decode_reply(bytes(Message(correlation_id="request 1", properties=said).encode()))
    assert reply == ("request 1", 202, "Accepted")


def test_a_reply_without_words() -> None:
    assert decode_reply(bytes(Message(properties={"status-code": 401}).encode())) == ("None", 401, "")


def test_our_reply() -> None:
    encoded = encode_reply("request 1", 401, "no")
    assert decode_reply(encoded) == ("request 1", 401, "no")
    message = Message()
    message.decode(encoded)
    assert message.correlation_id == "request 1"
    assert message.properties == {"status-code": 401, "status-description": "no"}


@pytest.mark.parametrize(
    "message",
    [
        bytes(Message(body="x").encode()),
        bytes(Message(properties={"status-code": "202"}).encode()),
        encode_value(Described(ULong(0x74), {"status-code": None})),
        b"\x00\x53",
        b"",
    ],
)
def test_no_reply(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_reply(message)
